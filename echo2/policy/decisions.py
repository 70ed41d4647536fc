"""What the scheduler decides. A driver carries each out and reports what came of it as facts.

Every decision says why (`reason`) and, where there is one, the bound it was held against.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo2.policy.broadcast import BroadcastPlan


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Rent and start a worker. The driver answers with `WorkerJoined`, or `WorkerLeft` if it fails.

    `bound`: the least USD/h at which the required rate can be had (LP bound of the covering problem).
    """

    t_s: float
    worker_id: str
    reason: str
    bound: float


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Stop paying for a worker: nothing runs on it any more. Answered by `WorkerLeft`."""

    t_s: float
    worker_id: str
    reason: str
    bound: float


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Generate the `rollouts` of one prompt on one worker.

    `prompt` is the ordinal in the data set, `attempt` counts from 0, `version` is the snapshot the worker
    holds now. `bound` is the admission gate: rollouts that may have been admitted for this version.
    """

    t_s: float
    group_id: int
    worker_id: str
    prompt: int
    attempt: int
    rollouts: int
    version: int
    reason: str
    bound: int


@dataclass(frozen=True, slots=True)
class CancelGroup:
    """Stop a running group: it can no longer be trained within the staleness bound."""

    t_s: float
    group_id: int
    worker_id: str
    reason: str
    bound: int


@dataclass(frozen=True, slots=True)
class DropGroup:
    """A group will not be trained. `requeued`: its prompt goes to the front of the queue."""

    t_s: float
    group_id: int
    prompt: int
    staleness: int
    requeued: bool
    reason: str
    bound: int


@dataclass(frozen=True, slots=True)
class TrainStep:
    """Train one step at `version` on these groups. `staleness[i]` belongs to `group_ids[i]`."""

    t_s: float
    version: int
    group_ids: tuple[int, ...]
    staleness: tuple[int, ...]
    reason: str
    bound: int


@dataclass(frozen=True, slots=True)
class PublishSnapshot:
    """Send the snapshot of `version` to `plan.order` along the plan (push).

    `parent_version` is the version all targets hold when the payload is the deltas since it, -1 when it is
    the newest full snapshot (`VersionLedger.newest_full`) and the deltas since that. `bound` is the least
    time in which the links allow it, seconds.
    """

    t_s: float
    version: int
    parent_version: int
    plan: BroadcastPlan
    reason: str
    bound: float


@dataclass(frozen=True, slots=True)
class Reroute:
    """Workers that receive `version` along a plan get what some relays owed them another way.

    `without` are all relays of the plan that these workers are not to use any more, those of earlier
    decisions too: `broadcast.sources_of(plan, worker, chunks, without)` says from whom each chunk comes.
    `bound` is the least time in which the links allow the whole payload without these relays, seconds.
    With `shares` (by the plan's order) a tree goes on as stripes: the plan is then
    `broadcast.striped(plan, shares, direct_share)`, for these and all later decisions of the version.
    """

    t_s: float
    version: int
    worker_ids: tuple[str, ...]
    without: tuple[str, ...]
    reason: str
    bound: float
    shares: tuple[float, ...] = ()
    direct_share: float = 0.0


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Let a worker fetch the snapshot of `version` from `source_id` (pull).

    `helpers` receive or hold the same version and may be asked for chunks too, the rarest first; nobody
    counts on them (the simulator lets the source send all).
    """

    t_s: float
    version: int
    parent_version: int
    worker_id: str
    source_id: str
    size_bytes: float
    reason: str
    bound: float
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortTransfer:
    """Give up sending the snapshot of `version` to a worker."""

    t_s: float
    worker_id: str
    version: int
    reason: str
    bound: float


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report `TimerFired(name)` at `at_s`. Setting a name again moves its timer."""

    t_s: float
    name: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class FinishRun:
    """The run is over; every worker has been told to stop."""

    t_s: float
    version: int
    reason: str


Decision = (
    StartWorker
    | StopWorker
    | StartGroup
    | CancelGroup
    | DropGroup
    | TrainStep
    | PublishSnapshot
    | Reroute
    | FetchSnapshot
    | AbortTransfer
    | SetTimer
    | FinishRun
)
