"""Departures: how a worker leaves, in an orderly way or at once, and what becomes of what it was doing.

Called by the scheduler. A draining worker finishes the groups it has; of one that is taken down they go to
others, and so does what it was serving.
"""

from __future__ import annotations

from echo2.policy.decisions import Decision, StopWorker
from echo2.policy.dispatch import Dispatch
from echo2.policy.fleet import Status, Worker
from echo2.policy.publication import Publication
from echo2.policy.roster import Roster


class Departures:
    """Carries no clock: the time comes with every call."""

    def __init__(self, dispatch: Dispatch, publication: Publication, roster: Roster) -> None:
        self._dispatch = dispatch
        self._publication = publication
        self._roster = roster

    def drain(self, t_s: float, leaving: list[tuple[Worker, str]], out: list[Decision]) -> None:
        """Let workers finish what they have and then stop, each for its reason."""
        for worker, reason in leaving:
            worker.status = Status.DRAINING
            worker.leaving_because = reason
            self.stop_if_idle(t_s, worker, out)
        self._dispatch.recount_claims()

    def stop_if_idle(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """Stop a draining worker on which nothing runs any more."""
        if worker.status is Status.DRAINING and not worker.groups:
            bound = self._roster.bound_usd_per_h
            out.append(StopWorker(t_s, worker.worker_id, worker.leaving_because, bound))
            worker.status = Status.STOPPING
            self._publication.gone(t_s, worker, out)

    def take_down(self, t_s: float, worker: Worker, cause: str, out: list[Decision]) -> None:
        """A worker is gone: its groups go to others."""
        worker.status = Status.STOPPING
        for group in list(worker.groups.values()):
            self._dispatch.take_back(t_s, group, f"worker {worker.worker_id}: {cause}", out)
        self._publication.gone(t_s, worker, out)

    def expel(self, t_s: float, worker: Worker, cause: str, out: list[Decision]) -> None:
        """Give a worker up at once: its groups go to others, and it is stopped."""
        self.take_down(t_s, worker, cause, out)
        self._roster.lost(t_s, worker, cause)
        self.drain(t_s, [(worker, cause)], out)
