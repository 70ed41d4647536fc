"""`echo2 traces`: the measured data that is shipped, and where it comes from; `show` draws one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo2.cli.options import Json

if TYPE_CHECKING:
    from echo2.traces import TraceEntry

MOST_SERIES = 8
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
    shown = _folded(found) if kind is None else [(e, "") for e in found]
    rows = [
        (
            e.trace_id + more,
            e.kind,
            e.basis,
            e.licence,
            e.measured_from_utc[:7] or "?",
            e.source.removeprefix("github.com/"),
        )
        for e, more in shown
    ]
    columns = ["id", "kind", "basis", "licence", "from", "source"]
    console().print(table(f"{len(found)} traces", columns, rows))
    return None


def _folded(found: Sequence[TraceEntry]) -> list[tuple[TraceEntry, str]]:
    """One row for a file with many series, which `--kind` lists in full."""
    files = Counter(e.file for e in found)
    rows: dict[str, tuple[TraceEntry, str]] = {}
    for e in found:
        many = files[e.file] > MOST_SERIES
        name = e.file if many else e.trace_id
        rows.setdefault(name, (e, f" +{files[e.file] - 1}" if many else ""))
    return list(rows.values())


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


def _drawn(draw: Callable[[str, Path], Path], which: str, part: Path) -> None:
    draw(which, part)
