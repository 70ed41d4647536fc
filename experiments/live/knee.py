"""Live runs around the provisioning knee: learner utilisation for several S and numbers of workers.

    python experiments/live/knee.py [--budget-s 170] [--csv FILE]

Real processes, a real learner on a tiny model, workers whose engines only sleep, so that what is provisioned
is known: all that is asked here is whether rollouts come in time. The points below were fixed before the
first recorded run. A point that has a row in the table is not run again, and none is begun after the budget,
so the script goes on where it was stopped. A row says what was measured after the first S + 2 steps.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.validate.measure import CAUSES, Measures, measure
from echo2.validate.recorded import Recorded, read

HERE = Path(__file__).parent
CONFIG = HERE / "knee.toml"
RECORDS = HERE / "records" / "knee.csv"

SEED, LIMIT_S, ENDING_S = 1, 110.0, 30.0
# S, publication period, steps; and the numbers of workers: with S = 0 and 1 the line is flat early.
POINTS = {
    (0, 1, 14): (2, 4, 6),
    (1, 1, 24): (2, 3, 4, 6),
    (3, 1, 30): (2, 3, 4, 5, 6),
    (6, 2, 34): (2, 3, 4, 5, 6),
}


def main() -> None:
    """Do what is missing, a row at a time."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--csv", type=Path, default=RECORDS, help="the table that rows are added to")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after this long")
    args = parser.parse_args()
    known, began = recorded(args.csv), time.monotonic()
    for (bound, kappa, steps), counts in POINTS.items():
        for workers in counts:
            if (bound, workers) in known:
                continue
            if time.monotonic() - began > args.budget_s:
                print(f"the budget of {args.budget_s:.0f} s is used up; run again to go on")
                return
            row = run(bound, kappa, steps, workers)
            add(args.csv, row)
            print(f"S = {bound}, {workers} workers: learner works {row['utilisation']:.1%}", flush=True)


def recorded(table: Path) -> set[tuple[int, int]]:
    """(S, workers) of the rows there are."""
    if not table.is_file():
        return set()
    with table.open(newline="", encoding="utf-8") as stream:
        return {(int(row["S"]), int(row["workers"])) for row in csv.DictReader(stream)}


def add(table: Path, row: dict[str, Any]) -> None:
    """Append a row, under a head if it is the first."""
    first = not table.is_file()
    with table.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(row))
        if first:
            writer.writeheader()
        writer.writerow({key: round(x, 5) if isinstance(x, float) else x for key, x in row.items()})


def run(bound: int, kappa: int, steps: int, workers: int) -> dict[str, Any]:
    """One live run and its row."""
    from echo2.cli.code_version import code_version

    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="echo2-knee-") as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, "-m", "echo2.cli.main", "train", str(CONFIG), "--out", str(folder)]
        sets = (f"run.staleness={bound}", f"run.publish_period={kappa}", f"run.steps={steps}")
        for override in (*sets, f"pool.local.count={workers}"):
            command += ["--set", override]
        train([*command, "--seed", str(SEED)])
        live = read(folder)
    return {
        "S": bound,
        "kappa": kappa,
        "workers": workers,
        "seed": SEED,
        **figures(live, bound + 2),
        "load_before": load,
        "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "code_version": code_version(),
    }


def train(command: list[str]) -> None:
    """Run it to its end, or end it in order, so that it ends its workers, and fail."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        code = child.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"a run was not done within {LIMIT_S:.0f} s; is the machine busy?") from None
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait(ENDING_S)
    if code:
        raise SystemExit(f"a run ended with exit code {code}")


def figures(live: Recorded, warm_up: int) -> dict[str, Any]:
    """What a run's log says of the steps after the warm-up."""
    last = sum(isinstance(fact, f.StepFinished) for fact, _ in live.entries)
    found = measure(live.entries, live.settings, warm_up, last)
    offers = [fact.offer for fact, _ in live.entries if isinstance(fact, f.WorkerOffered)]
    lags = [lag for lag, count in found.staleness.items() for _ in range(count)]
    return {
        "first_step": warm_up + 1,
        "last_step": last,
        "rollouts_per_step": live.settings.rollouts_per_step,
        "rollouts_per_s": sum(offer.rollouts_per_s for offer in offers),
        "train_s": fmean(found.train_s),
        "wall_s": found.wall_s,
        "utilisation": sum(found.train_s) / found.wall_s,
        **waits(found),
        "staleness_mean": fmean(lags),
        "staleness_max": max(lags),
        "dropped": found.dropped,
        "bcast_tail_s": fmean(found.tails_s),
        "group_s": group_s(live),
    }


def waits(found: Measures) -> dict[str, float]:
    """Shares of the time that the learner waited, by what for."""
    return {f"wait_{cause}": found.bubble_s.get(cause, 0.0) / found.wall_s for cause in CAUSES}


def group_s(live: Recorded) -> float:
    """Mean seconds from the order of a group to the last of its rollouts counted, all control plane in it."""
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for fact, answers in live.entries:
        if isinstance(fact, f.RolloutFinished):
            ended[fact.group_id] = fact.t_s
        for answer in answers:
            if isinstance(answer, d.StartGroup):
                began[answer.group_id] = fact.t_s
    return fmean(end - began[group] for group, end in ended.items())


if __name__ == "__main__":
    main()
