"""A recorded run for the tests of validation: a world whose delays are known, kept as a live run is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from echo2.config import dumps, parse
from echo2.policy.planner import plan_run, settings_for
from echo2.scenario import build
from echo2.sim import log
from echo2.validate.calibrate import Calibration, WorkerModel
from echo2.validate.engine_fit import EngineFit
from echo2.validate.plane import Delays
from echo2.validate.steps import SeenStep, StepKinds, fit_steps
from echo2.validate.world import CalibratedWorld


def table(steps: int = 50, staleness: int = 3, **train: Any) -> dict[str, Any]:
    """A small configuration: three simulated workers behind links of 20 Mbit/s."""
    return {
        "name": "kept",
        "seed": 7,
        "run": {"steps": steps, "staleness": staleness, "publish_period": 1, "best_effort": True},
        "batch": {"rollouts_per_step": 64, "group_size": 8},
        "model": {"name": "tiny", "snapshot_gb": 0.0016},
        "learner": {
            "gpu": "CPU", "gpus": 1, "provider": "here", "price_usd_per_gpu_h": 0.1, "step_s": 0.2,
            "uplink_mbps": 2000.0, "downlink_mbps": 2000.0, "egress_usd_per_gb": 0.0,
        },
        "rollout": {"tokens": 24.0, "max_tokens": 32, "prompt_tokens": 7.0, "swap_pause_s": 0.01},
        "network": {"local_mbps": 10000.0},
        "policy": {"activation": "all"},
        "pool": [
            {
                "name": "sim", "gpu": "CPU", "count": 3, "provider": "here", "region": "aws:us-east-1",
                "price_usd_per_h": 0.02, "tokens_per_s": 1500.0, "slots": 16, "uplink_mbps": 20.0,
                "downlink_mbps": 20.0, "startup_s": 2.0, "relay": False, "engine": "simulated",
                "local": True, "shape_links": True,
            }
        ],
        "train": {"task": "noise", **train},
    }  # fmt: skip


def truth_of(workers: Sequence[str], steps: int) -> Calibration:
    """What the kept run is made of: engines by their profile, writes and hops of 12 ms."""
    rng = np.random.default_rng(0)
    seen = [SeenStep(v, float(s), 64 * 24) for v, s in enumerate(rng.normal(0.2, 0.02, steps), start=1)]
    engine = EngineFit(0.0, 1.0 / 1500.0, 0.02, 0.04, 0.0)
    models = {
        name: WorkerModel(name, engine, 2.0, {1: 0.08, 2: 0.1, 3: 0.12}, 0.01, 20e6, (20e6, 21e6))
        for name in workers
    }
    return Calibration(
        steps=steps,
        until_s=0.0,
        learner=fit_steps(seen, StepKinds(1, 10, steps)),
        groups=((24,) * 8,),
        workers=models,
        payloads=(1.6e6,),
        delays=Delays(0.012, dict.fromkeys(workers, 0.012)),
    )


def keep_run(folder: Path, seed: int = 3, **changes: Any) -> Path:
    """Simulate a world and write its log, configuration and identity to `folder`, as a live run does."""
    config = parse(table(**changes), "kept")
    built = build(config)
    settings = settings_for(built.problem, plan_run(built.problem))
    inputs = replace(built.world(settings), settings=settings)
    truth = truth_of([offer.worker_id for offer in built.problem.offers], settings.total_steps)
    world = CalibratedWorld(inputs, truth, seed, settings.total_steps)
    assert world.run(3600.0)
    folder.mkdir(parents=True)
    lines = log.lines(settings, world.entries)
    (folder / "log.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (folder / "config.toml").write_text(dumps(config), encoding="utf-8")
    identity = {"train.task": "noise", "batch.group_size": 8, "seed": 7}
    state = {"run_id": "run-0", "life": 1, "identity": identity}
    (folder / "run.json").write_text(json.dumps(state), encoding="utf-8")
    return folder
