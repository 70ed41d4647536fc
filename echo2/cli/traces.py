"""`echo2 traces`: the measured data that is shipped, and where it comes from; `show` draws one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echo2.cli.options import Json

app = typer.Typer(help="List the shipped measurements with their provenance; `show` one, or your own file.")
Kind = Annotated[str | None, typer.Option("--kind", help="Only this kind: link, region_pair, price, ...")]
Out = Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Draw it into this file.")]
Which = Annotated[str, typer.Argument(metavar="ID_OR_PATH", help="A trace of the list, or a CSV file.")]


@app.callback(invoke_without_command=True)
def listing(context: typer.Context, kind: Kind = None, json: Json = False) -> None:
    """List the shipped traces: kind, basis, licence, source."""
    if context.invoked_subcommand is not None:
        return None
    from dataclasses import asdict

    from echo2.cli.output import print_json
    from echo2.cli.tables import console, table
    from echo2.traces import KINDS, entries
    from echo2.traces.nearest import unknown

    if kind is not None and kind not in KINDS:
        raise unknown("kind of trace", kind, KINDS)
    found = [entry for entry in entries() if kind in (None, entry.kind)]
    if json:
        return print_json([asdict(entry) for entry in found])
    rows = [
        (
            e.trace_id,
            e.kind,
            e.basis,
            e.licence,
            f"{e.measured_from_utc[:7] or '?'}",
            e.source.removeprefix("github.com/"),
        )
        for e in found
    ]
    console().print(table(f"{len(found)} traces", ["id", "kind", "basis", "licence", "from", "source"], rows))
    return None


@app.command("show")
def show(which: Which, out: Out = None, json: Json = False) -> None:
    """Sum up one trace, and draw it with --out."""
    from echo2.cli.output import print_json, write_file
    from echo2.cli.tables import console, table
    from echo2.traces.show import draw, summary

    rows = summary(which)
    if out is not None:
        write_file(out, lambda part: _drawn(draw, which, part))
    if json:
        return print_json(dict(rows))
    console().print(table("", ["", ""], rows))
    if out is not None:
        typer.echo(f"wrote {out}")
    return None


def _drawn(draw: object, which: str, part: Path) -> None:
    draw(which, part)  # type: ignore[operator]
