"""Records the live runs of the fidelity matrix, one at a time: `python experiments/fidelity/matrix.py`.

Every cell of `cells.py` is run with two seeds, all cells with the first seed before any with the second. A
run that has a record is not done again, so the script goes on where it was stopped. A record is what
validation needs and nothing else: the log of facts and decisions, configuration, metrics, swap pauses; no
weights. `--list` shows the cells and how long all of them take, and starts nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cells import CELLS, MODEL, Cell, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDS = HERE / "records"
SEEDS = (0, 1)
PATIENCE = 3.0
LEAST_PATIENCE_S = 120.0
ENDING_S = 60.0


def main() -> None:
    """Do what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these cells only")
    parser.add_argument("--seed", action="append", type=int, default=[], help="these seeds only")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where the records are kept")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after this long")
    parser.add_argument("--list", action="store_true", help="show the cells and the time they take")
    args = parser.parse_args()
    chosen = [cell for cell in CELLS if not args.only or cell.name in args.only]
    if unknown := set(args.only) - {cell.name for cell in CELLS}:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}; --list shows them")
    todo = [(cell, seed) for seed in (args.seed or SEEDS) for cell in chosen]
    if args.list:
        show(todo, args.records)
        return
    failed = record_all(todo, args.records, args.budget_s)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed: {', '.join(failed)}; run again to do them anew")


def show(todo: list[tuple[Cell, int]], records: Path) -> None:
    """What would be run, and for how long."""
    total = 0.0
    for cell, seed in todo:
        known = place(records, cell, seed).is_dir()
        total += 0.0 if known else cell.expected_s
        state = "recorded" if known else f"{cell.expected_s:5.0f} s"
        print(f"{cell.name:28} seed {seed}  {cell.total_steps:4} steps  {state}")
    print(f"{len(todo)} runs of {len({cell.name for cell, _ in todo})} cells, {total / 60:.0f} min to go")


def record_all(todo: list[tuple[Cell, int]], records: Path, budget_s: float) -> list[str]:
    """Run and record what has no record yet. Returns the names of those that failed."""
    records.mkdir(parents=True, exist_ok=True)
    began, failed = time.monotonic(), []
    for number, (cell, seed) in enumerate(todo, start=1):
        folder = place(records, cell, seed)
        if folder.is_dir():
            continue
        if time.monotonic() - began > budget_s:
            print(f"the budget of {budget_s:.0f} s is used up; run again to go on", flush=True)
            break
        print(f"[{number}/{len(todo)}] {folder.name}: about {cell.expected_s:.0f} s ... ", end="", flush=True)
        if trouble := record(cell, seed, folder):
            failed.append(folder.name)
            print(f"failed: {trouble}", flush=True)
        else:
            print(f"recorded, {time.monotonic() - began:.0f} s in all", flush=True)
    return failed


def place(records: Path, cell: Cell, seed: int) -> Path:
    """Where a run's record is."""
    return records / f"{cell.name}-seed{seed}"


def record(cell: Cell, seed: int, folder: Path) -> str:
    """Run a cell and keep its record. Returns what went wrong, "" for nothing."""
    with tempfile.TemporaryDirectory(prefix="echo2-fidelity-") as scratch:
        run, before = Path(scratch) / "run", os.getloadavg()[0]
        began = time.monotonic()
        trouble = train(cell, seed, Path(scratch), run)
        if trouble:
            return trouble
        notes = {
            "cell": cell.name,
            "seed": seed,
            "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cpus": os.cpu_count(),
            "load_before": before,
            "load_after": os.getloadavg()[0],
            "seconds": round(time.monotonic() - began, 1),
        }
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        pack(run, part, notes)
        part.rename(folder)
    return ""


def train(cell: Cell, seed: int, scratch: Path, run: Path) -> str:
    """One `echo2 train`. Returns the last line of what it said where it failed."""
    from echo2.config import dumps, parse

    config = scratch / "config.toml"
    text = dumps(parse(table(cell, seed, str(ROOT / MODEL)), cell.name))
    config.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "echo2.cli.main", "train", str(config), "--out", str(run)]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    limit_s = max(LEAST_PATIENCE_S, PATIENCE * cell.expected_s)
    with (scratch / "said.txt").open("w+", encoding="utf-8") as said:
        child = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": paths}
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not done within {limit_s:.0f} s"
        finally:
            end(child)
        said.seek(0)
        lines = said.read().strip().splitlines()
    return "" if code == 0 else (lines[-1] if lines else f"exit code {code}")


def end(child: subprocess.Popen[bytes]) -> None:
    """End a run that still goes on: in order, so that it ends its workers; by force after a while."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def pack(run: Path, folder: Path, notes: dict[str, Any]) -> None:
    """Keep of a run's folder what validation needs, compressed."""
    from echo2.cli.code_version import code_version
    from echo2.validate.recorded import swaps_of

    folder.mkdir(parents=True)
    for name in ("log.jsonl", "metrics.jsonl"):
        with (folder / f"{name}.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as stream:
            stream.write((run / name).read_bytes())
    config = (run / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(config.replace(str(ROOT / MODEL), MODEL), encoding="utf-8")
    for name in ("run.json", "summary.json"):
        shutil.copyfile(run / name, folder / name)
    put(folder / "swaps.json", swaps_of(run))
    put(folder / "record.json", {**notes, "code_version": code_version()})


def put(path: Path, data: Any) -> None:
    """Write JSON, short."""
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
