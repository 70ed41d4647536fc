"""What the scheduler is told. Each fact carries the time it happened, in seconds since the run began.

A driver (the simulation or the live runtime) turns happenings into these and nothing else reaches the
scheduler. Units are in the names. The JSON form is in `echo2.policy.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """A rollout worker that can be had: what it costs, makes and how it is connected.

    `rollouts_per_s` is mu_i with all `slots` sequences running; `group_s`, the mean time until a whole
    group is done, and `generation_tail_s` (p99 of a rollout) are seconds then. `site` names a row of the
    scheduler's `LinkTable`.
    `preemptions_per_h` is the rate at which workers of this pool vanish; `startup_s` the time from the
    decision to start it until it can take a snapshot, paid but unproductive.
    The rates of its link are levels, around which it varies: a transfer takes `link_slowness` times as long
    on average, and for `link_out_share` of the time, `link_out_s` at a stretch, the link carries nothing.
    """

    worker_id: str
    pool: str
    gpu: str
    site: str
    price_usd_per_h: float
    rollouts_per_s: float
    slots: int
    group_s: float
    generation_tail_s: float
    uplink_bps: float
    downlink_bps: float
    can_relay: bool = True
    startup_s: float = 0.0
    min_lease_s: float = 0.0
    preemptions_per_h: float = 0.0
    link_slowness: float = 1.0
    link_out_share: float = 0.0
    link_out_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run begins (or is resumed) with the learner at `version`.

    A resumed run tells the ordinal of the first fresh prompt, the id of the first new group and, in order,
    the (prompt, attempt) that are to be generated again.
    """

    t_s: float
    version: int = 0
    next_prompt: int = 0
    next_group: int = 0
    again: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupRecovered:
    """Before `RunStarted`: a group was complete, and not trained, when the run was last stopped.

    `oldest_version` over all its rollouts; `tokens` of all of them.
    """

    t_s: float
    group_id: int
    worker_id: str
    prompt: int
    attempt: int
    tokens: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class WorkerOffered:
    """A worker can be rented from now on, or its offer has changed."""

    t_s: float
    offer: WorkerOffer


@dataclass(frozen=True, slots=True)
class OfferWithdrawn:
    """A worker can no longer be rented. One that is running is told by `WorkerLeft`."""

    t_s: float
    worker_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker has come up holding the weights of `holds_version`.

    `incarnation` grows by one each time the same worker starts anew; a join with an incarnation that is
    not newer is a duplicate and changes nothing.
    """

    t_s: float
    worker_id: str
    incarnation: int
    holds_version: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker is gone, with everything that ran on it. `cause`: preempted, stopped, failed, ..."""

    t_s: float
    worker_id: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """The price of a worker from now on."""

    t_s: float
    worker_id: str
    price_usd_per_h: float


@dataclass(frozen=True, slots=True)
class RateMeasured:
    """A worker's measured rate (mu_i) replaces the one in its offer."""

    t_s: float
    worker_id: str
    rollouts_per_s: float


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """A worker's measured access rates replace the ones in its offer."""

    t_s: float
    worker_id: str
    uplink_bps: float
    downlink_bps: float


@dataclass(frozen=True, slots=True)
class RolloutFinished:
    """One rollout of a group is complete and accepted at the door.

    `oldest_version` is the oldest version that generated any of its tokens.
    """

    t_s: float
    worker_id: str
    group_id: int
    tokens: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class GroupFailed:
    """A group cannot be completed where it runs: refused by the engine, or by the learner's door."""

    t_s: float
    worker_id: str
    group_id: int
    cause: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The learner has finished an optimiser step and is now at `version`.

    `snapshot_bytes` is what a worker that holds the previously published version must receive to get to
    this one (the full snapshot, or a delta). 0 where this version is not published.
    """

    t_s: float
    version: int
    train_s: float
    snapshot_bytes: float


@dataclass(frozen=True, slots=True)
class SnapshotLive:
    """A worker has verified the snapshot of `version` and generates with it from now on."""

    t_s: float
    worker_id: str
    incarnation: int
    version: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A worker could not get or verify the snapshot of `version`; it keeps the weights it has.

    `source_id` is who it was to come from: the learner for a broadcast, else the peer it was fetched from.
    """

    t_s: float
    worker_id: str
    incarnation: int
    version: int
    source_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class RelayFailed:
    """A worker that receives `version` complains of a relay; the transfer goes on.

    `cause`: gone (cannot be reached), slow (far behind what was promised, or silent) or wrong-bytes (a chunk
    whose digest is not the manifest's).
    """

    t_s: float
    worker_id: str
    version: int
    source_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that the scheduler set (`decisions.SetTimer`) has come due."""

    t_s: float
    name: str


Fact = (
    RunStarted
    | GroupRecovered
    | WorkerOffered
    | OfferWithdrawn
    | WorkerJoined
    | WorkerLeft
    | PriceChanged
    | RateMeasured
    | LinkMeasured
    | RolloutFinished
    | GroupFailed
    | StepFinished
    | SnapshotLive
    | SnapshotFailed
    | RelayFailed
    | TimerFired
)
