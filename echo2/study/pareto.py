"""The front of a sweep: which configurations nothing else beats in both cost and staleness, or wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echo2.study.intervals import Interval
from echo2.study.results import Run, grouped, varying
from echo2.study.workload import check_comparable

# Axis: (column of the results, what it is divided by, label).
AXES: Mapping[str, tuple[str, float, str]] = {
    "staleness": ("staleness_mean", 1.0, "mean staleness (versions)"),
    "wall": ("wall_s", 3600.0, "wall time of the run (h)"),
}


@dataclass(frozen=True)
class Dot:
    """One configuration: `values` are the keys in which the sweep's configurations differ, `on` the axes
    (`staleness`, `wall`) on whose front against cost it is. USD per step, versions, hours."""

    number: int
    values: Mapping[str, Any]
    cost: Interval
    across: Mapping[str, Interval]
    seeds: tuple[int, ...]
    on: tuple[str, ...]


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (x, y) whether no other is as good in both and better in one; less is better."""
    return [not any((a <= x and b <= y) and (a < x or b < y) for a, b in points) for x, y in points]


def dots(runs: Sequence[Run], what: str) -> list[Dot]:
    """The configurations of a sweep, cheapest first and numbered so. Of different workloads: UserError."""
    check_comparable(runs, what)
    groups = grouped(runs)
    keys = varying([group.config for group in groups])
    costs = [group.interval("step_cost_usd") for group in groups]
    across = [
        {axis: _scaled(group.interval(column), unit) for axis, (column, unit, _) in AXES.items()}
        for group in groups
    ]
    on: list[list[str]] = [[] for _ in groups]
    for axis in AXES:
        marks = front([(mine[axis].mean, cost.mean) for mine, cost in zip(across, costs)])
        for names, mark in zip(on, marks):
            names += [axis] if mark else []
    order = sorted(range(len(groups)), key=lambda i: (costs[i].mean, across[i]["staleness"].mean, i))
    return [
        Dot(
            number,
            {key: groups[i].config.get(key) for key in keys},
            costs[i],
            across[i],
            groups[i].seeds,
            tuple(on[i]),
        )
        for number, i in enumerate(order, 1)
    ]


def _scaled(interval: Interval, unit: float) -> Interval:
    return Interval(interval.mean / unit, interval.half / unit, interval.n)
