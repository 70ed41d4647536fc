"""The workers as the scheduler sees them: who is on offer, starting, at work or on the way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from echo2.policy.facts import WorkerOffer
from echo2.policy.staleness import Group

NONE = -1


class Status(Enum):
    """Where a worker is in its life. READY ones get work; DRAINING ones finish what they have.

    STOPPING ones have been told to stop and are not counted on any more.
    """

    OFFERED = "offered"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    GONE = "gone"


ACTIVE = (Status.STARTING, Status.READY)
UP = (Status.READY, Status.DRAINING)


@dataclass(slots=True)
class Worker:
    """One worker. `version` it generates with, `inbound` the version on its way to it (-1: none).

    `late` marks one whose snapshot is overdue: no work is held back for it. `broadcast_s` is how long
    a publication takes to reach it, `expected_s` the transfer under way, which is late from `late_s` on and
    given up at `deadline_s`. `shunned` are peers that could not serve it.
    """

    offer: WorkerOffer
    status: Status = Status.OFFERED
    incarnation: int = NONE
    version: int = NONE
    inbound: int = NONE
    late: bool = False
    in_flight: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    shunned: set[str] = field(default_factory=set)
    lease_until_s: float = 0.0
    progress_s: float = 0.0
    watched: bool = False
    broadcast_s: float = 0.0
    expected_s: float = 0.0
    late_s: float = 0.0
    deadline_s: float = 0.0
    failures: int = 0
    withdrawn: bool = False
    leaving_because: str = ""

    @property
    def worker_id(self) -> str:
        """Its name."""
        return self.offer.worker_id

    def reset(self, status: Status) -> None:
        """Forget everything that belonged to the last incarnation."""
        self.status = status
        self.version = self.inbound = NONE
        self.late = self.watched = False
        self.in_flight = 0
        self.failures = 0
        self.groups.clear()
        self.shunned.clear()


class Fleet:
    """All workers by name, in the order of their first offer."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def __getitem__(self, worker_id: str) -> Worker:
        return self._workers[worker_id]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker_id: str) -> Worker | None:
        """The worker of that name, or None."""
        return self._workers.get(worker_id)

    def offer(self, offer: WorkerOffer) -> Worker:
        """Take in a new or changed offer."""
        worker = self._workers.get(offer.worker_id)
        if worker is None:
            worker = self._workers[offer.worker_id] = Worker(offer)
        worker.offer = offer
        worker.withdrawn = False
        if worker.status is Status.GONE:
            worker.reset(Status.OFFERED)
        return worker

    def amend(self, worker_id: str, **changes: float) -> bool:
        """Change fields of a worker's offer; False for a worker nobody has offered."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        worker.offer = replace(worker.offer, **changes)  # type: ignore[arg-type]
        return True

    def in_status(self, *status: Status) -> list[Worker]:
        """The workers in one of these states."""
        return [worker for worker in self._workers.values() if worker.status in status]

    def active(self) -> list[Worker]:
        """Workers that are paid for and not on their way out."""
        return self.in_status(*ACTIVE)
