"""What a simulated run is measured by: counters filled by the world, and the summary made of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Meter:
    """Integrates the price of one worker while it is paid for."""

    price_usd_per_h: float
    since_s: float | None = None
    usd: float = 0.0
    paid_s: float = 0.0

    def start(self, t_s: float) -> None:
        """Begin to pay."""
        if self.since_s is None:
            self.since_s = t_s

    def change(self, t_s: float, price_usd_per_h: float) -> None:
        """The price changes while it may be running."""
        running = self.since_s is not None
        self.stop(t_s)
        self.price_usd_per_h = price_usd_per_h
        if running:
            self.start(t_s)

    def stop(self, t_s: float) -> None:
        """Stop paying."""
        if self.since_s is not None:
            self.paid_s += t_s - self.since_s
            self.usd += (t_s - self.since_s) * self.price_usd_per_h / 3600.0
            self.since_s = None


@dataclass
class Metrics:
    """Counters of a run. Rollouts are counted one by one, groups with all their rollouts.

    `trained_squares` is the sum of the squared lengths in tokens.
    """

    staleness: Counter[int] = field(default_factory=Counter)
    train_s: list[float] = field(default_factory=list)
    step_end_s: list[float] = field(default_factory=list)
    trained_tokens: float = 0.0
    trained_squares: float = 0.0
    trained_rollouts: int = 0
    dispatched_tokens: float = 0.0
    dispatched_rollouts: int = 0
    dropped_rollouts: int = 0
    requeued_rollouts: int = 0
    published_s: dict[int, float] = field(default_factory=dict)
    arrivals_s: dict[int, list[float]] = field(default_factory=dict)
    egress_usd: float = 0.0
    preemptions: int = 0

    def published(self, version: int, t_s: float) -> None:
        """A version was published."""
        self.published_s.setdefault(version, t_s)

    def arrived(self, version: int, t_s: float, up_since_s: float = 0.0) -> None:
        """A worker has a version. One that came up after the publication says nothing of its spread."""
        published_s = self.published_s.get(version)
        if published_s is not None and up_since_s <= published_s:
            self.arrivals_s.setdefault(version, []).append(t_s - published_s)

    def dissemination_tails_s(self) -> dict[int, float]:
        """Seconds from publication until the last of the workers up then had it, per version."""
        return {version: max(times) for version, times in self.arrivals_s.items() if times}


def staleness_summary(counts: Counter[int]) -> dict[str, Any]:
    """Mean, p50, p99, max and the histogram, over trained rollouts."""
    if not counts:
        return {"mean": 0.0, "p50": 0, "p99": 0, "max": 0, "histogram": {}}
    values = np.array(sorted(counts))
    weights = np.array([counts[int(v)] for v in values], dtype=float)
    cumulative = np.cumsum(weights) / weights.sum()
    return {
        "mean": float(np.dot(values, weights) / weights.sum()),
        "p50": int(values[np.searchsorted(cumulative, 0.50 - 1e-12)]),
        "p99": int(values[np.searchsorted(cumulative, 0.99 - 1e-12)]),
        "max": int(values[-1]),
        "histogram": {str(int(v)): int(counts[int(v)]) for v in values},
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and max of a list; zeros when empty."""
    if not values:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "max": float(max(values))}
