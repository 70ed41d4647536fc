"""What a run is measured by: counters filled by the world (simulated or live), and summaries of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echo2.policy.decisions import PublishSnapshot, Reroute


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
class Dissemination:
    """One broadcast of a version: what was planned, and when those of the plan had it.

    `parent`: the version the payload is a delta against, -1 when the full snapshot is sent. `predicted_s`
    is the plan's tail and `bound_s` the least one that the links allow. `arrived_s`: seconds from the
    publication until each receiver had it; who left, or fetched another version instead, is not in it.
    """

    version: int
    parent: int
    payload_bytes: float
    topology: str
    receivers: int
    predicted_s: float
    bound_s: float
    began_s: float
    reroutes: int = 0
    arrived_s: dict[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The record as JSON data; `achieved_s`: the tail over those that have it, None before the first."""
        achieved = max(self.arrived_s.values(), default=None)
        return {
            "version": self.version,
            "parent": self.parent,
            "payload_bytes": self.payload_bytes,
            "topology": self.topology,
            "receivers": self.receivers,
            "arrived": len(self.arrived_s),
            "reroutes": self.reroutes,
            "predicted_s": self.predicted_s,
            "bound_s": self.bound_s,
            "achieved_s": achieved,
        }


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
    disseminations: list[Dissemination] = field(default_factory=list)
    _receiving: dict[str, Dissemination] = field(default_factory=dict)

    def published(self, version: int, t_s: float) -> None:
        """A version was published."""
        self.published_s.setdefault(version, t_s)

    def arrived(self, version: int, t_s: float, up_since_s: float = 0.0) -> None:
        """A worker has a version. One that came up after the publication says nothing of its spread."""
        published_s = self.published_s.get(version)
        if published_s is not None and up_since_s <= published_s:
            self.arrivals_s.setdefault(version, []).append(t_s - published_s)

    def broadcast(self, decision: PublishSnapshot) -> None:
        """A broadcast begins. Versions sent along more than one plan have a record for each."""
        plan = decision.plan
        self.published(decision.version, decision.t_s)
        record = Dissemination(
            decision.version, decision.parent_version, plan.size_bytes, plan.name, len(plan.order),
            plan.time_s, plan.bound_s, decision.t_s,
        )  # fmt: skip
        self.disseminations.append(record)
        self._receiving.update(dict.fromkeys(plan.order, record))

    def rerouted(self, decision: Reroute) -> None:
        """Receivers of a broadcast get a part another way."""
        for record in {id(r): r for r in map(self._receiving.get, decision.worker_ids) if r}.values():
            record.reroutes += record.version == decision.version

    def live(self, version: int, t_s: float, worker_id: str, up_since_s: float = 0.0) -> None:
        """A worker generates with a version from now on."""
        self.arrived(version, t_s, up_since_s)
        record = self._receiving.get(worker_id)
        if record is not None and record.version == version and up_since_s <= record.began_s:
            record.arrived_s.setdefault(worker_id, t_s - record.began_s)

    def dissemination_rows(self) -> list[dict[str, Any]]:
        """Every broadcast: version, parent, payload, topology, predicted, bound and achieved seconds."""
        return [record.row() for record in self.disseminations]

    def dissemination_summary(self) -> dict[str, Any]:
        """Predicted / bound and achieved / predicted over all broadcasts that have reached somebody."""
        rows = [r for r in self.dissemination_rows() if r["achieved_s"] is not None and r["bound_s"] > 0]
        return {
            "broadcasts": len(self.disseminations),
            "reroutes": sum(record.reroutes for record in self.disseminations),
            "predicted_over_bound": percentiles([r["predicted_s"] / r["bound_s"] for r in rows]),
            "achieved_over_predicted": percentiles([r["achieved_s"] / r["predicted_s"] for r in rows]),
        }

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
