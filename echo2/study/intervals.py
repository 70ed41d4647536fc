"""Confidence intervals over repeated seeds. Used by sweeps, fronts and comparisons."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LEVEL = 0.95
# What a sweep's table gives an interval of, and its printed table.
MEASURED = (
    "steps_per_s",
    "learner_utilisation",
    "step_cost_usd",
    "wall_s",
    "staleness_mean",
    "dropped_share",
    "worker_utilisation",
    "bcast_tail_p99_s",
)
DONE = ("ok", "best effort")


@dataclass(frozen=True)
class Interval:
    """The mean of `n` values and the two-sided 95 % interval of it; `half` is NaN for one value alone."""

    mean: float
    half: float
    n: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half


def t_interval(values: Sequence[float]) -> Interval:
    """Student's t-interval of the mean. ValueError for no values."""
    if not values:
        raise ValueError("no values")
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, math.nan, 1)
    return Interval(mean, t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n), n)


@lru_cache(maxsize=256)
def t_quantile(freedom: int) -> float:
    """The quantile of Student's t that leaves 2.5 % above it."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))


def seedless(row: Mapping[str, Any]) -> str:
    """What rows of one configuration share: all of it but the seed."""
    config = row["config"]
    loaded = json.loads(config) if isinstance(config, str) else dict(config)
    loaded.pop("seed", None)
    return json.dumps(loaded, sort_keys=True)


def with_intervals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with `seeds` (how many finished runs of its configuration there are) and for each
    measured column NAME its `NAME_low` and `NAME_high`, the ends of the interval of the mean over them.

    Empty where there is one seed alone. Unfinished runs and errors do not count.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(seedless(row), []).append(row)
    known = {key: _columns(group) for key, group in groups.items()}
    return [{**row, **known[seedless(row)]} for row in rows]


def _columns(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    done = list({row["seed"]: row for row in group if row["status"] in DONE}.values())
    columns: dict[str, Any] = {"seeds": len(done)}
    for name in MEASURED:
        columns[f"{name}_low"] = columns[f"{name}_high"] = None
        if len(done) > 1:
            found = t_interval([float(row[name]) for row in done])
            columns |= {f"{name}_low": found.low, f"{name}_high": found.high}
    return columns
