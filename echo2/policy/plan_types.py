"""What the planner is asked and what it answers: plain data, no computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths
from echo2.policy.links import LinkTable
from echo2.policy.selection import ActivationRule
from echo2.policy.worth import Mode, Reading


@dataclass(frozen=True)
class PlanProblem:
    """A pool, a learner and a staleness bound. Units in the names.

    `publish_period` 0 lets the planner choose kappa; `margin` 0 derives the safety margin from the
    variance of lengths and the preemption rate. `best_effort` accepts a learner that idles where S is too
    small to keep it busy, instead of refusing. `full_every` 0 lets the planner choose how often a full
    snapshot is written beside the deltas; `egress_weight` multiplies USD of egress where plans are chosen.
    """

    staleness_bound: int
    publish_period: int
    rollouts_per_step: int
    group_size: int
    total_steps: int
    train_s: float
    train_cv: float
    learner_usd_per_h: float
    full_snapshot_bytes: float
    snapshot_bytes: float
    offers: tuple[WorkerOffer, ...]
    decode: Mapping[str, DecodeModel]
    lengths: TokenLengths
    prompt_tokens: float
    links: LinkTable
    swap_pause_s: float = 0.0
    reading: Reading = "overlap"
    mode: Mode = "push"
    activation: ActivationRule = "cost"
    topologies: tuple[str, ...] = ()
    margin: float = 0.0
    best_effort: bool = False
    full_every: int = 0
    egress_weight: float = 1.0

    @property
    def join_bytes(self) -> float:
        """What a worker fetches that replaces a lost one; 0 where none is lost or all snapshots are full."""
        lost = any(offer.preemptions_per_h > 0 for offer in self.offers)
        return self.full_snapshot_bytes if lost and self.full_snapshot_bytes > self.snapshot_bytes else 0.0


@dataclass(frozen=True)
class PlannedWorkers:
    """The workers of one pool in a plan, with why and what each costs and counts for."""

    pool: str
    gpu: str
    site: str
    on_offer: int
    active: int
    price_usd_per_h: float
    egress_usd_per_h: float
    rollouts_per_s: float
    effective_rollouts_per_s: float
    t_bcast_s: float
    reason: str


@dataclass(frozen=True)
class RunPlan:
    """The planner's answer. `answers` are the planner's questions in words; `to_json` is `plan --json`."""

    S: int
    kappa: int
    smallest_feasible_S: int | None  # noqa: N815 -- the name in `plan --json`
    regime: str
    mu_needed: float
    mu_active: float
    margin: float
    learner_utilisation: float
    steps_per_s: float
    upper_bound_steps_per_s: float
    binding: str
    worst_lag: int
    step_cost_usd: float
    cost_split_usd: dict[str, float]
    t_bcast_s: float
    broadcast: dict[str, Any]
    activation: dict[str, Any]
    workers: tuple[PlannedWorkers, ...]
    chosen: tuple[str, ...]
    answers: tuple[str, ...]
    considered: tuple[dict[str, Any], ...] = ()
    topologies: tuple[str, ...] = ()
    full_every: int = 1

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON data."""
        from dataclasses import asdict

        return asdict(self)
