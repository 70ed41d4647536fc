"""Figures of a span of steps, and the signed error of a simulation against the live run.

Called by `check` and by the table of experiments/fidelity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from echo2.validate.measure import CAUSES, Measures

Unit = Literal["relative", "share", "versions", "distance"]


@dataclass(frozen=True)
class Figure:
    """A metric: its unit in print, and what its error is.

    relative: (simulated - live) / live. share: a difference of shares of 1. versions: a difference in
    learner versions. distance: between two distributions, 0 for equal ones, never negative.
    """

    name: str
    text: str
    unit: Unit
    headline: bool = False


FIGURES = (
    Figure("steps_per_s", "steps/s", "relative", True),
    Figure("step_p50_s", "step time p50, s", "relative", True),
    Figure("step_p90_s", "step time p90, s", "relative"),
    Figure("step_p99_s", "step time p99, s", "relative"),
    Figure("train_mean_s", "T_train mean, s", "relative"),
    Figure("learner_utilisation", "learner utilisation", "share", True),
    *(Figure(f"bubble_{cause}", f"bubble, waiting for {cause}", "share") for cause in CAUSES),
    Figure("staleness_mean", "staleness mean", "versions", True),
    Figure("staleness_p99", "staleness p99", "versions"),
    Figure("staleness_max", "staleness max", "versions"),
    Figure("staleness_tv", "staleness histogram, total variation", "distance"),
    Figure("staleness_w1", "staleness histogram, Wasserstein-1", "distance"),
    Figure("dropped_share", "dropped share", "share"),
    Figure("tail_p50_s", "dissemination tail p50, s", "relative"),
    Figure("tail_p99_s", "dissemination tail p99, s", "relative"),
    Figure("step_cost_usd", "USD per step", "relative", True),
    Figure("worker_utilisation", "worker utilisation", "share", True),
)
BY_NAME = {figure.name: figure for figure in FIGURES}


def figures(runs: Sequence[Measures]) -> dict[str, float | None]:
    """The figures of one span, or of several simulations of it: rates from their sums, percentiles pooled.

    None where there is nothing to say, such as the tail of a run that published nothing.
    """
    steps, wall_s = sum(m.steps for m in runs), sum(m.wall_s for m in runs)
    if not steps or wall_s <= 0:
        raise ValueError("a span without a finished step has no figures")
    step_s = [s for m in runs for s in m.step_s]
    train_s = [s for m in runs for s in m.train_s]
    tails = [s for m in runs for s in m.tails_s]
    stale = _pooled(runs)
    values = np.repeat(sorted(stale), [stale[lag] for lag in sorted(stale)]) if stale else np.zeros(1)
    dispatched, paid_s = sum(m.dispatched for m in runs), sum(m.paid_s for m in runs)
    made: dict[str, float | None] = {
        "steps_per_s": steps / wall_s,
        **{f"step_p{p}_s": float(np.percentile(step_s, p)) for p in (50, 90, 99)},
        "train_mean_s": float(np.mean(train_s)),
        "learner_utilisation": sum(train_s) / wall_s,
        **{f"bubble_{cause}": sum(m.bubble_s.get(cause, 0.0) for m in runs) / wall_s for cause in CAUSES},
        "staleness_mean": float(values.mean()),
        "staleness_p99": float(np.percentile(values, 99, method="inverted_cdf")),
        "staleness_max": float(np.mean([max(m.staleness, default=0) for m in runs])),
        "staleness_tv": 0.0,
        "staleness_w1": 0.0,
        "dropped_share": sum(m.dropped for m in runs) / max(1, dispatched),
        **{f"tail_p{p}_s": float(np.percentile(tails, p)) if tails else None for p in (50, 99)},
        "step_cost_usd": sum(m.usd for m in runs) / steps,
        "worker_utilisation": sum(m.busy_s for m in runs) / paid_s if paid_s else 0.0,
    }
    return made


def distances(live: Sequence[Measures], simulated: Sequence[Measures]) -> dict[str, float]:
    """How far apart the histograms of staleness are: total variation (0 to 1), Wasserstein-1 (versions)."""
    ours, theirs = _pooled(live), _pooled(simulated)
    lags = range(max([*ours, *theirs], default=0) + 1)
    a, b = (np.array([count[lag] for lag in lags], dtype=float) for count in (ours, theirs))
    a, b = a / max(1.0, a.sum()), b / max(1.0, b.sum())
    return {
        "staleness_tv": float(np.abs(a - b).sum() / 2),
        "staleness_w1": float(np.abs(np.cumsum(a - b)).sum()),
    }


def error(name: str, live: float | None, predicted: float | None) -> float | None:
    """The signed error of a prediction; None where either is missing or the live one is 0."""
    if live is None or predicted is None:
        return None
    if BY_NAME[name].unit != "relative":
        return predicted - live
    return (predicted - live) / live if live else None


def _pooled(runs: Sequence[Measures]) -> Counter[int]:
    return sum((m.staleness for m in runs), Counter())
