"""`echo2 report RUN`: the report of a simulated or live run. Registered by `echo2.cli.main`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Run directory, as `echo2 simulate --out DIR` writes it.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the run directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
) -> None:
    """Write one self-contained HTML page about a run, and its figures as PNG."""
    from echo2.report import write_report

    files = write_report(run, out)
    if as_json:
        print(json.dumps({"html": str(files.html), "figures": [str(path) for path in files.figures]}))
        return
    print(f"report:  {files.html}")
    for path in files.figures:
        print(f"figure:  {path}")
