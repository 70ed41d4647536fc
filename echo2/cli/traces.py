"""`echo2 traces`: the measured data that is shipped, and where it comes from; `show` draws one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo2.cli.options import Json

if TYPE_CHECKING:
    from echo2.traces import TraceEntry

MOST_SERIES = 8
SOURCE_WIDTH = 24
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
    shown = _folded(found) if kind is None else [(e, e.trace_id) for e in found]
    rows = [
        (
            name,
            e.kind,
            e.basis,
            e.licence,
            e.measured_from_utc[:7] or "?",
            _shortened(e.source.removeprefix("github.com/")),
        )
        for e, name in shown
    ]
    columns = ["id", "kind", "basis", "licence", "from", "source"]
    console().print(table(f"{len(found)} traces", columns, rows))
    return None


def _folded(found: Sequence[TraceEntry]) -> list[tuple[TraceEntry, str]]:
    """(entry, what to call it); one for a file with many series, which `--kind` lists in full."""
    files: dict[str, list[TraceEntry]] = {}
    for e in found:
        files.setdefault(e.file, []).append(e)
    rows: list[tuple[TraceEntry, str]] = []
    for members in files.values():
        if len(members) > MOST_SERIES:
            start = commonprefix([e.trace_id for e in members])  # noqa: RUF071 (names, not paths)
            rows.append((members[0], f"{start}* ({len(members)})"))
        else:
            rows += [(e, e.trace_id) for e in members]
    return rows


def _shortened(source: str) -> str:
    return source if len(source) <= SOURCE_WIDTH else source[: SOURCE_WIDTH - 3] + "..."


@app.command("show")
def show(which: Which, out: Out = None, json: Json = False) -> None:
    """Sum up one trace, and draw it with --out."""
    from echo2.cli.output import print_json, write_file
    from echo2.cli.tables import console, table
    from echo2.errors import UserError
    from echo2.traces.show import draw, summary

    if out is not None and out.suffix.lower() != ".png":
        raise UserError(f"--out {out}: must end in .png")
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
