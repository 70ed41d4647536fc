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

ROOT = Path(__file__).parent.parent
BASE = """
name = "live-vs-model"
[run]
steps = {steps}
staleness = {S}
publish_period = {kappa}
best_effort = true
[batch]
rollouts_per_step = 128
group_size = 8
[model]
name = "tiny"
snapshot_gb = 0.00163
[learner]
gpu = "CPU"
gpus = 1
provider = "here"
price_usd_per_gpu_h = 0.1
step_s = 0.3
step_cv = 0.1
uplink_mbps = 2000
downlink_mbps = 2000
egress_usd_per_gb = 0.0
[rollout]
tokens = 40
max_tokens = 48
prompt_tokens = 7
swap_pause_s = 0.0
[[pool]]
name = "w"
gpu = "CPU"
count = 2
provider = "here"
region = "aws:us-east-1"
price_usd_per_h = 0.02
tokens_per_s = {rate}
slots = 64
uplink_mbps = 1000
downlink_mbps = {down}
startup_s = 6
relay = false
engine = "simulated"
local = true
shape_links = true
[policy]
activation = "all"
topologies = ["star"]
[train]
model = "{model}"
task = "noise"
learning_rate = 1e-6
template = "plain"
max_prompt_tokens = 16
checkpoint_every = 1000000
threads = 1
"""
CASES = {
    "learner-bound": {"S": 4, "kappa": 1, "rate": 24_000, "down": 1000},
    "rollout-bound": {"S": 4, "kappa": 1, "rate": 3_000, "down": 1000},
    "link-bound": {"S": 1, "kappa": 1, "rate": 24_000, "down": 8},
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
    text = BASE.format(steps=steps, model=ROOT / "assets" / "tiny-sort", **case)
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
