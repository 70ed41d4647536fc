"""Publication: who is sent which snapshot, along which plan or from which holder, and until when.

Called by the scheduler. Push: the learner sends along the broadcast plan to every worker, one broadcast
after another; when one is over and newer versions have been published meanwhile, the newest is next and
what lies between is skipped. Pull: each worker fetches from a holder (the learner or a peer that has the
version), at most `pull_fanout` at a time from one holder. A late joiner or straggler fetches in both modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.decisions import Decision, PublishSnapshot, SetTimer
from echo2.policy.facts import RelayFailed, WorkerOffer
from echo2.policy.fleet import NONE, UP, Fleet, Status, Worker
from echo2.policy.links import LEARNER
from echo2.policy.plan_choice import choose_plan, plan_broadcast
from echo2.policy.relays import Relays
from echo2.policy.settings import SchedulerSettings
from echo2.policy.staleness import VersionLedger
from echo2.policy.transfers import LATE, Transfers
from echo2.policy.under_way import UnderWay
from echo2.policy.worth import Demand

MAX_FAILURES = 3
FAR_SLOWER = 2.0
LATE_RELAYED = 1.1


class Publication:
    """Carries no clock: the time comes with every call."""

    def __init__(self, settings: SchedulerSettings, fleet: Fleet, ledger: VersionLedger) -> None:
        self._settings = settings
        self._train_s = settings.train_s
        self._fleet = fleet
        self._ledger = ledger
        self._plans: dict[tuple[object, ...], tuple[BroadcastPlan, str]] = {}
        self._relays = Relays(settings.links, fleet, self._cheapest)
        self._transfers = Transfers(settings, fleet, self._relays)
        self._waiting: list[str] = []
        self._broadcast = UnderWay(fleet)

    @property
    def in_transit(self) -> int:
        """Transfers under way."""
        return self._transfers.in_transit

    def begin(self, t_s: float, out: list[Decision]) -> None:
        """The run begins at the learner's version: those that are up already and lack it get it."""
        for worker in self._fleet.in_status(*UP):
            worker.version = self.known(worker.version)
        self._send_newest(t_s, out)

    def known(self, version: int) -> int:
        """The version a worker says it holds, or none: newer than the newest is from before a resume."""
        return version if 0 <= version <= self._ledger.published else NONE

    def publish(self, t_s: float, payload_bytes: float, train_s: float, out: list[Decision]) -> None:
        """Make the learner's version the newest published one and send it."""
        full = payload_bytes >= self._settings.full_snapshot_bytes
        self._ledger.publish(payload_bytes, full or self._settings.full_at(self._ledger.version))
        self._relays.published()
        self._train_s = train_s
        self._send_newest(t_s, out)

    def _send_newest(self, t_s: float, out: list[Decision]) -> None:
        if self._settings.mode == "pull":
            self._waiting = [worker.worker_id for worker in _fastest_first(self._lacking())]
            self._serve_waiting(t_s, out)
        elif self._broadcast.over(t_s):
            self._push_newest(t_s, out)

    def catch_up(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """Get the newest published version to one worker that lacks it: a joiner, or one left behind."""
        if worker.inbound != NONE or worker.version >= self._ledger.published:
            return
        if self._settings.mode == "pull":
            self._waiting.append(worker.worker_id)
            self._serve_waiting(t_s, out)
            return
        self._fetch_newest(t_s, worker, out)

    def live(self, t_s: float, worker: Worker, version: int, out: list[Decision]) -> None:
        """A worker generates with `version` now. If that is not the newest, it is in the next broadcast.

        A newer one that is on its way to it goes on.
        """
        if worker.inbound <= version:
            self._release(worker)
        worker.version = max(worker.version, version)
        worker.failures = 0
        worker.shunned.clear()
        if self._settings.mode == "pull":
            self.catch_up(t_s, worker, out)
        self._go_on(t_s, out)

    def concerns(self, worker: Worker, version: int, source: str) -> bool:
        """Whether news of this transfer is about the one under way, not one that was replaced."""
        return worker.inbound == version and (self._transfers.source(worker) or LEARNER) == source

    def failed(self, t_s: float, worker: Worker, out: list[Decision]) -> bool:
        """A transfer failed or is overdue. False when the worker has failed too often to go on.

        What a peer could not serve is fetched from another holder and is not the worker's failure.
        """
        source = self._transfers.source(worker)
        self._release(worker)
        if source is None:
            self._relays.without(t_s, [worker.worker_id], f"{worker.worker_id} has failed to receive", out)
        if source in (None, LEARNER):
            worker.failures += 1
        else:
            worker.shunned.add(source)
        if worker.failures >= MAX_FAILURES:
            return False
        self.catch_up(t_s, worker, out)
        self._go_on(t_s, out)
        return True

    def gone(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """A worker left or stops: it no longer receives, and what it was serving is fetched elsewhere."""
        self._release(worker)
        self._relays.without(t_s, [worker.worker_id], f"{worker.worker_id} is gone", out)
        for orphan in self._transfers.stop_serving(worker.worker_id):
            self._fetch_rest(t_s, orphan, f"its source {worker.worker_id} is gone", out)
        self._go_on(t_s, out)

    def relay_failed(self, fact: RelayFailed, out: list[Decision]) -> None:
        """A worker complains of whom it receives from; the transfer itself goes on."""
        worker = self._fleet.get(fact.worker_id)
        if worker is None or worker.status not in UP or worker.inbound != fact.version:
            return
        source = self._transfers.source(worker)
        if source is None:
            self._relays.complaint(fact, out)
        elif source == fact.source_id != LEARNER:
            worker.shunned.add(source)
            self._fetch_rest(fact.t_s, worker, f"its source {source} failed: {fact.cause}", out)

    def late(self, t_s: float, version: int, out: list[Decision]) -> bool:
        """Find the workers that should have `version` by now, and send them the rest another way.

        A broadcast is as slow as its slowest relay; a worker it has kept waiting fetches what it lacks of
        this version from the best holder instead. True if any is newly late.
        """
        found = [w for w in self._fleet if w.inbound == version and not w.late and t_s >= w.late_s]
        waits, slow = t_s, []
        for worker in found:
            broadcast = worker.worker_id in self._broadcast
            if self._transfers.source(worker) is None:
                deadline_s, expected_s = worker.deadline_s, worker.expected_s
                self._fetch_rest(t_s, worker, f"version {version} is late, the rest is fetched", out)
                self._transfers.extend(t_s, worker, deadline_s, out)
                if broadcast:
                    slow.append(worker.worker_id)
                    # What is left takes no longer than the whole was to take, or its own line is down.
                    self._broadcast.finishes(worker.worker_id, t_s + expected_s)
                    waits = max(waits, t_s + expected_s)
            worker.late = True
        self._relays.without(t_s, slow, f"relays have not got version {version} in time themselves", out)
        if waits > t_s:
            name, why = f"late:{version}:rest", "no broadcast is held back for workers without it by then"
            out.append(SetTimer(t_s, name, waits, why))
        self._go_on(t_s, out)
        return bool(found)

    def overdue(self, t_s: float, version: int) -> list[Worker]:
        """Workers whose deadline for `version` has passed."""
        return [w for w in self._fleet if w.inbound == version and t_s >= w.deadline_s]

    def give_up(self, t_s: float, worker: Worker, version: int, out: list[Decision]) -> bool:
        """Abort the transfer of `version` to a worker if it is overdue."""
        if worker.inbound != version or t_s < worker.deadline_s:
            return False
        patience = f"{self._settings.patience:g}x the expected time"
        self._transfers.abort(t_s, worker, f"version {version} has not arrived after {patience}", out)
        return True

    def _go_on(self, t_s: float, out: list[Decision]) -> None:
        """Serve who waits to fetch; when a broadcast is over, begin the next if a newer version is out."""
        self._serve_waiting(t_s, out)
        if self._settings.mode == "push" and self._broadcast.over(t_s):
            self._push_newest(t_s, out)

    def _lacking(self) -> list[Worker]:
        """Workers that get work, are not receiving, and lack the newest published version."""
        newest, ready = self._ledger.published, self._fleet.in_status(Status.READY)
        return [worker for worker in ready if worker.inbound == NONE and worker.version < newest]

    def _push_newest(self, t_s: float, out: list[Decision]) -> None:
        """Broadcast the newest version. One broadcast at a time: two would halve each other.

        Those that hold the same version get the same payload. One to which the snapshot takes longer than a
        whole cycle even alone, and far longer than to most, would hold up all others: it is sent to apart.
        """
        classes: dict[tuple[float, int], list[Worker]] = {}
        limit_s: dict[float, float] = {}
        for worker in self._lacking():
            need = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
            if need[0] not in limit_s:
                limit_s[need[0]] = self._apart_from_s(need[0])
            if self._settings.links.solo_s(worker.offer, need[0]) > limit_s[need[0]]:
                self._fetch_newest(t_s, worker, out)
            else:
                classes.setdefault(need, []).append(worker)
        for (size_bytes, parent), workers in classes.items():
            self._push(t_s, workers, size_bytes, parent, out)

    def _apart_from_s(self, size_bytes: float) -> float:
        """A cycle, or `FAR_SLOWER` times the median of the workers where that is longer (S = 0)."""
        solo = self._settings.links.solo_s
        seconds = sorted(solo(w.offer, size_bytes) for w in self._fleet.in_status(Status.READY))
        return max(self._settings.publish_period * self._train_s, FAR_SLOWER * seconds[len(seconds) // 2])

    def _push(
        self, t_s: float, workers: list[Worker], size_bytes: float, parent: int, out: list[Decision]
    ) -> None:
        version, (plan, why) = self._ledger.published, self._plan(workers, size_bytes)
        out.append(PublishSnapshot(t_s, version, parent, plan, why, plan.bound_s))
        self._relays.begin(version, plan)
        late = LATE if plan.topology == "star" else LATE_RELAYED
        together = len(workers) > 1 or len(self._fleet.in_status(*UP)) == 1
        for name, seconds in zip(plan.order, plan.receiver_s):
            worker = self._fleet[name]
            self._transfers.receiving(t_s, worker, (version, size_bytes, parent), seconds, late)
            self._broadcast.add(name)
            # A straggler sent to alone says nothing of how long a publication takes to reach it.
            if together:
                worker.broadcast_s = seconds
        self._transfers.set_deadlines(t_s, version, str(parent), workers, out)
        few_s = self._broadcast.few_from(t_s, plan, late, self._settings.grace_s)
        if few_s is not None:
            why_few = "the next broadcast does not wait for a few"
            out.append(SetTimer(t_s, f"late:{version}:few", few_s, why_few))

    def _plan(self, workers: list[Worker], size_bytes: float) -> tuple[BroadcastPlan, str]:
        offers = [self._relays.offered(worker.offer) for worker in workers]
        links = tuple((o.worker_id, o.uplink_bps, o.downlink_bps, o.can_relay) for o in offers)
        key = (size_bytes, round(10.0 * math.log(self._train_s)), links)
        if key not in self._plans:
            if len(self._plans) > 64:
                self._plans.clear()
            demand, settings = self._demand(size_bytes), self._settings
            self._plans[key] = plan_broadcast(offers, settings.links, demand, settings.topologies)
        return self._plans[key]

    def _cheapest(self, plans: Sequence[BroadcastPlan], offers: Sequence[WorkerOffer]) -> BroadcastPlan:
        """Of several ways for the same payload, the one with the least egress plus lateness."""
        return choose_plan(plans, offers, self._demand(plans[0].size_bytes))[0]

    def _demand(self, size_bytes: float) -> Demand:
        return replace(self._settings.demand(self._train_s), snapshot_bytes=size_bytes)

    def _fetch_newest(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        size, parent = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
        version = self._ledger.published
        source = self._transfers.best_holder(worker, version, size)
        self._transfers.fetch(t_s, worker, source, (version, size, parent), out)

    def _fetch_rest(self, t_s: float, worker: Worker, reason: str, out: list[Decision]) -> None:
        """What is under way to a worker is finished another way.

        The same version, though a newer one may be out by now: what has arrived would be lost with it, and
        many workers that begin anew at once, each from the learner, would hold each other up for long.
        """
        version, size, parent = self._transfers.parcel(worker)
        self._transfers.abort(t_s, worker, reason, out)
        self._release(worker)
        source = self._transfers.best_holder(worker, version, size)
        self._transfers.fetch(t_s, worker, source, (version, size, parent), out)

    def _serve_waiting(self, t_s: float, out: list[Decision]) -> None:
        waiting, self._waiting = self._waiting, []
        for name in waiting:
            worker = self._fleet.get(name)
            if worker is None or worker.status not in UP or worker.inbound != NONE:
                continue
            if worker.version >= self._ledger.published:
                continue
            size, parent = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
            newest = self._ledger.published
            source = self._transfers.best_holder(worker, newest, size, self._settings.pull_fanout)
            if source:
                self._transfers.fetch(t_s, worker, source, (newest, size, parent), out)
            else:
                self._waiting.append(name)

    def _release(self, worker: Worker) -> None:
        """Nothing is under way to a worker any more."""
        self._transfers.release(worker)
        self._broadcast.discard(worker.worker_id)
        self._relays.done(worker.worker_id)


def _fastest_first(workers: list[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda w: (-w.offer.rollouts_per_s, w.worker_id))
