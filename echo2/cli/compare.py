"""`echo2 compare`: which of two runs or rows of a sweep is better, and is the gap more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.options import Json

if TYPE_CHECKING:
    from echo2.study.compare import Gap
    from echo2.study.intervals import Interval
    from echo2.study.results import Group

HELP = "A sweep's row, FILE:KEY=VALUE,...; a run directory; or a folder of them."
Side = Annotated[str, typer.Argument(metavar="A", help=HELP)]
Other = Annotated[str, typer.Argument(metavar="B", help="As A.")]
Despite = Annotated[
    list[str] | None,
    typer.Option("--despite", metavar="KEY", help="Compare although this key differs; may be repeated."),
]


def compare(a: Side, b: Other, despite: Despite = None, json: Json = False) -> None:
    """Say which of A and B is better, over the seeds that both have, and whether it is more than noise."""
    from echo2.study.compare import common_seeds
    from echo2.study.compare import compare as compared
    from echo2.study.results import varying
    from echo2.study.selector import select

    left, right = select(a), select(b)
    gaps = compared(left, right, (a, b), despite or ())
    seeds = common_seeds(left, right, (a, b))
    keys = varying([left.config, right.config])
    if json:
        from echo2.cli.output import print_json

        differs = {key: [left.config.get(key), right.config.get(key)] for key in keys}
        print_json({"a": a, "b": b, "seeds": seeds, "differs": differs, "gaps": [_json(g) for g in gaps]})
    else:
        _show(left, right, gaps, keys, seeds)


def _json(gap: Gap) -> dict[str, Any]:
    one = gap.difference.n == 1
    return {
        "measure": gap.measure.name,
        "a": gap.a.mean,
        "b": gap.b.mean,
        "difference": gap.difference.mean,
        "low": None if one else gap.difference.low,
        "high": None if one else gap.difference.high,
        "p": None if math.isnan(gap.p) else gap.p,
        "n": gap.difference.n,
        "better": gap.better,
    }


def _show(left: Group, right: Group, gaps: Sequence[Gap], keys: Sequence[str], seeds: Sequence[int]) -> None:
    from echo2.cli.tables import console, table

    out = console()
    if keys:
        rows = [[key, _value(left.config.get(key)), _value(right.config.get(key))] for key in keys]
        out.print(table("What differs", ["key", "A", "B"], rows))
        out.print()
    else:
        out.print("A and B have the same configuration.\n")
    listed = [
        [
            gap.measure.name,
            f"{gap.a.mean:{gap.measure.form}}",
            f"{gap.b.mean:{gap.measure.form}}",
            f"{gap.relative:+.1%}",
            _range(gap.difference, gap.a.mean),
            "" if math.isnan(gap.p) else f"{gap.p:.2g}",
            gap.verdict,
        ]
        for gap in gaps
    ]
    world = left.runs[0].world
    title = f"B against A, {world}, {len(seeds)} common seed{'s' * (len(seeds) > 1)}, paired t-test"
    out.print(table(title, ["", "A", "B", "B - A", "95 % interval", "p", ""], listed))
    if len(seeds) == 1:
        out.print("One seed cannot tell a gap from noise: repeat both with --seeds 5.")


def _range(difference: Interval, base: float) -> str:
    if difference.n == 1 or not base:
        return ""
    low, high = sorted((difference.low / base, difference.high / base))
    return f"{low:+.1%} .. {high:+.1%}"


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)
