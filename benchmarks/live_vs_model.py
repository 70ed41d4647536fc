"""Learner utilisation of live runs against the plan fed with what was measured, in three regimes.

    python benchmarks/live_vs_model.py [--steps N]

Each run is real: `echo2 train` with the torch learner, HTTP, the ledger and two worker processes on
loopback, whose engines sleep by a profile (`engine = "simulated"`), so that rates are known and cores stay
free. Learner-bound: workers have rate to spare. Rollout-bound: they have half of what is needed. Link-bound:
links shaped so slow that a snapshot takes several steps. The plan and the simulation get this run's
T_train, and links and rates as configured; utilisation is after the start-up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from echo2.testing.live import live_config

ROOT = Path(__file__).parent.parent
BASE = {
    "name": "live-vs-model",
    "batch.rollouts_per_step": 128,
    "learner.step_s": 0.3,
    "learner.step_cv": 0.1,
    "rollout.tokens": 40,
    "rollout.max_tokens": 48,
    "rollout.swap_pause_s": 0.0,
    "pool.w.count": 2,
    "pool.w.slots": 64,
    "pool.w.startup_s": 6,
    "pool.w.engine": "simulated",
    "pool.w.shape_links": True,
    "policy.topologies": ["star"],
    "train.task": "noise",
}
CASES = {
    "learner-bound": {"run.staleness": 4, "pool.w.tokens_per_s": 24_000},
    "rollout-bound": {"run.staleness": 4, "pool.w.tokens_per_s": 3_000},
    "link-bound": {"run.staleness": 1, "pool.w.tokens_per_s": 24_000, "pool.w.downlink_mbps": 8},
}


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description="Live utilisation against the model.")
    parser.add_argument("--steps", type=int, default=60)
    steps: int = parser.parse_args().steps
    print(f"{'case':14} {'T_train':>8} {'planned':>8} {'simulated':>9} {'live':>7} {'plan - live':>11}")
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory(prefix="echo2-") as folder:
            row = one(Path(folder), steps, case)
        print(
            f"{name:14} {row['train_s']:7.3f}s {row['planned']:8.1%} {row['simulated']:9.1%} "
            f"{row['live']:7.1%} {row['planned'] - row['live']:+11.1%}",
            flush=True,
        )


def one(folder: Path, steps: int, case: dict[str, Any]) -> dict[str, float]:
    """One live run, then plan and simulation with its step time."""
    config = folder / "live.toml"
    text = live_config(ROOT / "assets" / "tiny-sort", {**BASE, **case, "run.steps": steps})
    config.write_text(text, encoding="utf-8")
    echo2("train", config, "--out", folder / "run")
    live = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    train_s = live["steady"]["train_s_mean"]
    measured = ["--set", f"learner.step_s={max(0.01, train_s):.6g}"]
    simulated = json.loads(echo2("simulate", config, *measured, "--json"))
    return {
        "train_s": train_s,
        "planned": simulated["plan"]["learner_utilisation"],
        "simulated": simulated["startup"]["learner_utilisation"],
        "live": live["steady"]["learner_utilisation"],
    }


def echo2(*arguments: object) -> str:
    """Run a command; its output."""
    command = [sys.executable, "-m", "echo2.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
