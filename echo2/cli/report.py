"""`echo2 report`: a run, simulated or live, as one self-contained HTML page and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echo2.cli.options import Json

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; default: the run's folder.")
]


def report(run: Run, out: Out = None, json: Json = False) -> None:
    """Write report.html, which needs nothing else to be read, and figures/*.png."""
    from echo2.cli.output import print_json
    from echo2.report import write_report

    files = write_report(run, out)
    if json:
        return print_json({"html": str(files.html), "figures": [str(path) for path in files.figures]})
    for path in (files.html, *files.figures):
        typer.echo(f"wrote {path}")
    return None
