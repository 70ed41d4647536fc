"""The network as the policy knows it: sites, what flows between them, and what a byte costs.

`LinkTable` is static for a run (it is part of the scheduler's settings); access rates of single workers
come with their offers and are replaced when measured. Built by `echo2.scenario`, read by provisioning,
publication and the simulated network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import LEARNER, BroadcastProblem, Peer, flow_cap_bps
from echo2.policy.facts import WorkerOffer

FloatArray = npt.NDArray[np.float64]
__all__ = ["LEARNER", "LinkTable"]


@dataclass(frozen=True)
class LinkTable:
    """Pairs of sites: capacity of a pair of machines, round trip, egress price; and the learner's access.

    Square tuples indexed [sender site][receiver site]. `streams` TCP flows are opened per edge, so an
    edge carries `min(capacity, streams x 2.55 MiB / RTT)` (measured, `docs/traces.md`).
    """

    sites: tuple[str, ...]
    capacity_bps: tuple[tuple[float, ...], ...]
    rtt_s: tuple[tuple[float, ...], ...]
    egress_usd_per_gb: tuple[tuple[float, ...], ...]
    learner_site: str
    learner_uplink_bps: float
    learner_downlink_bps: float
    streams: int = 16

    def index(self, site: str) -> int:
        """Row of a site; KeyError when unknown."""
        return self._index[site]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {site: i for i, site in enumerate(self.sites)}

    @cached_property
    def edge_cap_bps(self) -> FloatArray:
        """(sites, sites) bit/s that one edge can carry."""
        return np.asarray(
            flow_cap_bps(np.array(self.capacity_bps), np.array(self.rtt_s), self.streams), dtype=np.float64
        )

    @cached_property
    def latency_s(self) -> FloatArray:
        """(sites, sites) one-way seconds."""
        return np.array(self.rtt_s) / 2.0

    @cached_property
    def egress(self) -> FloatArray:
        """(sites, sites) USD per GB."""
        return np.array(self.egress_usd_per_gb)

    def source(self) -> Peer:
        """The learner as the source of a broadcast."""
        return Peer(LEARNER, self.learner_uplink_bps, self.learner_downlink_bps, site=self.learner_site)

    def problem(self, offers: list[WorkerOffer], size_bytes: float) -> BroadcastProblem:
        """The broadcast of `size_bytes` from the learner to these workers."""
        rows = [self.index(self.learner_site), *(self.index(offer.site) for offer in offers)]
        grid = np.ix_(rows, rows)
        peers = tuple(
            Peer(
                offer.worker_id,
                offer.uplink_bps,
                offer.downlink_bps,
                site=offer.site,
                can_relay=offer.can_relay,
                weight=offer.rollouts_per_s,
            )
            for offer in offers
        )
        return BroadcastProblem(
            size_bytes=size_bytes,
            source=self.source(),
            receivers=peers,
            pair_cap_bps=self.edge_cap_bps[grid],
            latency_s=self.latency_s[grid],
            egress_usd_per_gb=self.egress[grid],
        )

    def solo_s(self, offer: WorkerOffer, size_bytes: float) -> float:
        """Seconds to send `size_bytes` from the learner to one worker with nothing else on the links."""
        i, j = self.index(self.learner_site), self.index(offer.site)
        rate = min(self.learner_uplink_bps, offer.downlink_bps, float(self.edge_cap_bps[i, j]))
        return 8.0 * size_bytes / rate + float(self.latency_s[i, j])

    def soonest_s(self, offers: Sequence[WorkerOffer], size_bytes: float) -> float:
        """Seconds in which no plan brings `size_bytes` to any of these workers: cuts at both ends (ours).

        Relays add their edges to the one from the learner, so this may be far less than `solo_s`.
        """
        return float(self.soonest_each_s(offers, size_bytes).min())

    def soonest_each_s(self, offers: Sequence[WorkerOffer], size_bytes: float) -> FloatArray:
        """The same for each of these workers, whichever of the others get a snapshot too."""
        home = self.index(self.learner_site)
        rows = np.array([self.index(offer.site) for offer in offers], dtype=np.int64)
        relays = np.array([offer.can_relay for offer in offers], dtype=np.float64)
        edge, count = self.edge_cap_bps, len(rows)
        at_site = np.bincount(rows, weights=relays, minlength=len(self.sites))
        senders: FloatArray = np.tile(at_site.astype(np.float64), (count, 1))
        senders[np.arange(count), rows] -= relays
        senders[:, home] += 1.0
        # 0 x inf: no sender at a site whose edges have no cap
        into = np.where(senders > 0, senders * edge.T[rows], 0.0).sum(axis=1)
        down = np.array([offer.downlink_bps for offer in offers])
        out = min(self.learner_uplink_bps, float(edge[home, rows].sum()))
        rate: FloatArray = np.minimum(out, np.minimum(into, down))
        seconds: FloatArray = 8.0 * size_bytes / rate + float(self.latency_s[home, rows].min())
        return seconds
