"""How many times smaller a delta is than the full snapshot: looked up in what was measured on real steps.

`experiments/records/delta_sizes.csv` is written by `benchmarks/delta_ratio.py`. Read by the scenario when
the configuration asks for the measured ratio.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from echo2.errors import UserError

DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class DeltaSize:
    """`ratio`: full bytes / delta bytes, 1 or more; `share_changed`: of the values by one step.

    `basis`: "measured" for exactly the asked model size, rate and one step, else "estimate"; `note` says
    from what it was taken.
    """

    ratio: float
    share_changed: float
    basis: str
    note: str


@dataclass(frozen=True, slots=True)
class _Point:
    """Means of one model, dtype and rate after one step.

    `decay`: over n steps the ratio is this power of n times as large (below 0); nan where only single
    steps were measured.
    """

    model: str
    parameters: int
    rate: float
    share: float
    ratio: float
    decay: float
    measured: str


def ratio(dtype: str, learning_rate: float, model_parameters: float, steps_apart: int = 1) -> float:
    """Full bytes / delta bytes; see `delta_size`."""
    return delta_size(dtype, learning_rate, model_parameters, steps_apart).ratio


def delta_size(dtype: str, learning_rate: float, model_parameters: float, steps_apart: int = 1) -> DeltaSize:
    """What a delta between snapshots `steps_apart` optimiser steps apart is expected to be.

    Taken from the measured model nearest in size (by its logarithm), a power law between two measured
    learning rates, the outermost one beyond them, and a power law in the steps through one and the most
    measured (that of the next lower rate where a model did not survive more than one). Rules are ours;
    AdamW is assumed. Raises UserError for a dtype that was not measured and for numbers not above 0.
    """
    if dtype not in DTYPES:
        raise UserError(f"delta sizes of dtype {dtype!r} were not measured; choose {' or '.join(DTYPES)}")
    asked = {"learning_rate": learning_rate, "model_parameters": model_parameters, "steps_apart": steps_apart}
    for name, value in asked.items():
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{name} is {value}; it must be above 0 to look up the size of a delta")
    points = _nearest(_table()[DTYPES[dtype]], model_parameters)
    low, high, weight = _between(points, learning_rate)
    decay = (1 - weight) * low.decay + weight * high.decay
    found = _power(low.ratio, high.ratio, weight) * steps_apart**decay
    exact = steps_apart == 1 and low is high and low.rate == learning_rate
    same = round(model_parameters) == low.parameters
    rates = f"{low.rate:g}" if low is high else f"{low.rate:g} and {high.rate:g}"
    return DeltaSize(
        max(1.0, found),
        _power(low.share, high.share, weight),
        "measured" if exact and same else "estimate",
        f"measured on {low.model} in {DTYPES[dtype]}, AdamW at {rates}, {low.measured}",
    )


def records() -> Path:
    """The file of measurements: inside the package when installed from a wheel, else the repository's."""
    package = Path(__file__).resolve().parent.parent
    inside = Path("experiments") / "records" / "delta_sizes.csv"
    shipped = package / "_shipped" / inside
    return shipped if shipped.is_file() else package.parent / inside


@lru_cache(maxsize=1)
def _table() -> dict[str, list[_Point]]:
    """Points by dtype, ascending in the rate."""
    try:
        with records().open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"the measured delta sizes are not there ({error}); reinstall echo2") from None
    groups: dict[tuple[str, str, float], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["dtype"], row["model"], float(row["learning_rate"])), []).append(row)
    table: dict[str, list[_Point]] = {dtype: [] for dtype in DTYPES.values()}
    for (dtype, model, _), group in sorted(groups.items()):
        before = table[dtype][-1] if table[dtype] else None
        lower = before.decay if before and before.model == model else math.nan
        table[dtype].append(_point(group, lower))
    return table


def _point(rows: list[dict[str, str]], lower: float) -> _Point:
    """Of the rows of one model, dtype and rate; `lower`: the decay at the next lower rate."""
    single = [row for row in rows if row["steps_apart"] == "1"]
    once = _mean_ratio(single)
    apart = max(int(row["steps_apart"]) for row in rows)
    later = _mean_ratio(row for row in rows if int(row["steps_apart"]) == apart)
    return _Point(
        model=rows[0]["model"],
        parameters=int(rows[0]["parameters"]),
        rate=float(rows[0]["learning_rate"]),
        share=sum(float(row["share_changed"]) for row in single) / len(single),
        ratio=once,
        decay=math.log(later / once) / math.log(apart) if apart > 1 else lower,
        measured=rows[0]["measured"],
    )


def _mean_ratio(rows: Iterable[dict[str, str]]) -> float:
    """Of the bytes together: bytes add up, ratios do not."""
    sizes = [(int(row["full_bytes"]), int(row["delta_bytes"])) for row in rows]
    return sum(full for full, _ in sizes) / sum(delta for _, delta in sizes)


def _nearest(points: list[_Point], parameters: float) -> list[_Point]:
    best = min(points, key=lambda p: abs(math.log(p.parameters / parameters)))
    return [point for point in points if point.model == best.model]


def _between(points: list[_Point], rate: float) -> tuple[_Point, _Point, float]:
    """The measured rates on both sides, and how far towards the second; one twice at a measured one."""
    below = [point for point in points if point.rate <= rate]
    above = [point for point in points if point.rate >= rate]
    low = below[-1] if below else above[0]
    high = above[0] if above else below[-1]
    if low is high:
        return low, high, 0.0
    return low, high, math.log(rate / low.rate) / math.log(high.rate / low.rate)


def _power(low: float, high: float, weight: float) -> float:
    return float(low * (high / low) ** weight)
