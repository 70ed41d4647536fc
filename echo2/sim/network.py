"""The simulated network: snapshots flow over links whose rates change with the traces.

Event-driven: rates hold until a receiver completes, catches up, a trace breakpoint comes or a token bucket
runs dry, and the clock jumps there; nothing is ever polled. Here transfers are fluid;
`echo2.sim.chunks.ChunkNetwork` moves the same snapshots chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import simpy

from echo2.policy.broadcast import BroadcastPlan, striped, with_chunks
from echo2.policy.links import LEARNER, LinkTable
from echo2.sim.access import AccessLinks
from echo2.sim.chunk_transfer import ChunkTransfer
from echo2.sim.inputs import LinkShape, NicBucket, SimWorker
from echo2.sim.sharing import share_links
from echo2.sim.stripe_reroute import ReroutedStripes
from echo2.sim.transfers import Paths, Transfer, TreeTransfer

SAME_MOMENT = 1e-4
LEAST_STEP_S = 1e-6
MENDED_SENDS, FEWEST_CHUNKS = 4_000, 16
"""What is left of a fluid tree moves in so many sends at most, in no fewer chunks."""
Arrived = Callable[[str, int], None]
Sent = Callable[[str, int, float], None]


class Network:
    """Carries transfers and calls `arrived(worker, version)` when a worker has all of a snapshot.

    `sent(worker, version, share)` reports the share of a snapshot that was sent to a worker, complete or
    not, so that egress can be charged; `failed(worker, version)` that its source is gone. `events` counts
    how often rates were shared out anew.
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
        self.events = 0
        self._access = AccessLinks(links, workers, learner_shape, learner_bucket)
        self._paths = Paths(links.edge_cap_bps, links.latency_s)
        self._arrived, self._sent, self._failed = arrived, sent, failed
        self._transfers: list[Transfer] = []
        self._timer: simpy.Event | None = None
        self._since_s = env.now

    def send(self, version: int, plan: BroadcastPlan, source: str = LEARNER) -> None:
        """Begin a transfer along a plan."""
        self._advance()
        at = self._access.index
        nodes = np.array([at[name] for name in plan.order], dtype=np.int64)
        sites = self._access.site[np.append(nodes, at[source])]
        transfer = self._kind(plan)(version, plan, at[source], nodes, sites, self._paths)
        transfer.begin(self.env.now)
        self._transfers.append(transfer)
        self._reallocate()

    def leave(self, name: str) -> None:
        """A worker is gone: it neither receives nor relays any more, and `reroute` says who does instead."""
        node = self._access.index[name]
        self._advance()
        failed: list[tuple[str, int]] = []
        for transfer in self._transfers:
            self._take_out(transfer, node)
            if transfer.source == node:
                failed += self._without_source(transfer)
        self._reallocate()
        # told last: whoever hears of it may send anew
        for receiver, version in failed:
            self._failed(receiver, version)

    def reroute(
        self,
        version: int,
        names: Sequence[str],
        without: Sequence[str],
        shares: Sequence[float] = (),
        direct_share: float = 0.0,
    ) -> None:
        """These get what they lack of `version` from others than `without`; see `decisions.Reroute`."""
        self._advance()
        for i, transfer in enumerate(self._transfers):
            order = transfer.plan.order
            # latecomers fetch the same version past the broadcast, and are no part of what is dealt anew
            concerned = {order.index(name) for name in names if name in order}
            if transfer.version == version and concerned:
                if len(shares) == len(order) and not transfer.plan.shares:
                    plan = striped(transfer.plan, shares, direct_share)
                    transfer = self._transfers[i] = self._mended(transfer, plan)
                transfer.reroute(concerned, frozenset(without))
        self._reallocate()

    def fed_by(self, name: str, version: int) -> list[str]:
        """Who has still to get something of `version` from a machine."""
        node = self._access.index[name]
        found: list[str] = []
        for transfer in self._transfers:
            if transfer.version == version:
                fed = np.flatnonzero(transfer.active) if transfer.source == node else transfer.fed_by(name)
                found += [transfer.plan.order[int(i)] for i in fed]
        return found

    def lacking(self, version: int) -> dict[str, float]:
        """What share of `version` each receiver of a broadcast lacks that is under way."""
        found: dict[str, float] = {}
        for transfer in self._transfers:
            if transfer.version == version:
                for position, name in enumerate(transfer.plan.order):
                    found[name] = max(0.0, 1.0 - transfer.got(position))
        return found

    def throttle(self, name: str, factor: float) -> None:
        """From now on a machine sends with `factor` of its uplink alone."""
        self._advance()
        self._access.throttle(name, factor)
        self._reallocate()

    def abort(self, name: str, version: int) -> None:
        """Stop sending `version` to a worker, which relays it no more; what was sent is charged."""
        node = self._access.index[name]
        self._advance()
        for transfer in self._transfers:
            if transfer.version == version:
                self._take_out(transfer, node)
        self._reallocate()

    def _take_out(self, transfer: Transfer, node: int) -> None:
        for position in np.flatnonzero(transfer.nodes == node).tolist():
            if transfer.active[position]:
                name = transfer.plan.order[position]
                self._sent(name, transfer.version, transfer.got(position))
            transfer.leave(position)

    def _without_source(self, transfer: Transfer) -> list[tuple[str, int]]:
        lost = []
        for position in np.flatnonzero(transfer.active).tolist():
            name = transfer.plan.order[position]
            self._sent(name, transfer.version, transfer.got(position))
            lost.append((name, transfer.version))
        transfer.active[:] = False
        return lost

    # ---- how transfers are made and fed, replaced by the chunk network ----------------------------

    def _kind(self, plan: BroadcastPlan) -> type[Transfer]:
        return ReroutedStripes if plan.shares else TreeTransfer

    def _mended(self, tree: Transfer, plan: BroadcastPlan) -> Transfer:
        """A tree that goes on as stripes: chunk by chunk, for what each has by then is no fluid stripe."""
        if isinstance(tree, ChunkTransfer):
            tree.go_over(plan)
            return tree
        assert isinstance(tree, TreeTransfer)
        most = max(FEWEST_CHUNKS, MENDED_SENDS // len(plan.order))
        return ChunkTransfer.resumed(tree, with_chunks(plan, min(plan.chunks, most)))

    def _share(self) -> None:
        share_links(self._transfers, self._access)

    # ---- time --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Bring all transfers and token buckets to the present."""
        now = self.env.now
        seconds, self._since_s = now - self._since_s, now
        if seconds <= 0:
            return
        self._access.advance(seconds)
        for transfer in self._transfers:
            transfer.advance(now, seconds)

    def _reallocate(self) -> None:
        """Finish what is complete, share the links anew and set the timer for the next event."""
        self._complete()
        self._timer = None
        if not self._transfers:
            self._access.outflow[:] = 0.0
            return
        self.events += 1
        now = self.env.now
        self._access.refresh(now)
        self._share()
        delay = min(transfer.next_event_s() for transfer in self._transfers)
        delay = min(delay, self._next_change_s(now), self._access.bucket_event_s())
        if delay < float("inf"):
            timer = simpy.Timeout(self.env, max(delay, LEAST_STEP_S))
            timer.callbacks.append(self._due)
            self._timer = timer

    def _next_change_s(self, now: float) -> float:
        if not self._access.varying:
            return float("inf")
        involved = set[int]().union(*(transfer.involved() for transfer in self._transfers))
        return self._access.next_change_s(now, involved)

    def _due(self, event: simpy.Event) -> None:
        if event is self._timer:
            self._advance()
            self._reallocate()

    def _complete(self) -> None:
        now = self.env.now
        for transfer in self._transfers:
            slack = SAME_MOMENT * (now - transfer.began_s) + 1e-9
            together: dict[float, list[str]] = {}
            for position, delay in transfer.pop_complete(now, slack):
                name = transfer.plan.order[position]
                self._sent(name, transfer.version, 1.0)
                together.setdefault(delay, []).append(name)
            for delay, names in together.items():
                timer = simpy.Timeout(self.env, delay, (names, transfer.version))
                timer.callbacks.append(self._announce)
        self._transfers = [transfer for transfer in self._transfers if transfer.active.any()]

    def _announce(self, event: simpy.Event) -> None:
        names, version = cast(tuple[list[str], int], event.value)
        for name in names:
            self._arrived(name, version)
