"""What `predict` is asked and what it answers. Frozen data with units in the names, no computation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from echo2.policy.capacity import Reading, check_publish_period
from echo2.policy.generation import DecodeModel, TokenLengths, steady_rate

Binding = Literal["learner", "rollouts", "freshness", "broadcast"]


@dataclass(frozen=True)
class WorkerGroup:
    """`count` identical workers: decode model, sequences each keeps running, seconds to a live snapshot.

    `up_share` (0, 1] slows them down by the time lost to preemptions.
    """

    count: int
    model: DecodeModel
    slots: int
    broadcast_s: float
    up_share: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.slots < 1 or self.broadcast_s < 0 or not 0 < self.up_share <= 1:
            raise ValueError(f"needs count, slots >= 1, broadcast_s >= 0, 0 < up_share <= 1, got {self}")


@dataclass(frozen=True)
class SteadyProblem:
    """A run with constant facts: S, kappa (steps), B rollouts a step in groups of G, workers, lengths.

    `train_s` and `swap_pause_s` in seconds; `reading` says whether workers generate while a snapshot
    arrives ("overlap") or stop for it ("stall"). Raises UserError for a kappa that deadlocks.
    """

    S: int
    kappa: int
    B: int
    G: int
    train_s: float
    workers: tuple[WorkerGroup, ...]
    lengths: TokenLengths
    prompt_tokens: float = 0.0
    swap_pause_s: float = 0.0
    reading: Reading = "overlap"

    def __post_init__(self) -> None:
        check_publish_period(self.S, self.kappa)
        if self.B < 1 or self.G < 1 or self.B % self.G:
            raise ValueError(f"B = {self.B} must be a positive multiple of G = {self.G}")
        if not (self.train_s > 0 and self.swap_pause_s >= 0 and self.workers):
            raise ValueError("needs train_s > 0, swap_pause_s >= 0 and at least one worker")

    @property
    def total_rate(self) -> float:
        """Rollouts/s of all workers kept full."""
        return math.fsum(group.count * self.worker_rate(group) for group in self.workers)

    def worker_rate(self, group: WorkerGroup) -> float:
        """Rollouts/s of one worker of the group kept full: all its slots run (`generation.steady_rate`)."""
        full = steady_rate(group.model, self.lengths, self.prompt_tokens, group.slots)
        return group.up_share * full.rollouts_per_s


@dataclass(frozen=True)
class SteadyState:
    """What the run settles to, measured over whole publication cycles.

    `worker_utilisation`: rollouts made over what full workers would make. `mean_lag`, `max_lag`: staleness
    in versions of what is trained. `dropped_share`: made but too old to train. `binding`: what to improve.
    """

    steps_per_s: float
    learner_utilisation: float
    worker_utilisation: float
    binding: Binding
    mean_lag: float
    max_lag: int
    step_s: float
    dropped_share: float
