"""The live demo: plan, simulate and train one configuration, and show the three side by side.

    python scripts/live_demo.py [CONFIG] [--out demo-live] [--set KEY=VALUE]...

The plan and the first simulation use the rates the configuration states, which were measured on another
machine. So the simulation is done again with the rates of this run (step time, tokens/s of a worker that is
busy, start-up, transfer and swap), and that column is the one to hold against the live one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

CONFIG = Path("experiments/tiny-sort-live.toml")
WINDOW_S = 1.0


def echo2(*arguments: str, quiet: bool = False) -> str:
    """Print and run one `echo2` command; a failure ends the demo with its exit code."""
    print(f"\n$ echo2 {shlex.join(arguments)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "echo2.cli.main", *arguments], check=False, text=True,
        stdout=subprocess.PIPE if quiet else None,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, nargs="?", default=CONFIG)
    parser.add_argument("--out", type=Path, default=Path("demo-live"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    if args.out.exists():
        if not (args.out / "run.json").is_file():
            sys.exit(f"error: {args.out} is there and is not a live run; choose another --out")
        shutil.rmtree(args.out)
    sets = [word for text in args.set for word in ("--set", text)]
    config = str(args.config)
    echo2("plan", config, *sets)
    simulated = json.loads(echo2("simulate", config, *sets, "--json", quiet=True))
    echo2("train", config, *sets, "--out", str(args.out))
    echo2("replay", str(args.out))
    live = json.loads((args.out / "summary.json").read_text(encoding="utf-8"))
    measured = measure(args.out, live)
    again = [word for name, value in measured.items() for word in ("--set", f"{name}={value:.6g}")]
    calibrated = json.loads(echo2("simulate", config, *sets, *again, "--json", quiet=True))
    show(simulated, calibrated, live)
    both = {"simulated": simulated, "calibrated": calibrated, "measured": measured}
    (args.out / "side-by-side.json").write_text(json.dumps(both, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, live: dict[str, Any]) -> dict[str, float]:
    """Configuration keys with the values of a live run, from its log and summary."""
    joined: dict[str, float] = {}
    ends: dict[str, list[tuple[float, int]]] = {}
    for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        fact = json.loads(line)
        if fact["kind"] == "WorkerJoined":
            joined.setdefault(fact["worker_id"], fact["t_s"])
        elif fact["kind"] == "RolloutFinished":
            ends.setdefault(fact["worker_id"], []).append((fact["t_s"], fact["tokens"]))
    pools: dict[str, list[float]] = {}
    for name, rollouts in ends.items():
        pools.setdefault(name.rpartition("-")[0], []).append(busy_rate(rollouts))
    found = {f"pool.{pool}.tokens_per_s": sum(rates) / len(rates) for pool, rates in pools.items()}
    for pool in pools:
        starts = [t_s for name, t_s in joined.items() if name.rpartition("-")[0] == pool]
        found[f"pool.{pool}.startup_s"] = sum(starts) / len(starts)
    found["learner.step_s"] = max(0.01, live["steady"]["train_s_mean"])
    found["rollout.swap_pause_s"] = live["swap_pause_s"]["p50"]
    found["rollout.tokens"] = live["tokens"]["dispatched_mean"]
    return found


def busy_rate(rollouts: list[tuple[float, int]]) -> float:
    """Tokens/s of a worker while it is busy: the upper quartile over windows of a second."""
    windows: dict[int, int] = {}
    for t_s, tokens in rollouts:
        windows[int(t_s / WINDOW_S)] = windows.get(int(t_s / WINDOW_S), 0) + tokens
    rates = sorted(tokens / WINDOW_S for tokens in windows.values())
    return rates[int(0.75 * (len(rates) - 1))]


def show(simulated: dict[str, Any], calibrated: dict[str, Any], live: dict[str, Any]) -> None:
    """The table. All three columns are whole runs, start-up included, except where it says after it."""
    plan = simulated["plan"]
    table = Table(title="One configuration, one scheduler", title_justify="left", box=None)
    for column in ("", "planned", "simulated", "simulated, measured rates", "live"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, planned: str, pick: Any, form: str) -> None:
        table.add_row(name, planned, *(format(pick(run), form) for run in (simulated, calibrated, live)))

    table.add_row(
        "steps/s after start-up",
        f"{plan['steps_per_s']:.3f}",
        *(f"{steady(run)[0]:.3f}" for run in (simulated, calibrated, live)),
    )
    table.add_row(
        "learner utilisation after it",
        f"{plan['learner_utilisation']:.1%}",
        *(f"{steady(run)[1]:.1%}" for run in (simulated, calibrated, live)),
    )
    row("wall s, whole run", "", lambda run: run["wall_s"], ".1f")
    row("seconds a step trains", "", lambda run: run["train_s_mean"], ".3f")
    row("staleness, mean", "", lambda run: run["staleness"]["mean"], ".2f")
    row("staleness, max", "", lambda run: run["staleness"]["max"], "d")
    row("dropped", "", lambda run: run["dropped_share"], ".1%")
    row("USD a step", f"{plan['step_cost_usd']:.2e}", lambda run: run["step_cost_usd"], ".2e")
    reward = live["reward"]
    table.add_row("reward, first and last 5 steps", "", "", "", f"{reward['first']:.3f} {reward['last']:.3f}")
    print()
    Console(width=120).print(table)


def steady(run: dict[str, Any]) -> tuple[float, float]:
    """(steps/s, learner utilisation) without the start-up."""
    if "steady" in run:
        return run["steady"]["steps_per_s"], run["steady"]["learner_utilisation"]
    used = run["startup"]["learner_utilisation"]
    return used / run["train_s_mean"], used


if __name__ == "__main__":
    main()
