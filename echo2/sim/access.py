"""The access links of all machines: their levels, how they vary, and their NICs' token buckets.

Owned by a network (`echo2.sim.network`, `echo2.sim.chunks`), which asks what the links carry now and when
that changes next. A rate is the level times the shape of the machine's own trace: the level is measured, the
shape was measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from echo2.policy.links import LEARNER, LinkTable
from echo2.sim.inputs import LinkShape, NicBucket, SimWorker

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
DRY_BITS = 1.0


@dataclass
class Node:
    """A machine's access link, and what is left in its NIC's token bucket."""

    name: str
    site: int
    uplink_bps: float
    downlink_bps: float
    shape: LinkShape | None
    bucket: NicBucket | None
    tokens_bits: float = 0.0


class AccessLinks:
    """Node 0 is the learner, the rest are the workers in their order.

    `up`, `down` (nodes,) bit/s and `factor` (nodes,) are of the last `refresh`; `outflow` (nodes,) bit/s is
    what every node sends, set by whoever shares out the rates.
    """

    def __init__(
        self,
        links: LinkTable,
        workers: tuple[SimWorker, ...],
        learner_shape: LinkShape | None,
        learner_bucket: NicBucket | None,
    ) -> None:
        self.nodes = [
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
            site, shape, bucket = links.index(offer.site), worker.shape, worker.bucket
            self.nodes.append(
                Node(offer.worker_id, site, offer.uplink_bps, offer.downlink_bps, shape, bucket)
            )
        for node in self.nodes:
            node.tokens_bits = node.bucket.bucket_bits if node.bucket else 0.0
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self.site = np.array([node.site for node in self.nodes], dtype=np.int64)
        self._up_level = np.array([node.uplink_bps for node in self.nodes])
        self._down_level = np.array([node.downlink_bps for node in self.nodes])
        self._buckets = [(i, node, node.bucket) for i, node in enumerate(self.nodes) if node.bucket]
        self._shapes = [(i, node.shape) for i, node in enumerate(self.nodes) if node.shape]
        self._changes_s = dict.fromkeys((i for i, _ in self._shapes), -1.0)
        self.varying = frozenset(self._changes_s)
        self.factor = np.ones(len(self.nodes))
        self.up, self.down = self._up_level.copy(), self._down_level.copy()
        self.outflow = np.zeros(len(self.nodes))

    def advance(self, seconds: float) -> None:
        """Let token buckets drain or fill for `seconds` at the present outflow."""
        for i, node, bucket in self._buckets:
            gained = (bucket.sustained_bps - self.outflow[i]) * seconds
            node.tokens_bits = min(bucket.bucket_bits, max(0.0, node.tokens_bits + gained))

    def refresh(self, now: float) -> None:
        """Set `up`, `down` and `factor` to what holds at run time `now`."""
        for i, shape in self._shapes:
            if now >= self._changes_s[i]:
                self.factor[i] = shape.at(now)
                self._changes_s[i] = shape.next_change_s(now)
        if self._shapes:
            self.up, self.down = self._up_level * self.factor, self._down_level * self.factor
        elif self._buckets:
            self.up = self._up_level.copy()
        for i, node, bucket in self._buckets:
            limit = bucket.burst_bps if node.tokens_bits > DRY_BITS else bucket.sustained_bps
            self.up[i] = min(self.up[i], limit)

    def less(self, up_bps: FloatArray, down_bps: FloatArray) -> AccessLinks:
        """A view for one sharing out: the links without what others take, with an `outflow` of its own."""
        left = copy(self)
        left.up, left.down = np.maximum(0.0, self.up - up_bps), np.maximum(0.0, self.down - down_bps)
        left.outflow = np.zeros_like(self.outflow)
        return left

    def throttle(self, name: str, factor: float) -> None:
        """A machine's uplink carries `factor` of its level from now on."""
        i = self.index[name]
        self._up_level[i] = self.nodes[i].uplink_bps * factor
        self.up = self._up_level * self.factor

    def next_change_s(self, now: float, involved: Iterable[int]) -> float:
        """Seconds to the next breakpoint of a trace of the `involved` nodes; call after `refresh`."""
        return min((self._changes_s[i] - now for i in involved if i in self.varying), default=float("inf"))

    def bucket_event_s(self) -> float:
        """Seconds until a token bucket in use runs dry."""
        soonest = float("inf")
        for i, node, bucket in self._buckets:
            drain = self.outflow[i] - bucket.sustained_bps
            if drain > 0 and node.tokens_bits > DRY_BITS:
                soonest = min(soonest, node.tokens_bits / drain)
        return soonest
