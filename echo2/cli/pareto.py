"""`echo2 pareto`: cost against staleness and wall time over a sweep, with the front marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.options import Json

if TYPE_CHECKING:
    from echo2.study.intervals import Interval
    from echo2.study.pareto import Dot

Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="The table of a sweep: .parquet or .csv.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="The picture: .png, .pdf, or without an ending both."),
]
SHOWN = 40
TITLES = ("USD/step", "staleness", "wall h", "seeds", "on the front of")


def pareto(results: Results, out: Out = None, json: Json = False) -> None:
    """Draw the cost front of a sweep: cost against staleness, cost against wall time."""
    from echo2.study.pareto import dots
    from echo2.study.pareto_figure import check_out, draw
    from echo2.study.results import read_sweep

    if out is not None:
        check_out(out)
    runs = read_sweep(results)
    found = dots(runs, str(results))
    name = runs[0].row.get("name")
    name = name if isinstance(name, str) else results.stem
    title = f"{name}: {len(found)} configurations, {runs[0].config['run.steps']} steps, {runs[0].world}"
    paths = [] if out is None else draw(found, title, out)
    if json:
        from echo2.cli.output import print_json

        print_json({"points": [_as_json(dot) for dot in found], "pictures": [str(path) for path in paths]})
        return
    _show(found, title)
    for path in paths:
        typer.echo(f"wrote {path}")


def _as_json(dot: Dot) -> dict[str, Any]:
    return {
        "number": dot.number,
        "values": dict(dot.values),
        "usd_per_step": _interval(dot.cost),
        "staleness_mean": _interval(dot.across["staleness"]),
        "wall_h": _interval(dot.across["wall"]),
        "seeds": list(dot.seeds),
        "front": list(dot.on),
    }


def _interval(found: Interval) -> dict[str, float | None]:
    alone = found.n == 1
    return {
        "mean": found.mean,
        "low": None if alone else found.low,
        "high": None if alone else found.high,
    }


def _show(found: Sequence[Dot], title: str) -> None:
    from echo2.cli.tables import console, table

    # Those on a front first: a long sweep's others are left out.
    listed = sorted(found, key=lambda dot: (not dot.on, dot.number))[:SHOWN]
    keys = list(found[0].values)
    heads = [key.replace(".", ".\n") for key in keys]
    columns = ["", *heads, *TITLES]
    rows = [
        [
            str(dot.number),
            *("" if dot.values[key] is None else str(dot.values[key]) for key in keys),
            _shown(dot.cost, 3),
            _shown(dot.across["staleness"], 2),
            _shown(dot.across["wall"], 2),
            str(len(dot.seeds)),
            " and ".join(dot.on),
        ]
        for dot in listed
    ]
    more = f"; {len(found) - SHOWN} more are dominated or not shown" if len(found) > SHOWN else ""
    console().print(table(f"{title}{more}", columns, rows))


def _shown(found: Interval, digits: int) -> str:
    spread = f"±{found.half:.{digits}f}" if found.n > 1 else ""
    return f"{found.mean:.{digits}f}{spread}"
