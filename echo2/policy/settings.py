"""The scheduler's settings: everything about a run that does not change while it lasts.

They head the log of a run, so that replay needs nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo2.policy.links import LinkTable
from echo2.policy.selection import ActivationRule
from echo2.policy.worth import Demand, Mode, Reading

__all__ = ["Mode", "SchedulerSettings"]


@dataclass(frozen=True)
class SchedulerSettings:
    """Units in the names. `train_s` is the expected time of a step, replaced as steps are measured.

    `margin` >= 1 multiplies the rate of rollouts to provide; `serial_rate` is that rate where the learner
    cannot be kept busy (0: whatever gives the least USD per step by a rough estimate). `topologies`
    restricts the broadcast plans (empty: all are tried). `max_attempts` is how often a prompt is generated
    before it is given up.
    `prompts`: how many the data has (0: they never end).
    `full_every`: with every so many publications there is a full snapshot, of the others deltas alone (1:
    always). `egress_weight` multiplies USD of egress where broadcast plans are chosen.
    `join_bytes`: what is planned to be fetched by a worker that comes (0: no more than a snapshot); never
    more than a full snapshot, whose size a live run knows better than its plan.
    `patience` times the expected time is how long anything is waited for.
    """

    staleness_bound: int
    publish_period: int
    rollouts_per_step: int
    group_size: int
    total_steps: int
    train_s: float
    full_snapshot_bytes: float
    snapshot_bytes: float
    learner_usd_per_h: float
    links: LinkTable
    swap_pause_s: float = 0.0
    reading: Reading = "overlap"
    mode: Mode = "push"
    activation: ActivationRule = "cost"
    topologies: tuple[str, ...] = ()
    margin: float = 1.0
    serial_rate: float = 0.0
    max_attempts: int = 5
    prompts: int = 0
    pull_fanout: int = 4
    review_s: float = 600.0
    patience: float = 10.0
    grace_s: float = 30.0
    full_every: int = 1
    egress_weight: float = 1.0
    join_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.staleness_bound < 0:
            raise ValueError(f"staleness bound S = {self.staleness_bound}; it must be >= 0")
        if not 1 <= self.publish_period <= self.staleness_bound + 1:
            raise ValueError(
                f"publication period kappa = {self.publish_period} with S = {self.staleness_bound}: it must "
                f"be between 1 and S + 1 = {self.staleness_bound + 1}, or all workers end up waiting for a "
                "version that is never published"
            )
        if self.full_every < 1:
            raise ValueError(f"full_every = {self.full_every}; it must be >= 1 (1: every snapshot is full)")
        if self.group_size < 1 or self.rollouts_per_step % self.group_size:
            raise ValueError(
                f"group size {self.group_size} does not divide {self.rollouts_per_step} rollouts per step"
            )

    @property
    def groups_per_step(self) -> int:
        """Groups a step trains on."""
        return self.rollouts_per_step // self.group_size

    def full_at(self, version: int) -> bool:
        """Whether a published version is written in full, whatever size its delta has."""
        return version // self.publish_period % self.full_every == 0

    def demand(self, train_s: float) -> Demand:
        """What the learner needs when a step takes `train_s`."""
        return Demand(
            staleness_bound=self.staleness_bound,
            publish_period=self.publish_period,
            rollouts_per_step=self.rollouts_per_step,
            train_s=train_s,
            snapshot_bytes=self.snapshot_bytes,
            swap_pause_s=self.swap_pause_s,
            reading=self.reading,
            margin=self.margin,
            learner_usd_per_h=self.learner_usd_per_h,
            mode=self.mode,
            pull_fanout=self.pull_fanout,
            egress_weight=self.egress_weight,
            join_bytes=min(self.join_bytes, self.full_snapshot_bytes),
        )
