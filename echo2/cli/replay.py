"""`echo2 replay`: the facts of a recorded run again, and whether the decisions come out the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from echo2.cli.exits import DIFFERS
from echo2.cli.options import Json

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or its log.jsonl.")]


def replay(run: Run, json: Json = False) -> None:
    """Feed a run's facts to a fresh scheduler; decisions must be equal byte for byte (else exit code 1)."""
    from dataclasses import asdict

    from echo2.cli.output import print_json
    from echo2.sim.log import replay as again

    report = again(run / "log.jsonl" if run.is_dir() else run)
    if json:
        print_json(asdict(report))
    elif report.equal:
        sys.stdout.write(f"equal: {report.facts:,} facts, {report.decisions:,} decisions\n")
    else:
        sys.stdout.write(f"different after {report.facts:,} facts: {report.first_difference}\n")
    if not report.equal:
        raise typer.Exit(DIFFERS)
