"""What the activation rules know of a worker, what they answer, and the LP bound printed beside each answer.

Used by `cover` (whole pool) and `revise` (running pool); pure data and one closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["exact", "greedy"]
Reason = tuple[str, str]

# Sums of rates are floats: a cover short by less than this share of the need is a cover.
COVER_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may be paid for: price (GPU and its egress, USD/h) and rate (fresh rollouts/s).

    `active`: paid for now. `locked`: within its minimum lease, must stay. `startup_s`: seconds paid from
    the start, or from a preemption, until it produces. `preemptions_per_h`: how often it is taken away.
    """

    worker_id: str
    cost_usd_per_h: float
    rate: float
    active: bool = False
    locked: bool = False
    startup_s: float = 0.0
    preemptions_per_h: float = 0.0

    def __post_init__(self) -> None:
        if not (self.cost_usd_per_h > 0 and math.isfinite(self.cost_usd_per_h)):
            raise ValueError(f"{self.worker_id}: cost_usd_per_h must be > 0, got {self.cost_usd_per_h}")
        if not (self.rate >= 0 and math.isfinite(self.rate)):
            raise ValueError(f"{self.worker_id}: rate must be >= 0, got {self.rate}")
        if not (self.startup_s >= 0 and self.preemptions_per_h >= 0):
            raise ValueError(f"{self.worker_id}: startup_s and preemptions_per_h must be >= 0")

    @property
    def effective_rate(self) -> float:
        """Rollouts/s averaged over preemptions: rate x up-share (ours).

        Renewal reward: a cycle is up for 1/preemptions_per_h hours and starting again for startup_s, so
        up-share = 1 / (1 + preemptions_per_h * startup_s / 3600).
        """
        return self.rate / (1.0 + self.preemptions_per_h * self.startup_s / 3600.0)

    @property
    def usd_per_rollout_rate(self) -> float:
        """USD/h for one rollout/s; infinite for a worker that makes nothing."""
        rate = self.effective_rate
        return self.cost_usd_per_h / rate if rate > 0 else math.inf


@dataclass(frozen=True)
class Activation:
    """A set of workers to pay for, beside the LP bound of the same problem.

    `rate` is the sum of effective rates (rollouts/s), `ratio` cost over bound, `shortfall` the rollouts/s
    missing when the pool cannot cover the need (then everything useful is chosen, and the bound is that
    of the rate the pool has). `note` says why another method was used than asked for.
    """

    chosen: tuple[str, ...]
    cost_usd_per_h: float
    rate: float
    needed: float
    bound_usd_per_h: float
    ratio: float
    method: Method
    feasible: bool
    reasons: tuple[Reason, ...]
    shortfall: float = 0.0
    note: str = ""


def covers(rate: float, needed: float) -> bool:
    """Whether `rate` meets `needed`, up to the rounding of a sum."""
    return rate >= needed * (1.0 - COVER_TOLERANCE)


def by_price_per_rate(candidate: Candidate) -> tuple[float, float, str]:
    """Sort key: cheapest rollout first, then cheapest worker, then name."""
    return (candidate.usd_per_rollout_rate, candidate.cost_usd_per_h, candidate.worker_id)


def lp_bound(candidates: Sequence[Candidate], needed: float) -> float:
    """USD/h that no set of workers covering `needed` (rollouts/s) can undercut.

    Fractional covering knapsack in closed form (Dantzig): locked workers whole, then the cheapest per
    rollout first, the last one in part. A need beyond the pool is cut to what the pool has.
    """
    locked = [c for c in candidates if c.locked]
    cost = sum(c.cost_usd_per_h for c in locked)
    missing = needed - sum(c.effective_rate for c in locked)
    free = (c for c in candidates if not c.locked and c.effective_rate > 0)
    for candidate in sorted(free, key=by_price_per_rate):
        if missing <= 0:
            break
        cost += candidate.cost_usd_per_h * min(1.0, missing / candidate.effective_rate)
        missing -= candidate.effective_rate
    return cost


def make_activation(
    candidates: Sequence[Candidate],
    chosen: Iterable[Candidate],
    needed: float,
    method: Method,
    reasons: Iterable[Reason] | None = None,
    note: str = "",
) -> Activation:
    """Put a chosen set beside its bound; without `reasons`, each worker is given its price per rollout."""
    members = sorted(chosen, key=lambda c: c.worker_id)
    rate = math.fsum(c.effective_rate for c in members)
    cost = math.fsum(c.cost_usd_per_h for c in members)
    bound = lp_bound(candidates, needed)
    feasible = covers(rate, needed)
    if reasons is None:
        reasons = ((c.worker_id, why_chosen(c)) for c in members)
    return Activation(
        chosen=tuple(c.worker_id for c in members),
        cost_usd_per_h=cost,
        rate=rate,
        needed=needed,
        bound_usd_per_h=bound,
        ratio=cost / bound if bound > 0 else 1.0,
        method=method,
        feasible=feasible,
        reasons=tuple(reasons),
        shortfall=0.0 if feasible else needed - rate,
        note=note,
    )


def why_chosen(candidate: Candidate) -> str:
    """One line for a chosen worker."""
    if candidate.locked:
        return "within its minimum lease"
    return (
        f"{candidate.effective_rate:.4g} rollouts/s at {candidate.cost_usd_per_h:.4g} USD/h: "
        f"{candidate.usd_per_rollout_rate / 3.6:.4g} USD per 1000 rollouts"
    )
