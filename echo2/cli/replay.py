"""`echo2 replay`: the facts of a recorded run again, and whether the decisions come out the same."""

from __future__ import annotations

import json as codec
import sys
from pathlib import Path
from typing import Annotated

import typer

from echo2.cli.exits import DIFFERS
from echo2.cli.options import Json
from echo2.errors import UserError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or its log.jsonl.")]


def replay(run: Run, json: Json = False) -> None:
    """Feed a run's facts to a fresh scheduler; decisions must be equal byte for byte (else exit code 1)."""
    from dataclasses import asdict, replace

    from echo2.cli.output import print_json
    from echo2.sim.log import replay as again

    log = run / "log.jsonl" if run.is_dir() else run
    try:
        report = again(log)
    except UnicodeDecodeError as error:
        raise UserError(f"{log}: not a run log: not UTF-8 text (byte {error.start}); run it again") from None
    if report.equal and (facts := _facts_of(run)) not in (None, report.facts):
        note = f"the run had {facts:,} facts by its summary.json; the log was cut off or added to"
        report = replace(report, equal=False, first_difference=note)
    if json:
        print_json(asdict(report))
    elif report.equal:
        sys.stdout.write(f"equal: {report.facts:,} facts, {report.decisions:,} decisions\n")
    else:
        sys.stdout.write(f"different after {report.facts:,} facts: {report.first_difference}\n")
    if not report.equal:
        raise typer.Exit(DIFFERS)


def _facts_of(run: Path) -> int | None:
    """How many facts a run had by its own account; None where it gives none (a live run, a bare log)."""
    try:
        summary = codec.loads((run / "summary.json").read_text(encoding="utf-8"))
        return int(summary["events"]["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
