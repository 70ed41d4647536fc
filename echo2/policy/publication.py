"""Publication: who is sent which snapshot, along which plan or from which holder, and until when.

Called by the scheduler. Push: the learner sends along the broadcast plan to every worker that is not
already receiving. Pull: each worker fetches from a holder (the learner or a peer that has the version),
at most `pull_fanout` at a time from one holder. In both modes a worker receives one snapshot at a time;
when it is done and a newer one has been published meanwhile, it is sent that one, skipping what lies
between. A late joiner or straggler fetches from the holder that is cheapest, then quickest, for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.decisions import AbortTransfer, Decision, FetchSnapshot, PublishSnapshot, SetTimer
from echo2.policy.fleet import NONE, UP, Fleet, Worker
from echo2.policy.links import LEARNER
from echo2.policy.provision import plan_broadcast
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
        self.catch_up(t_s, worker, out)
        self._serve_waiting(t_s, out)

    def failed(self, t_s: float, worker: Worker, out: list[Decision]) -> bool:
        """A transfer failed or is overdue. False when the worker has failed too often to go on."""
        self._release(worker)
        worker.failures += 1
        if worker.failures >= MAX_FAILURES:
            return False
        self.catch_up(t_s, worker, out)
        self._serve_waiting(t_s, out)
        return True

    def gone(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """A worker left: it no longer receives or serves."""
        self._release(worker)
        self._serving.pop(worker.worker_id, None)
        self._serve_waiting(t_s, out)

    def overdue(self, t_s: float, version: int, names: Iterable[str], out: list[Decision]) -> list[Worker]:
        """The workers among `names` still receiving `version`; their transfers are aborted."""
        workers = [w for name in names if (w := self._fleet.get(name)) and w.inbound == version]
        for worker in workers:
            reason = f"version {version} has not arrived after {self._settings.patience:g}x the expected time"
            out.append(AbortTransfer(t_s, worker.worker_id, version, reason, worker.broadcast_s))
        return workers

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
        for name, seconds in zip(plan.order, plan.receiver_s):
            self._receiving(self._fleet[name], version, seconds)
        self._set_deadline(t_s, f"{version}:{parent}", plan.time_s, out)

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
        self._receiving(worker, version, bound * children)
        reason = f"fetch from {source}, which serves {children} at once"
        out.append(FetchSnapshot(t_s, version, parent, worker.worker_id, source, size, reason, bound))
        self._set_deadline(t_s, f"{version}:{worker.worker_id}", bound * self._settings.pull_fanout, out)

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
        """The holder of the newest version that is cheapest, then quickest. `fanout` caps its children."""
        links = self._settings.links
        me = links.index(worker.offer.site)
        best: tuple[float, float, str] | None = None
        holders = [(LEARNER, links.learner_site, links.learner_uplink_bps)]
        holders += [
            (other.worker_id, other.offer.site, other.offer.uplink_bps)
            for other in self._fleet.in_status(*UP)
            if other.version >= self._ledger.published and other.offer.can_relay
        ]
        for name, site, uplink_bps in holders:
            children = self._serving.get(name, 0)
            if (fanout and children >= fanout) or name == worker.worker_id:
                continue
            row = links.index(site)
            rate = min(uplink_bps / (children + 1), float(links.edge_cap_bps[row, me]))
            key = (float(links.egress[row, me]), -rate, name)
            if best is None or key < best:
                best = key
        return best[2] if best else ("" if fanout else LEARNER)

    def _receiving(self, worker: Worker, version: int, seconds: float) -> None:
        worker.inbound = version
        worker.broadcast_s = seconds
        self.in_transit += 1

    def _release(self, worker: Worker) -> None:
        if worker.inbound != NONE:
            worker.inbound = NONE
            self.in_transit -= 1
        worker.late = False
        source = self._source.pop(worker.worker_id, None)
        if source is not None and self._serving.get(source, 0) > 0:
            self._serving[source] -= 1

    def _set_deadline(self, t_s: float, tag: str, expected_s: float, out: list[Decision]) -> None:
        settings = self._settings
        soon = t_s + 1.5 * expected_s + settings.grace_s
        last = t_s + settings.patience * expected_s + settings.grace_s
        out.append(SetTimer(t_s, f"late:{tag}", soon, "no work is held back for workers without it by then"))
        out.append(SetTimer(t_s, f"transfer:{tag}", last, "the transfer is given up then"))


def _fastest_first(workers: list[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda w: (-w.offer.rollouts_per_s, w.worker_id))
