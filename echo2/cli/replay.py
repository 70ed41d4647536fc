"""`echo2 replay`: the facts of a recorded run again, and whether the decisions come out the same."""

from __future__ import annotations

import json as codec
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo2.cli.exits import DIFFERS
from echo2.cli.options import Json
from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.sim.log import ReplayReport

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or its log.jsonl.")]


def replay(run: Run, json: Json = False) -> None:
    """Feed a run's facts to a fresh scheduler; decisions must be equal byte for byte (else exit code 1)."""
    from dataclasses import asdict, replace

    from echo2.cli.output import print_json

    logs = _logs(run)
    live = run.is_dir() and (run / "run.json").is_file()
    reports = [(log, _replayed(log)) for log in logs]
    first, report = next(
        ((log, r) for log, r in reports if not (r.equal or (r.cut and live))), (logs[0], reports[0][1])
    )
    facts, decisions = sum(r.facts for _, r in reports), sum(r.decisions for _, r in reports)
    killed = [log.name for log, r in reports if r.cut and live]
    report = replace(report, facts=facts, decisions=decisions, equal=report.equal or (report.cut and live))
    if report.equal and (known := _facts_of(run)) not in (None, report.facts):
        note = f"the run had {known:,} facts by its summary.json; the log was cut off or added to"
        report = replace(report, equal=False, first_difference=note)
    if json:
        print_json({**asdict(report), "logs": [log.name for log in logs]})
    elif report.equal:
        lives = f" in {len(logs)} lives of the run" if len(logs) > 1 else ""
        ends = f"; {', '.join(killed)}: no end mark, the run was killed or goes on" if killed else ""
        sys.stdout.write(f"equal: {report.facts:,} facts, {report.decisions:,} decisions{lives}{ends}\n")
    else:
        where = f"{first.name}: " if len(logs) > 1 else ""
        sys.stdout.write(f"{where}different after {report.facts:,} facts: {report.first_difference}\n")
    if not report.equal:
        raise typer.Exit(DIFFERS)


def _logs(run: Path) -> list[Path]:
    """The logs of a run, one for each of its lives."""
    if not run.is_dir():
        return [run]
    later = sorted(run.glob("log-*.jsonl"), key=lambda path: (len(path.name), path.name))
    return [run / "log.jsonl", *later]


def _replayed(log: Path) -> ReplayReport:
    from echo2.sim.log import replay as again

    try:
        return again(log)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{log}: not a run log: not UTF-8 text (byte {error.start}); give a run's folder or log.jsonl"
        ) from None
    except OSError as error:
        raise UserError(
            f"{log}: cannot be read ({error.strerror}); give a run's folder or log.jsonl"
        ) from None


def _facts_of(run: Path) -> int | None:
    """How many facts a run had by its own account; None where it gives none (a live run, a bare log)."""
    try:
        summary = codec.loads((run / "summary.json").read_text(encoding="utf-8"))
        return int(summary["events"]["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
