"""Publication: who is sent which snapshot, along which plan or from which holder, and until when.

Called by the scheduler. Push: the learner sends along the broadcast plan to every worker, one broadcast
after another; when one is over and newer versions have been published meanwhile, the newest is next and
what lies between is skipped. Pull: each worker fetches from a holder (the learner or a peer that has the
version), at most `pull_fanout` at a time from one holder. A late joiner or straggler fetches in both modes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.decisions import AbortTransfer, Decision, FetchSnapshot, PublishSnapshot, SetTimer
from echo2.policy.fleet import NONE, UP, Fleet, Status, Worker
from echo2.policy.links import LEARNER
from echo2.policy.provision import lateness_usd, plan_broadcast, rollout_usd
from echo2.policy.settings import SchedulerSettings
from echo2.policy.staleness import VersionLedger

MAX_FAILURES = 3
FAR_SLOWER = 2.0
# A broadcast that still runs for this part of the workers, by rate, does not keep the others from the next.
FEW = 0.1
LATE = 1.5
LATE_RELAYED = 1.1


class Publication:
    """Carries no clock: the time comes with every call."""

    def __init__(self, settings: SchedulerSettings, fleet: Fleet, ledger: VersionLedger) -> None:
        self._settings = settings
        self._train_s = settings.train_s
        self._fleet = fleet
        self._ledger = ledger
        self._plans: dict[tuple[object, ...], tuple[BroadcastPlan, str]] = {}
        self._serving: dict[str, int] = {}
        self._source: dict[str, str] = {}
        self._parcel: dict[str, tuple[float, int]] = {}
        self._waiting: list[str] = []
        self._broadcast: set[str] = set()
        self._finishing: dict[str, float] = {}
        self._few_from_s = 0.0
        self.in_transit = 0

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
        self._ledger.publish(payload_bytes)
        self._train_s = train_s
        self._send_newest(t_s, out)

    def _send_newest(self, t_s: float, out: list[Decision]) -> None:
        if self._settings.mode == "pull":
            self._waiting = [worker.worker_id for worker in _fastest_first(self._lacking())]
            self._serve_waiting(t_s, out)
        elif self._over(t_s):
            self._push_newest(t_s, out)

    def _over(self, t_s: float) -> bool:
        """Whether the last broadcast is over but for a few, and the next may begin.

        Those that fetch the rest of a late one count until that is late too: begun earlier, the next would
        be for the few that are free, and keep all others waiting in turn.
        """
        if self._broadcast and t_s < self._few_from_s:
            return False
        under_way = self._broadcast | {name for name, until in self._finishing.items() if t_s < until}
        if not under_way:
            return True
        ready = self._fleet.in_status(Status.READY)
        waited_for = sum(w.offer.rollouts_per_s for w in ready if w.worker_id in under_way)
        return waited_for <= FEW * sum(w.offer.rollouts_per_s for w in ready)

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
        self._go_on(t_s, out)
        return True

    def gone(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """A worker left or stops: it no longer receives, and what it was serving is fetched elsewhere."""
        self._release(worker)
        orphans = [name for name, source in self._source.items() if source == worker.worker_id]
        for name in orphans:
            self._fetch_rest(t_s, self._fleet[name], f"its source {worker.worker_id} is gone", out)
        self._serving.pop(worker.worker_id, None)
        self._go_on(t_s, out)

    def late(self, t_s: float, version: int, out: list[Decision]) -> bool:
        """Find the workers that should have `version` by now, and send them the rest another way.

        A broadcast is as slow as its slowest relay; a worker it has kept waiting fetches what it lacks of
        this version from the best holder instead. True if any is newly late.
        """
        found = [w for w in self._fleet if w.inbound == version and not w.late and t_s >= w.late_s]
        waits = t_s
        for worker in found:
            broadcast = worker.worker_id in self._broadcast
            if worker.worker_id not in self._source:
                deadline_s, expected_s = worker.deadline_s, worker.expected_s
                self._fetch_rest(t_s, worker, f"version {version} is late, the rest is fetched", out)
                self._extend(t_s, worker, deadline_s, out)
                if broadcast:
                    # What is left takes no longer than the whole was to take, or its own line is down.
                    until = self._finishing[worker.worker_id] = t_s + expected_s
                    waits = max(waits, until)
            worker.late = True
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
        self._abort(t_s, worker, f"version {version} has not arrived after {patience}", out)
        return True

    def _extend(self, t_s: float, worker: Worker, deadline_s: float, out: list[Decision]) -> None:
        """A fetch in place of a broadcast is given up no sooner than the broadcast would have been."""
        if worker.inbound == NONE or deadline_s <= worker.deadline_s:
            return
        worker.deadline_s = deadline_s
        name = f"transfer:{worker.inbound}:{worker.worker_id}"
        out.append(SetTimer(t_s, name, deadline_s, "the transfer is given up then"))

    def _abort(self, t_s: float, worker: Worker, reason: str, out: list[Decision]) -> None:
        out.append(AbortTransfer(t_s, worker.worker_id, worker.inbound, reason, worker.expected_s))

    def _go_on(self, t_s: float, out: list[Decision]) -> None:
        """Serve who waits to fetch; when a broadcast is over, begin the next if a newer version is out."""
        self._serve_waiting(t_s, out)
        if self._settings.mode == "push" and self._over(t_s):
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
        plan, why = self._plan(workers, size_bytes)
        version = self._ledger.published
        out.append(PublishSnapshot(t_s, version, parent, plan, why, plan.bound_s))
        late = LATE if plan.topology == "star" else LATE_RELAYED
        together = len(workers) > 1 or len(self._fleet.in_status(*UP)) == 1
        for name, seconds in zip(plan.order, plan.receiver_s):
            worker = self._fleet[name]
            self._receiving(t_s, worker, version, seconds, late)
            self._broadcast.add(name)
            self._parcel[name] = (size_bytes, parent)
            # A straggler sent to alone says nothing of how long a publication takes to reach it.
            if together:
                worker.broadcast_s = seconds
        self._set_deadlines(t_s, version, str(parent), workers, out)
        self._wait_for_most(t_s, plan, late, out)

    def _wait_for_most(self, t_s: float, plan: BroadcastPlan, late: float, out: list[Decision]) -> None:
        """From when on few may be left behind: when the snapshot is late for all but a few."""
        rates = [self._fleet[name].offer.rollouts_per_s for name in plan.order]
        left, most = math.fsum(rates), FEW * math.fsum(rates)
        ordered = iter(sorted(zip(plan.receiver_s, rates)))
        seconds = 0.0
        while left > most:
            seconds, rate = next(ordered)
            left -= rate
        at_s = t_s + late * seconds + self._settings.grace_s
        self._few_from_s = max(self._few_from_s, at_s)
        if seconds < plan.time_s:
            name, why = f"late:{self._ledger.published}:few", "the next broadcast does not wait for a few"
            out.append(SetTimer(t_s, name, at_s, why))

    def _plan(self, workers: list[Worker], size_bytes: float) -> tuple[BroadcastPlan, str]:
        offers = [worker.offer for worker in workers]
        links = tuple((o.worker_id, o.uplink_bps, o.downlink_bps, o.can_relay) for o in offers)
        train_s = self._train_s
        tenths = round(10.0 * math.log(train_s))
        key = (size_bytes, tenths, links)
        if key not in self._plans:
            if len(self._plans) > 64:
                self._plans.clear()
            demand = replace(self._settings.demand(train_s), snapshot_bytes=size_bytes)
            settings = self._settings
            self._plans[key] = plan_broadcast(offers, settings.links, demand, settings.topologies)
        return self._plans[key]

    def _fetch_newest(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        size, parent = self._ledger.payload_bytes(worker.version, self._settings.full_snapshot_bytes)
        version = self._ledger.published
        source = self._best_holder(worker, version, size)
        self._fetch(t_s, worker, source, (version, size, parent), out)

    def _fetch_rest(self, t_s: float, worker: Worker, reason: str, out: list[Decision]) -> None:
        """What is under way to a worker is finished another way.

        The same version, though a newer one may be out by now: what has arrived would be lost with it, and
        many workers that begin anew at once, each from the learner, would hold each other up for long.
        """
        version = worker.inbound
        size, parent = self._parcel[worker.worker_id]
        self._abort(t_s, worker, reason, out)
        self._release(worker)
        source = self._best_holder(worker, version, size)
        self._fetch(t_s, worker, source, (version, size, parent), out)

    def _fetch(
        self, t_s: float, worker: Worker, source: str, what: tuple[int, float, int], out: list[Decision]
    ) -> None:
        version, size, parent = what
        bound = self._settings.links.solo_s(worker.offer, size)
        children = self._serving[source] = self._serving.get(source, 0) + 1
        self._source[worker.worker_id] = source
        self._parcel[worker.worker_id] = (size, parent)
        self._receiving(t_s, worker, version, bound * max(children, self._settings.pull_fanout))
        reason = f"fetch from {source}, which serves {children} at once"
        out.append(FetchSnapshot(t_s, version, parent, worker.worker_id, source, size, reason, bound))
        self._set_deadlines(t_s, version, worker.worker_id, [worker], out)

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
            source = self._best_holder(worker, newest, size, self._settings.pull_fanout)
            if source:
                self._fetch(t_s, worker, source, (newest, size, parent), out)
            else:
                self._waiting.append(name)

    def _best_holder(self, worker: Worker, version: int, size: float, fanout: int = 0) -> str:
        """The holder of a version with the least egress plus lateness (`provision.lateness_usd`).

        `fanout` caps how many a holder serves at once; "" when all that have the version are busy.
        """
        links, demand = self._settings.links, self._settings.demand(self._settings.train_s)
        usd_each = rollout_usd([other.offer for other in self._fleet.active()], demand)
        me = links.index(worker.offer.site)
        best: tuple[float, float, str] | None = None
        for name, site, uplink_bps in self._holders(worker, version):
            children = self._serving.get(name, 0)
            if fanout and children >= fanout:
                continue
            row = links.index(site)
            rate = min(
                uplink_bps / (children + 1), worker.offer.downlink_bps, float(links.edge_cap_bps[row, me])
            )
            seconds = 8.0 * size / rate
            usd = float(links.egress[row, me]) * size / 1e9
            key = (usd + lateness_usd(worker.offer, demand, seconds, usd_each), seconds, name)
            best = key if best is None or key < best else best
        return best[2] if best else ("" if fanout else LEARNER)

    def _holders(self, worker: Worker, version: int) -> list[tuple[str, str, float]]:
        """(name, site, uplink) of who can serve a version to a worker: the learner, or who works with it."""
        links = self._settings.links
        holders = [(LEARNER, links.learner_site, links.learner_uplink_bps)]
        for other in self._fleet.in_status(*UP):
            able = other.version == version and other.offer.can_relay and not other.late
            if able and other is not worker and other.worker_id not in worker.shunned:
                holders.append((other.worker_id, other.offer.site, other.offer.uplink_bps))
        return holders

    def _receiving(
        self, t_s: float, worker: Worker, version: int, seconds: float, late: float = LATE
    ) -> None:
        settings = self._settings
        worker.inbound = version
        worker.expected_s = seconds
        worker.late_s = t_s + late * seconds + settings.grace_s
        worker.deadline_s = t_s + settings.patience * seconds + settings.grace_s
        self.in_transit += 1

    def _release(self, worker: Worker) -> None:
        if worker.inbound != NONE:
            worker.inbound = NONE
            self.in_transit -= 1
        worker.late = False
        self._broadcast.discard(worker.worker_id)
        self._finishing.pop(worker.worker_id, None)
        source = self._source.pop(worker.worker_id, None)
        if source is not None and self._serving.get(source, 0) > 0:
            self._serving[source] -= 1

    def _set_deadlines(
        self, t_s: float, version: int, tag: str, workers: list[Worker], out: list[Decision]
    ) -> None:
        late_s = max(worker.late_s for worker in workers)
        last_s = max(worker.deadline_s for worker in workers)
        name = f"{version}:{tag}"
        out.append(
            SetTimer(t_s, f"late:{name}", late_s, "no work is held back for workers without it by then")
        )
        out.append(SetTimer(t_s, f"transfer:{name}", last_s, "the transfer is given up then"))


def _fastest_first(workers: list[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda w: (-w.offer.rollouts_per_s, w.worker_id))
