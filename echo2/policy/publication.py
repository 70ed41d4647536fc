"""Publication: who is sent which snapshot, along which plan or from which holder, and until when.

Called by the scheduler. Push: the learner sends along the broadcast plan to every worker that is not
already receiving. Pull: each worker fetches from a holder (the learner or a peer that has the version),
at most `pull_fanout` at a time from one holder. In both modes a worker receives one snapshot at a time;
when it is done and a newer one has been published meanwhile, it is sent that one, skipping what lies
between. A late joiner or straggler fetches from the holder that is cheapest, then quickest, for it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.decisions import AbortTransfer, Decision, FetchSnapshot, PublishSnapshot, SetTimer
from echo2.policy.fleet import NONE, UP, Fleet, Status, Worker
from echo2.policy.links import LEARNER
from echo2.policy.provision import plan_broadcast, snapshot_deadline_s
from echo2.policy.settings import SchedulerSettings
from echo2.policy.staleness import VersionLedger

MAX_FAILURES = 3


class Publication:
    """Carries no clock: the time comes with every call."""

    def __init__(self, settings: SchedulerSettings, fleet: Fleet, ledger: VersionLedger) -> None:
        self._settings = settings
        self._fleet = fleet
        self._ledger = ledger
        self._plans: dict[tuple[object, ...], tuple[BroadcastPlan, str]] = {}
        self._serving: dict[str, int] = {}
        self._source: dict[str, str] = {}
        self._waiting: list[str] = []
        self.in_transit = 0

    def publish(self, t_s: float, payload_bytes: float, train_s: float, out: list[Decision]) -> None:
        """Publish the learner's version to every worker that is up and not receiving."""
        self._ledger.publish(payload_bytes)
        free = [worker for worker in self._fleet.in_status(*UP) if worker.inbound == NONE]
        if self._settings.mode == "pull":
            self._waiting = [worker.worker_id for worker in _fastest_first(free)]
            self._serve_waiting(t_s, out)
            return
        classes: dict[tuple[float, int], list[Worker]] = {}
        for worker in free:
            need = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
            classes.setdefault(need, []).append(worker)
        for (size_bytes, parent), workers in classes.items():
            self._push(t_s, workers, size_bytes, parent, train_s, out)

    def catch_up(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """Get the newest published version to a worker that lacks it and is not receiving."""
        if worker.inbound != NONE or worker.version >= self._ledger.published:
            return
        if self._settings.mode == "pull":
            self._waiting.append(worker.worker_id)
            self._serve_waiting(t_s, out)
            return
        self._fetch(t_s, worker, self._best_holder(worker), out)

    def live(self, t_s: float, worker: Worker, version: int, out: list[Decision]) -> None:
        """A worker generates with `version` now; if that is no longer the newest, send on."""
        self._release(worker)
        worker.version = max(worker.version, version)
        worker.failures = 0
        worker.shunned.clear()
        self.catch_up(t_s, worker, out)
        self._serve_waiting(t_s, out)

    def concerns(self, worker: Worker, version: int, source: str) -> bool:
        """Whether news of this transfer is about the one under way, not one that was replaced."""
        return worker.inbound == version and self._source.get(worker.worker_id, LEARNER) == source

    def failed(self, t_s: float, worker: Worker, out: list[Decision]) -> bool:
        """A transfer failed or is overdue. False when the worker has failed too often to go on.

        What a peer could not serve is fetched from another holder and is not the worker's failure.
        """
        source = self._source.get(worker.worker_id, LEARNER)
        self._release(worker)
        if source == LEARNER:
            worker.failures += 1
        else:
            worker.shunned.add(source)
        if worker.failures >= MAX_FAILURES:
            return False
        self.catch_up(t_s, worker, out)
        self._serve_waiting(t_s, out)
        return True

    def gone(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """A worker left: it no longer receives, and what it was serving is fetched elsewhere."""
        self._release(worker)
        orphans = [name for name, source in self._source.items() if source == worker.worker_id]
        worker.status = Status.GONE
        for name in orphans:
            orphan = self._fleet[name]
            self._abort(t_s, orphan, f"its source {worker.worker_id} is gone", out)
            self._release(orphan)
            self.catch_up(t_s, orphan, out)
        self._serving.pop(worker.worker_id, None)
        self._serve_waiting(t_s, out)

    def late(self, t_s: float, version: int, out: list[Decision]) -> bool:
        """Find the workers that should have `version` by now, and send them the rest another way.

        A broadcast is as slow as its slowest relay; a worker it has kept waiting fetches what it lacks from
        the best holder instead (what has arrived is kept). True if any is newly late.
        """
        found = [w for w in self._fleet if w.inbound == version and not w.late and t_s >= w.late_s]
        for worker in found:
            if worker.worker_id not in self._source:
                deadline_s = worker.deadline_s
                self._abort(t_s, worker, f"version {version} is late, the rest is fetched", out)
                self._release(worker)
                self.catch_up(t_s, worker, out)
                worker.deadline_s = max(worker.deadline_s, deadline_s)
            worker.late = True
        return bool(found)

    def overdue(self, t_s: float, version: int, out: list[Decision]) -> list[Worker]:
        """Workers whose deadline for `version` has passed; their transfers are aborted."""
        workers = [w for w in self._fleet if w.inbound == version and t_s >= w.deadline_s]
        for worker in workers:
            patience = f"{self._settings.patience:g}x the expected time"
            self._abort(t_s, worker, f"version {version} has not arrived after {patience}", out)
        return workers

    def _abort(self, t_s: float, worker: Worker, reason: str, out: list[Decision]) -> None:
        out.append(AbortTransfer(t_s, worker.worker_id, worker.inbound, reason, worker.expected_s))

    def _push(
        self,
        t_s: float,
        workers: list[Worker],
        size_bytes: float,
        parent: int,
        train_s: float,
        out: list[Decision],
    ) -> None:
        plan, why = self._plan(workers, size_bytes, train_s)
        version = self._ledger.published
        out.append(PublishSnapshot(t_s, version, parent, plan, why, plan.bound_s))
        together = len(workers) > 1 or len(self._fleet.in_status(*UP)) == 1
        for name, seconds in zip(plan.order, plan.receiver_s):
            worker = self._fleet[name]
            self._receiving(t_s, worker, version, seconds)
            # A straggler sent to alone says nothing of how long a publication takes to reach it.
            if together:
                worker.broadcast_s = seconds
        self._set_deadlines(t_s, str(parent), workers, out)

    def _plan(self, workers: list[Worker], size_bytes: float, train_s: float) -> tuple[BroadcastPlan, str]:
        offers = [worker.offer for worker in workers]
        links = tuple((o.worker_id, o.uplink_bps, o.downlink_bps, o.can_relay) for o in offers)
        tenths = round(10.0 * math.log(train_s))
        key = (size_bytes, tenths, links)
        if key not in self._plans:
            if len(self._plans) > 64:
                self._plans.clear()
            demand = replace(self._settings.demand(train_s), snapshot_bytes=size_bytes)
            settings = self._settings
            self._plans[key] = plan_broadcast(offers, settings.links, demand, settings.topologies)
        return self._plans[key]

    def _fetch(self, t_s: float, worker: Worker, source: str, out: list[Decision]) -> None:
        size, parent = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
        version = self._ledger.published
        bound = self._settings.links.solo_s(worker.offer, size)
        children = self._serving[source] = self._serving.get(source, 0) + 1
        self._source[worker.worker_id] = source
        self._receiving(t_s, worker, version, bound * max(children, self._settings.pull_fanout))
        reason = f"fetch from {source}, which serves {children} at once"
        out.append(FetchSnapshot(t_s, version, parent, worker.worker_id, source, size, reason, bound))
        self._set_deadlines(t_s, worker.worker_id, [worker], out)

    def _serve_waiting(self, t_s: float, out: list[Decision]) -> None:
        waiting, self._waiting = self._waiting, []
        for name in waiting:
            worker = self._fleet.get(name)
            if worker is None or worker.status not in UP or worker.inbound != NONE:
                continue
            if worker.version >= self._ledger.published:
                continue
            source = self._best_holder(worker, self._settings.pull_fanout)
            if source:
                self._fetch(t_s, worker, source, out)
            else:
                self._waiting.append(name)

    def _best_holder(self, worker: Worker, fanout: int = 0) -> str:
        """The holder of the newest version that is cheapest of those in time, else the quickest.

        In time is what does not close the worker's gate (`provision.snapshot_deadline_s`). `fanout` caps how
        many a holder serves at once; "" when all that have the version are busy.
        """
        links = self._settings.links
        size, _ = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
        deadline_s = snapshot_deadline_s([worker.offer], self._settings.demand(self._settings.train_s))
        me = links.index(worker.offer.site)
        best: tuple[bool, float, float, str] | None = None
        for name, site, uplink_bps in self._holders(worker):
            children = self._serving.get(name, 0)
            if fanout and children >= fanout:
                continue
            row = links.index(site)
            rate = min(uplink_bps / (children + 1), float(links.edge_cap_bps[row, me]))
            seconds, usd = 8.0 * size / rate, float(links.egress[row, me])
            in_time = seconds <= deadline_s
            key = (not in_time, usd if in_time else seconds, seconds if in_time else usd, name)
            best = key if best is None or key < best else best
        return best[3] if best else ("" if fanout else LEARNER)

    def _holders(self, worker: Worker) -> list[tuple[str, str, float]]:
        """(name, site, uplink) of who can serve the newest version to a worker."""
        links, newest = self._settings.links, self._ledger.published
        holders = [(LEARNER, links.learner_site, links.learner_uplink_bps)]
        for other in self._fleet.in_status(*UP):
            able = other.version >= newest and other.offer.can_relay and not other.late
            if able and other is not worker and other.worker_id not in worker.shunned:
                holders.append((other.worker_id, other.offer.site, other.offer.uplink_bps))
        return holders

    def _receiving(self, t_s: float, worker: Worker, version: int, seconds: float) -> None:
        settings = self._settings
        worker.inbound = version
        worker.expected_s = seconds
        worker.late_s = t_s + 1.5 * seconds + settings.grace_s
        worker.deadline_s = t_s + settings.patience * seconds + settings.grace_s
        self.in_transit += 1

    def _release(self, worker: Worker) -> None:
        if worker.inbound != NONE:
            worker.inbound = NONE
            self.in_transit -= 1
        worker.late = False
        source = self._source.pop(worker.worker_id, None)
        if source is not None and self._serving.get(source, 0) > 0:
            self._serving[source] -= 1

    def _set_deadlines(self, t_s: float, tag: str, workers: list[Worker], out: list[Decision]) -> None:
        late_s = max(worker.late_s for worker in workers)
        last_s = max(worker.deadline_s for worker in workers)
        name = f"{self._ledger.published}:{tag}"
        out.append(
            SetTimer(t_s, f"late:{name}", late_s, "no work is held back for workers without it by then")
        )
        out.append(SetTimer(t_s, f"transfer:{name}", last_s, "the transfer is given up then"))


def _fastest_first(workers: list[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda w: (-w.offer.rollouts_per_s, w.worker_id))
