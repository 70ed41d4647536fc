"""Transfers under way: who receives which version from whom, and from when on it is late or given up.

Called by `publication`, which decides what is sent to whom. A transfer comes along a broadcast's plan or is
a fetch from one holder, the learner or a peer that works with the version.
"""

from __future__ import annotations

from echo2.policy.decisions import AbortTransfer, Decision, FetchSnapshot, SetTimer
from echo2.policy.fleet import NONE, UP, Fleet, Worker
from echo2.policy.links import LEARNER
from echo2.policy.relays import Relays
from echo2.policy.settings import SchedulerSettings
from echo2.policy.worth import lateness_usd, rollout_usd

LATE = 1.5
MOST_HELPERS = 8
Parcel = tuple[int, float, int]


class Transfers:
    """Carries no clock: the time comes with every call. A `Parcel` is (version, bytes, parent version)."""

    def __init__(self, settings: SchedulerSettings, fleet: Fleet, relays: Relays) -> None:
        self._settings = settings
        self._fleet = fleet
        self._relays = relays
        self._serving: dict[str, int] = {}
        self._source: dict[str, str] = {}
        self._parcel: dict[str, Parcel] = {}
        self.in_transit = 0

    def source(self, worker: Worker) -> str | None:
        """The holder a worker fetches from; None where it receives along a broadcast, or nothing."""
        return self._source.get(worker.worker_id)

    def parcel(self, worker: Worker) -> Parcel:
        """What is under way to a worker, or was last."""
        return self._parcel[worker.worker_id]

    def stop_serving(self, name: str) -> list[Worker]:
        """A holder is gone: the workers that were fetching from it."""
        self._serving.pop(name, None)
        return [self._fleet[other] for other, source in self._source.items() if source == name]

    def receiving(
        self, t_s: float, worker: Worker, parcel: Parcel, seconds: float, late: float = LATE
    ) -> None:
        """A parcel is on its way to a worker and expected in `seconds`; late after `late` times that."""
        settings = self._settings
        self._parcel[worker.worker_id] = parcel
        worker.inbound = parcel[0]
        worker.expected_s = seconds
        worker.late_s = t_s + late * seconds + settings.grace_s
        worker.deadline_s = t_s + settings.patience * seconds + settings.grace_s
        self.in_transit += 1

    def fetch(self, t_s: float, worker: Worker, source: str, parcel: Parcel, out: list[Decision]) -> None:
        """Let a worker fetch a parcel from a holder."""
        version, size, parent = parcel
        bound = self._settings.links.solo_s(worker.offer, size)
        children = self._serving[source] = self._serving.get(source, 0) + 1
        self._source[worker.worker_id] = source
        self.receiving(t_s, worker, parcel, bound * max(children, self._settings.pull_fanout))
        reason = f"fetch from {source}, which serves {children} at once"
        helpers = self._helpers(worker, version, source)
        out.append(
            FetchSnapshot(t_s, version, parent, worker.worker_id, source, size, reason, bound, helpers)
        )
        self.set_deadlines(t_s, version, worker.worker_id, [worker], out)

    def extend(self, t_s: float, worker: Worker, deadline_s: float, out: list[Decision]) -> None:
        """A fetch in place of a broadcast is given up no sooner than the broadcast would have been."""
        if worker.inbound == NONE or deadline_s <= worker.deadline_s:
            return
        worker.deadline_s = deadline_s
        name = f"transfer:{worker.inbound}:{worker.worker_id}"
        out.append(SetTimer(t_s, name, deadline_s, "the transfer is given up then"))

    def release(self, worker: Worker) -> None:
        """Nothing is under way to a worker any more."""
        if worker.inbound != NONE:
            worker.inbound = NONE
            self.in_transit -= 1
        worker.late = False
        source = self._source.pop(worker.worker_id, None)
        if source is not None and self._serving.get(source, 0) > 0:
            self._serving[source] -= 1

    def set_deadlines(
        self, t_s: float, version: int, tag: str, workers: list[Worker], out: list[Decision]
    ) -> None:
        """Set the timers at which transfers of one version are late, and given up."""
        late_s = max(worker.late_s for worker in workers)
        last_s = max(worker.deadline_s for worker in workers)
        name = f"{version}:{tag}"
        out.append(
            SetTimer(t_s, f"late:{name}", late_s, "no work is held back for workers without it by then")
        )
        out.append(SetTimer(t_s, f"transfer:{name}", last_s, "the transfer is given up then"))

    def abort(self, t_s: float, worker: Worker, reason: str, out: list[Decision]) -> None:
        """Give up what is under way to a worker."""
        out.append(AbortTransfer(t_s, worker.worker_id, worker.inbound, reason, worker.expected_s))

    def best_holder(self, worker: Worker, version: int, size: float, fanout: int = 0) -> str:
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
            usd = demand.egress_weight * float(links.egress[row, me]) * size / 1e9
            key = (usd + lateness_usd(worker.offer, demand, seconds, usd_each), seconds, name)
            best = key if best is None or key < best else best
        return best[2] if best else ("" if fanout else LEARNER)

    def _helpers(self, worker: Worker, version: int, source: str) -> tuple[str, ...]:
        """Who else receives or holds the version and costs no more egress than the source, nearest first."""
        links = self._settings.links
        me, home = links.index(worker.offer.site), links.learner_site
        from_ = home if source == LEARNER else self._fleet[source].offer.site
        most_usd, found = float(links.egress[links.index(from_), me]), []
        for other in self._peers(worker):
            if version not in (other.version, other.inbound) or other.worker_id == source:
                continue
            row = links.index(other.offer.site)
            if links.egress[row, me] <= most_usd:
                found.append((float(links.latency_s[row, me]), other.worker_id))
        return tuple(name for _, name in sorted(found)[:MOST_HELPERS])

    def _holders(self, worker: Worker, version: int) -> list[tuple[str, str, float]]:
        """(name, site, uplink) of who can serve a version to a worker: the learner, or who works with it."""
        links = self._settings.links
        holders = [(LEARNER, links.learner_site, links.learner_uplink_bps)]
        for other in self._peers(worker):
            if other.version == version:
                holders.append((other.worker_id, other.offer.site, other.offer.uplink_bps))
        return holders

    def _peers(self, worker: Worker) -> list[Worker]:
        """Whom a worker may ask for chunks, whatever they hold: up, able to relay, in time, not shunned."""
        return [
            other
            for other in self._fleet.in_status(*UP)
            if other is not worker
            and other.offer.can_relay
            and not other.late
            and other.worker_id not in worker.shunned
            and not self._relays.shuns(other.worker_id)
        ]
