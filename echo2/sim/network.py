"""The simulated network: snapshots flow over links whose rates change with the traces.

Event-driven: rates hold until a receiver completes, catches up, a trace breakpoint comes or a token bucket
runs dry, and the clock jumps there. Flows that share a link share it max-min fairly. A rate is the level of
the matrix times the shape of the receiving worker's (or the learner's) trace: the matrix is measured, the
shape was measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simpy

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.links import LEARNER, LinkTable
from echo2.sim.fairness import max_min_rates
from echo2.sim.inputs import LinkShape, NicBucket, SimWorker
from echo2.sim.transfers import Transfer, source_copies, stripe_pair_caps, stripe_rates

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SAME_MOMENT = 1e-4
UNLIMITED_BPS = 1e15
Arrived = Callable[[str, int], None]
Sent = Callable[[str, int, float], None]


@dataclass
class Node:
    """A machine's access link: levels, how they vary, and what is left in its NIC's token bucket."""

    name: str
    site: int
    uplink_bps: float
    downlink_bps: float
    shape: LinkShape | None
    bucket: NicBucket | None
    tokens_bits: float = 0.0


class Network:
    """Carries transfers and calls `arrived(worker, version)` when a worker has all of a snapshot.

    `sent(worker, version, share)` reports the share of a snapshot that was sent to a worker, complete or
    not, so that egress can be charged; `failed(worker, version)` that its source is gone.
    """

    def __init__(
        self,
        env: simpy.Environment,
        links: LinkTable,
        workers: tuple[SimWorker, ...],
        arrived: Arrived,
        sent: Sent,
        failed: Arrived,
        learner_shape: LinkShape | None = None,
        learner_bucket: NicBucket | None = None,
    ) -> None:
        self.env = env
        self._links = links
        self._arrived = arrived
        self._sent = sent
        self._failed = failed
        self._nodes = [
            Node(
                LEARNER,
                links.index(links.learner_site),
                links.learner_uplink_bps,
                links.learner_downlink_bps,
                learner_shape,
                learner_bucket,
            )
        ]
        for worker in workers:
            offer = worker.offer
            site = links.index(offer.site)
            self._nodes.append(
                Node(
                    offer.worker_id, site, offer.uplink_bps, offer.downlink_bps, worker.shape, worker.bucket
                )
            )
        for node in self._nodes:
            node.tokens_bits = node.bucket.bucket_bits if node.bucket else 0.0
        self._index = {node.name: i for i, node in enumerate(self._nodes)}
        self._transfers: list[Transfer] = []
        self._up = np.array([node.uplink_bps for node in self._nodes])
        self._down = np.array([node.downlink_bps for node in self._nodes])
        self._factor = np.ones(len(self._nodes))
        self._outflow = np.zeros(len(self._nodes))
        self._has_bucket = [i for i, node in enumerate(self._nodes) if node.bucket]
        self._varies = [i for i, node in enumerate(self._nodes) if node.shape]
        self._timer: simpy.Event | None = None
        self._since_s = 0.0
        self.events = 0

    def send(self, version: int, plan: BroadcastPlan, source: str = LEARNER) -> None:
        """Begin a transfer along a plan."""
        self._advance()
        transfer = self._make(version, plan, self._index[source])
        self._transfers.append(transfer)
        self._reallocate()

    def leave(self, name: str) -> None:
        """A worker is gone: it neither receives nor relays any more."""
        node = self._index[name]
        self._advance()
        for transfer in self._transfers:
            for position in np.flatnonzero(transfer.nodes == node):
                if transfer.active[position]:
                    self._sent(name, transfer.version, float(transfer.have[position]))
                transfer.remove(int(position))
                self._refresh_stripe_caps(transfer)
            if transfer.source == node:
                self._lose_source(transfer)
        self._reallocate()

    def _lose_source(self, transfer: Transfer) -> None:
        for position in np.flatnonzero(transfer.active):
            name = transfer.plan.order[position]
            self._sent(name, transfer.version, float(transfer.have[position]))
            transfer.active[position] = False
            self._failed(name, transfer.version)

    def abort(self, name: str, version: int) -> None:
        """Stop sending `version` to a worker; what was sent is charged. It goes on relaying nothing."""
        node = self._index[name]
        self._advance()
        for transfer in self._transfers:
            if transfer.version == version:
                for position in np.flatnonzero((transfer.nodes == node) & transfer.active):
                    self._sent(name, transfer.version, float(transfer.have[position]))
                    transfer.remove(int(position))
                    self._refresh_stripe_caps(transfer)
        self._reallocate()

    def _make(self, version: int, plan: BroadcastPlan, source: int) -> Transfer:
        nodes = np.array([self._index[name] for name in plan.order], dtype=np.int64)
        sites = np.array([self._nodes[i].site for i in (source, *nodes)])
        grid = np.ix_(sites, sites)
        caps, latency = self._links.edge_cap_bps[grid], self._links.latency_s[grid]
        transfer = Transfer(
            version, plan, source, nodes, np.full(len(nodes), np.inf), np.zeros(len(nodes)),
            8.0 * plan.size_bytes, self.env.now,
        )  # fmt: skip
        rows = np.arange(1, len(nodes) + 1)
        if transfer.striped:
            transfer.edge_cap_bps = stripe_pair_caps(transfer.shares, transfer.direct_share, caps)
            transfer.latency_s = latency[0, 1:] / 2 + latency[1:, 1:].mean(axis=0) / 2
        else:
            transfer.edge_cap_bps = caps[transfer.parents + 1, rows]
            transfer.latency_s = latency[transfer.parents + 1, rows]
        return transfer

    def _refresh_stripe_caps(self, transfer: Transfer) -> None:
        sites = np.array([self._nodes[i].site for i in (transfer.source, *transfer.nodes)])
        caps = self._links.edge_cap_bps[np.ix_(sites, sites)]
        if transfer.striped:
            transfer.edge_cap_bps = stripe_pair_caps(transfer.shares, transfer.direct_share, caps)
        else:
            rows = np.arange(1, len(transfer.nodes) + 1)
            transfer.edge_cap_bps = caps[transfer.parents + 1, rows]

    def _advance(self) -> None:
        """Bring all transfers and token buckets to the present."""
        now = self.env.now
        seconds, self._since_s = now - self._since_s, now
        if seconds <= 0:
            return
        for i in self._has_bucket:
            node = self._nodes[i]
            assert node.bucket is not None
            gained = (node.bucket.sustained_bps - self._outflow[i]) * seconds
            node.tokens_bits = min(node.bucket.bucket_bits, max(0.0, node.tokens_bits + gained))
        for transfer in self._transfers:
            transfer.advance(seconds)

    def _reallocate(self) -> None:
        """Finish what is complete, share the links anew and set the timer for the next event."""
        if self._transfers:
            self._complete()
            self._transfers = [t for t in self._transfers if t.active.any()]
        self._timer = None
        self._outflow[:] = 0.0
        if not self._transfers:
            return
        self.events += 1
        up, down = self._capacities()
        self._share(up, down)
        delay = min(t.next_event_s() for t in self._transfers)
        delay = min(delay, self._next_change_s(), self._bucket_event_s())
        if delay < float("inf"):
            timer = simpy.Timeout(self.env, max(delay, 1e-6))
            timer.callbacks.append(self._due)
            self._timer = timer

    def _due(self, event: simpy.Event) -> None:
        if event is self._timer:
            self._advance()
            self._reallocate()

    def _complete(self) -> None:
        for transfer in self._transfers:
            slack = SAME_MOMENT * (self.env.now - transfer.began_s) + 1e-9
            for position in transfer.pop_complete(slack):
                name = transfer.plan.order[position]
                self._sent(name, transfer.version, 1.0)
                timer = simpy.Timeout(self.env, float(transfer.lag_s[position]), (name, transfer.version))
                timer.callbacks.append(self._announce)

    def _announce(self, event: simpy.Event) -> None:
        name, version = event.value
        self._arrived(name, version)

    def _capacities(self) -> tuple[FloatArray, FloatArray]:
        now = self.env.now
        for i in self._varies:
            shape = self._nodes[i].shape
            assert shape is not None
            self._factor[i] = shape.at(now)
        up, down = self._up * self._factor, self._down * self._factor
        for i in self._has_bucket:
            bucket = self._nodes[i].bucket
            assert bucket is not None
            limit = bucket.burst_bps if self._nodes[i].tokens_bits > 1.0 else bucket.sustained_bps
            up[i] = min(up[i], limit)
        return up, down

    def _share(self, up: FloatArray, down: FloatArray) -> None:
        """Rates for every transfer. Stripes split a relay's uplink evenly between transfers it relays."""
        relaying = np.zeros(len(up))
        for transfer in self._transfers:
            if transfer.striped:
                relaying[transfer.nodes[transfer.shares > 0]] += 1
        flows = _Flows()
        wanted: list[tuple[Transfer, FloatArray]] = []
        for transfer in self._transfers:
            if transfer.striped:
                nodes = transfer.nodes
                own_up = up[nodes] / np.maximum(1, relaying[nodes])
                alone = self._stripe_rates(transfer, UNLIMITED_BPS, own_up, down)
                heads = int((transfer.shares > 0).sum()) + (transfer.direct_share > 0) * len(nodes)
                demand = float(alone.max()) * source_copies(transfer)
                flows.add([transfer.source], [-1], [demand], float(max(1, heads)))
                wanted.append((transfer, own_up))
            else:
                positions = np.flatnonzero(transfer.active)
                caps = transfer.edge_cap_bps[positions] * self._factor[transfer.nodes[positions]]
                flows.add(transfer.senders()[positions], transfer.nodes[positions], caps, 1.0)
        rates = flows.rates(up, down)
        self._apply(flows, rates, up, down, dict((id(t), u) for t, u in wanted))

    def _stripe_rates(
        self, transfer: Transfer, source_bps: float, own_up: FloatArray, down: FloatArray
    ) -> FloatArray:
        level = transfer.edge_cap_bps
        transfer.edge_cap_bps = level * self._factor[transfer.nodes]
        try:
            return stripe_rates(transfer, source_bps, own_up, down[transfer.nodes])
        finally:
            transfer.edge_cap_bps = level

    def _apply(
        self,
        flows: _Flows,
        rates: list[FloatArray],
        up: FloatArray,
        down: FloatArray,
        own_up: dict[int, FloatArray],
    ) -> None:
        limited = False
        for transfer, allotted in zip(self._transfers, rates):
            if transfer.striped:
                continue
            full = np.zeros(len(transfer.nodes))
            full[transfer.active] = allotted
            followed = transfer.follow_parents(full)
            if (followed < full * (1 - 1e-9)).any():
                limited = True
                flows.lower(self._transfers.index(transfer), followed[transfer.active])
        if limited:
            rates = flows.rates(up, down)
        for transfer, allotted in zip(self._transfers, rates):
            if transfer.striped:
                bps = self._stripe_rates(transfer, float(allotted[0]), own_up[id(transfer)], down)
                self._outflow[transfer.source] += float(allotted[0])
                sent = bps.sum() - bps
                self._outflow[transfer.nodes] += sent / max(1, len(bps)) * (transfer.shares > 0)
            else:
                full = np.zeros(len(transfer.nodes))
                full[transfer.active] = allotted
                bps = transfer.follow_parents(full)
                np.add.at(self._outflow, transfer.senders(), bps)
            transfer.rate = bps / transfer.bits

    def _next_change_s(self) -> float:
        """Seconds to the next breakpoint of a trace that is in use."""
        if not self._varies:
            return float("inf")
        involved = {0}
        for transfer in self._transfers:
            involved.update(int(i) for i in transfer.nodes[transfer.active])
            involved.update(int(i) for i in transfer.nodes[transfer.shares > 0] if transfer.striped)
            involved.add(transfer.source)
        now = self.env.now
        soonest = float("inf")
        for i in self._varies:
            if i in involved:
                shape = self._nodes[i].shape
                assert shape is not None
                soonest = min(soonest, shape.next_change_s(now) - now)
        return soonest

    def _bucket_event_s(self) -> float:
        """Seconds until a token bucket in use runs dry."""
        soonest = float("inf")
        for i in self._has_bucket:
            node = self._nodes[i]
            assert node.bucket is not None
            drain = self._outflow[i] - node.bucket.sustained_bps
            if drain > 0 and node.tokens_bits > 1.0:
                soonest = min(soonest, node.tokens_bits / drain)
        return soonest


class _Flows:
    """The flows of all transfers in one max-min problem, kept apart by transfer."""

    def __init__(self) -> None:
        self._senders: list[IntArray] = []
        self._receivers: list[IntArray] = []
        self._caps: list[FloatArray] = []
        self._weights: list[FloatArray] = []

    def add(self, senders: object, receivers: object, caps: object, weight: float) -> None:
        """The flows of the next transfer."""
        self._senders.append(np.asarray(senders, dtype=np.int64))
        self._receivers.append(np.asarray(receivers, dtype=np.int64))
        self._caps.append(np.asarray(caps, dtype=np.float64))
        self._weights.append(np.full(len(self._senders[-1]), weight))

    def lower(self, index: int, caps: FloatArray) -> None:
        """Lower the caps of one transfer's flows."""
        self._caps[index] = np.minimum(self._caps[index], caps)

    def rates(self, up: FloatArray, down: FloatArray) -> list[FloatArray]:
        """Max-min fair rates by transfer."""
        rates = max_min_rates(
            np.concatenate(self._senders),
            np.concatenate(self._receivers),
            np.concatenate(self._caps),
            up,
            down,
            np.concatenate(self._weights),
        )
        ends = np.cumsum([len(part) for part in self._senders])[:-1]
        return np.split(rates, ends)
