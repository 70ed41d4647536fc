"""Small changes to a running pool, with hysteresis: start what is missing, stop what is redundant, replace
what has become too dear.

The scheduler calls `revise` whenever a worker joins, leaves, slows down or changes price, so it costs
O(n log n) and no solver. Every move depends only on who is active, and `revise` moves until no move is
left: asked again with the same facts it changes nothing, so it cannot flip-flop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from echo2.policy.activation.candidate import (
    Activation,
    Candidate,
    Reason,
    covers,
    make_activation,
    why_chosen,
)

# Newcomers weighed against running workers at each change; the rest are dearer per rollout.
NEWCOMERS_TRIED = 4


@dataclass(frozen=True, slots=True)
class HysteresisPolicy:
    """How unwilling `revise` is to change a running pool (ours).

    A replacement must save, over `horizon_s` and after paying for its own start-up, more than
    `switch_gain` of what the replaced workers cost. A worker is stopped only if the others make
    `1 + slack` times the need.
    """

    switch_gain: float = 0.10
    horizon_s: float = 3600.0
    slack: float = 0.0

    def __post_init__(self) -> None:
        if not (self.switch_gain >= 0 and self.horizon_s > 0 and self.slack >= 0):
            raise ValueError(f"needs switch_gain >= 0, horizon_s > 0, slack >= 0, got {self}")


@dataclass(frozen=True)
class Revision:
    """Workers to start and to stop, each with its reason, and the pool that results.

    `handover` pairs a stopped worker with the started one that replaces it: to lose no rollouts, stop the
    first when the second is live.
    """

    start: tuple[Reason, ...]
    stop: tuple[Reason, ...]
    activation: Activation
    handover: tuple[tuple[str, str], ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.start or self.stop)


@dataclass
class _Pool:
    """The pool while moves are tried on it: who is in, their rate, and why each changed."""

    members: dict[str, Candidate]
    outside: dict[str, Candidate]
    needed: float
    policy: HysteresisPolicy
    rate: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    replaced_by: dict[str, str] = field(default_factory=dict)

    @property
    def floor(self) -> float:
        """Rollouts/s that stopping must leave: the need with its slack, or all there is if that is less."""
        return min(self.rate, self.needed * (1.0 + self.policy.slack))

    def add(self, candidate: Candidate, why: str) -> None:
        self.members[candidate.worker_id] = self.outside.pop(candidate.worker_id)
        self.rates[candidate.worker_id] = candidate.effective_rate
        # An exact sum, so that the same members always have the same rate, in whatever order they came.
        self.rate = math.fsum(self.rates.values())
        self.why[candidate.worker_id] = why

    def drop(self, candidate: Candidate, why: str, replaced_by: str = "") -> None:
        self.outside[candidate.worker_id] = self.members.pop(candidate.worker_id)
        del self.rates[candidate.worker_id]
        self.rate = math.fsum(self.rates.values())
        self.why[candidate.worker_id] = why
        self.replaced_by[candidate.worker_id] = replaced_by


def revise(
    candidates: Sequence[Candidate], needed: float, policy: HysteresisPolicy | None = None
) -> Revision:
    """What to start and stop so that the running pool covers `needed` rollouts/s and stays cheap.

    A worker's active flag is the present state; a locked one is never stopped, a locked one that is not
    active is started.
    """
    policy = policy or HysteresisPolicy()
    pool = _Pool({}, {c.worker_id: c for c in candidates}, needed, policy)
    if len(pool.outside) != len(candidates):
        raise ValueError("worker_id must be unique within a pool")
    for candidate in candidates:
        if candidate.active or candidate.locked:
            pool.add(candidate, "within its minimum lease")
    _start_missing(pool)
    _stop_redundant(pool)
    # Each replacement lowers the pool's price, so this ends; the range only bounds a long chain of them.
    for _ in range(len(candidates)):
        if not _replace_one(pool):
            break
        _stop_redundant(pool)
    return _as_revision(candidates, pool)


def _usd_per_rollout(candidate: Candidate, policy: HysteresisPolicy) -> tuple[float, float, str]:
    """Sort key of an inactive worker: price per rollout over the horizon, start-up paid but idle."""
    producing = 1.0 - candidate.startup_s / policy.horizon_s
    # One that takes longer to start than the horizon never pays back: after all others, quickest first.
    never_pays = producing <= 0
    share = 1.0 / max(candidate.startup_s, 1e-9) if never_pays else producing
    price = candidate.usd_per_rollout_rate / share
    return (float(never_pays), price, candidate.worker_id)


def _useful_outside(pool: _Pool) -> list[Candidate]:
    useful = (c for c in pool.outside.values() if c.effective_rate > 0)
    return sorted(useful, key=lambda c: _usd_per_rollout(c, pool.policy))


def _start_missing(pool: _Pool) -> None:
    """Start the cheapest inactive workers until the need is covered, then leave out the unneeded ones."""
    if covers(pool.rate, pool.needed):
        return
    started: list[Candidate] = []
    for candidate in _useful_outside(pool):
        missing = pool.needed - pool.rate
        pool.add(candidate, f"short of {missing:.4g} rollouts/s; {why_chosen(candidate)}")
        started.append(candidate)
        if covers(pool.rate, pool.needed):
            break
    for candidate in sorted(started, key=lambda c: (-c.cost_usd_per_h, c.worker_id)):
        if covers(pool.rate - candidate.effective_rate, pool.needed):
            pool.drop(candidate, "")


def _stop_redundant(pool: _Pool) -> None:
    """Stop, the most expensive first, whoever the rest can do without."""
    for candidate in sorted(pool.members.values(), key=lambda c: (-c.cost_usd_per_h, c.worker_id)):
        left = pool.rate - candidate.effective_rate
        if not candidate.locked and covers(left, pool.floor):
            why = f"redundant: {left:.4g} rollouts/s without it, {pool.needed:.4g} needed"
            pool.drop(candidate, why if candidate.effective_rate > 0 else "makes nothing useful")


def _replace_one(pool: _Pool) -> bool:
    """Start the one newcomer that saves most by making running workers redundant, if it saves enough."""
    if not covers(pool.rate, pool.needed):
        return False
    policy = pool.policy
    dearest = sorted(
        (c for c in pool.members.values() if not c.locked),
        key=lambda c: (-c.usd_per_rollout_rate, c.worker_id),
    )
    best: tuple[float, Candidate, list[Candidate]] | None = None
    for newcomer in _useful_outside(pool)[:NEWCOMERS_TRIED]:
        leaving = _made_redundant(dearest, pool.rate + newcomer.effective_rate, pool.floor)
        replaced = sum(c.cost_usd_per_h for c in leaving)
        idle = newcomer.cost_usd_per_h * newcomer.startup_s / policy.horizon_s
        gain = replaced * (1.0 - policy.switch_gain) - newcomer.cost_usd_per_h - idle
        if gain > 1e-9 * replaced and (best is None or gain > best[0]):
            best = (gain, newcomer, leaving)
    if best is None:
        return False
    _, newcomer, leaving = best
    saved = sum(c.cost_usd_per_h for c in leaving) - newcomer.cost_usd_per_h
    pool.add(newcomer, f"replaces {', '.join(c.worker_id for c in leaving)}: saves {saved:.4g} USD/h")
    for candidate in leaving:
        pool.drop(candidate, f"replaced by {newcomer.worker_id}: saves {saved:.4g} USD/h", newcomer.worker_id)
    return True


def _made_redundant(dearest: Iterable[Candidate], rate: float, floor: float) -> list[Candidate]:
    """Who can leave, dearest rollout first, while `floor` stays covered."""
    leaving = []
    for candidate in dearest:
        if covers(rate - candidate.effective_rate, floor):
            leaving.append(candidate)
            rate -= candidate.effective_rate
    return leaving


def _as_revision(candidates: Sequence[Candidate], pool: _Pool) -> Revision:
    """Compare the pool with the active flags; reasons only for what changes and what stays."""
    start = sorted((c.worker_id, pool.why[c.worker_id]) for c in pool.members.values() if not c.active)
    stop = sorted((c.worker_id, pool.why[c.worker_id]) for c in pool.outside.values() if c.active)
    stay = ((c.worker_id, "still needed") for c in pool.members.values() if c.active and not c.locked)
    held = ((c.worker_id, "within its minimum lease") for c in pool.members.values() if c.active and c.locked)
    activation = make_activation(
        candidates, pool.members.values(), pool.needed, "greedy", sorted([*start, *stop, *stay, *held])
    )
    started = {worker for worker, _ in start}
    handover = tuple((w, pool.replaced_by[w]) for w, _ in stop if pool.replaced_by.get(w) in started)
    return Revision(tuple(start), tuple(stop), activation, handover)
