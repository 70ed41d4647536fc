"""The picture of a front: cost against staleness and against wall time, in the style of all our figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.report import style
from echo2.study.pareto import AXES, Dot

KINDS = (".png", ".pdf")
LABELLED = 14


def check_out(out: Path) -> None:
    """Refuse a name of a picture that is neither PNG nor PDF; without an ending it is both."""
    if not out.name:
        raise UserError(f"--out {out}: names no file; give one like front.png, or front for PNG and PDF")
    if out.suffix and out.suffix not in KINDS:
        raise UserError(f"--out {out}: must end in {' or '.join(KINDS)}, or in neither for both")


def draw(found: Sequence[Dot], title: str, out: Path) -> list[Path]:
    """Write the picture; returns the paths written."""
    kinds = (out.suffix[1:],) if out.suffix else ("png", "pdf")
    with style.drawing():
        figure = picture(found, title)
        return style.save(figure, out.parent, out.stem if out.suffix else out.name, kinds)


def picture(found: Sequence[Dot], title: str) -> Any:
    """The figure: a panel for each axis. Call inside `style.drawing`."""
    figure, axes = style.new_figure(3.7, 1, len(AXES), sharey=True)
    for panel, axis in zip(axes, AXES):
        _panel(panel, found, axis)
    axes[0].set_ylabel("cost (USD per step)")
    figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    # A point may be on the front of one panel alone, so no panel has all that is to be explained.
    named = {label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=3)
    return figure


def _panel(panel: Any, found: Sequence[Dot], axis: str) -> None:
    best = sorted((dot for dot in found if axis in dot.on), key=lambda dot: dot.across[axis].mean)
    others = [dot for dot in found if axis not in dot.on]
    for dots, look in ((others, _dominated), (best, _front)):
        if dots:
            x, y = [dot.across[axis] for dot in dots], [dot.cost for dot in dots]
            panel.errorbar(
                [i.mean for i in x],
                [i.mean for i in y],
                xerr=_halves(x),
                yerr=_halves(y),
                **look(any(dot.cost.n > 1 for dot in dots)),
            )
    for dot in best[:LABELLED]:
        at = (dot.across[axis].mean, dot.cost.mean)
        panel.annotate(str(dot.number), at, xytext=(5, 5), textcoords="offset points", fontsize=8)
    panel.set_xlabel(AXES[axis][2])
    panel.margins(0.08, 0.1)


def _halves(intervals: Sequence[Any]) -> list[float]:
    return [0.0 if math.isnan(i.half) else i.half for i in intervals]


def _front(intervals: bool) -> dict[str, Any]:
    return {
        "label": f"front, numbered as in the table{' (95 % intervals)' if intervals else ''}",
        "color": style.BLUE,
        "marker": "o",
        "linestyle": "-",
        "markersize": 6,
        "elinewidth": 0.9,
        "zorder": 3,
    }


def _dominated(intervals: bool) -> dict[str, Any]:
    return {
        "label": "another is as good or better in both",
        "color": style.GREY,
        "marker": "s",
        "markerfacecolor": "none",
        "linestyle": "none",
        "elinewidth": 0.6,
        "zorder": 2,
    }
