"""What a simulated world is made of. Built from a configuration and traces by `echo2.scenario`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths
from echo2.policy.settings import SchedulerSettings

Interval = tuple[float, float]


@dataclass(frozen=True)
class LearnerModel:
    """The learner's step: `tokens_per_s` makes it proportional to the batch (0: always `train_s`).

    `cv` is the coefficient of variation of a lognormal factor with mean 1 on top.
    """

    train_s: float
    tokens_per_s: float = 0.0
    cv: float = 0.0


@dataclass(frozen=True)
class LinkShape:
    """How a link's rate varies: a step function of factors around 1, repeated every `period_s`.

    `t_s[i]` (first 0, ascending) is when `factor[i]` begins; 0 is an outage. `offset_s` is where in the
    series the run begins.
    """

    t_s: tuple[float, ...]
    factor: tuple[float, ...]
    period_s: float
    offset_s: float = 0.0
    trace_id: str = ""

    def at(self, t_s: float) -> float:
        """The factor at run time `t_s`."""
        phase = (t_s + self.offset_s) % self.period_s
        return self.factor[bisect_right(self.t_s, phase) - 1]

    def next_change_s(self, t_s: float) -> float:
        """The run time after `t_s` at which the factor changes next."""
        phase = (t_s + self.offset_s) % self.period_s
        index = bisect_right(self.t_s, phase)
        until = (self.t_s[index] if index < len(self.t_s) else self.period_s) - phase
        # A rounding remainder of the modulo must not stop the clock.
        return t_s + max(until, 1e-6)


@dataclass(frozen=True)
class NicBucket:
    """A cloud NIC's token bucket: `burst_bps` while `bucket_bits` last, then `sustained_bps`."""

    burst_bps: float
    sustained_bps: float
    bucket_bits: float


@dataclass(frozen=True)
class Availability:
    """When a worker can be had: `up` intervals (start, end) in seconds, repeated every `period_s`."""

    up: tuple[Interval, ...]
    period_s: float
    offset_s: float = 0.0
    trace_id: str = ""


@dataclass(frozen=True)
class SimWorker:
    """One worker of the simulated world: its offer, how it decodes, and what happens to it."""

    offer: WorkerOffer
    decode: DecodeModel
    shape: LinkShape | None = None
    bucket: NicBucket | None = None
    availability: Availability | None = None


@dataclass(frozen=True)
class PriceChange:
    """From `t_s` on, workers of `pool` cost `factor` times their first price."""

    t_s: float
    pool: str
    factor: float


@dataclass(frozen=True)
class RelayFault:
    """From `t_s` on a worker harms those it feeds: see `echo2.sim.faults`.

    It corrupts what it passes on, stalls (it sends nothing, without leaving), or lies: its uplink carries
    `factor` of what its offer says.
    """

    t_s: float
    worker_id: str
    kind: Literal["corrupt", "stall", "lie"]
    factor: float = 0.1


@dataclass(frozen=True)
class WorldInputs:
    """A whole world. `transport`: transfers as fluid flows or chunk by chunk."""

    settings: SchedulerSettings
    workers: tuple[SimWorker, ...]
    learner: LearnerModel
    lengths: TokenLengths
    prompt_tokens: float
    learner_shape: LinkShape | None = None
    learner_bucket: NicBucket | None = None
    price_changes: tuple[PriceChange, ...] = field(default=())
    transport: Literal["fluid", "chunk"] = "fluid"
    relay_faults: tuple[RelayFault, ...] = ()
