"""When a relay of stripes has passed on its last whole chunk, given how its fluid went.

Used by `echo2.sim.stripes` alone. Ours. Chunk k of a relay reaches it when the source's order is so far; the
relay passes chunks on one after the other. With Q(t) the share of its stripe that it could have passed on by
t had it never waited, it is through when Q has grown to `max_k Q(arrival_k) + (n - k) / n`, k from 0: a
queue that serves n jobs in order (Lindley). This is exact for rates that vary, and needs no event per chunk.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan, chunk_relays

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class ChunkOrder(NamedTuple):
    """Relayed chunks by relay and, of each relay, in the source's order, (K,) each.

    `relay`: position in `plan.order`; `relays`: all different ones, whose chunks begin at `begins`;
    `sent_at`: how far the source is when it has sent the chunk, 0 to 1; `left`: what the relay has still to
    pass on of its stripe when it begins with the chunk, 1/n to 1.
    """

    relay: IntArray
    relays: IntArray
    begins: IntArray
    sent_at: FloatArray
    left: FloatArray


@lru_cache(maxsize=64)
def chunk_order(plan: BroadcastPlan) -> ChunkOrder:
    """The order of a plan's relayed chunks; a direct chunk takes the source as long as N others."""
    relay = np.array(chunk_relays(plan), dtype=np.int64)
    ends = np.cumsum(np.where(relay < 0, len(plan.order), 1))
    relayed = relay >= 0
    by_relay = np.flatnonzero(relayed)[np.argsort(relay[relayed], kind="stable")]
    relay, sent_at = relay[by_relay], ends[by_relay] / ends[-1]
    relays, begins, counts = np.unique(relay, return_index=True, return_counts=True)
    nth = np.arange(len(relay)) - np.repeat(begins, counts)
    return ChunkOrder(relay, relays, begins, sent_at, 1.0 - nth / np.repeat(counts, counts))


class Pipeline:
    """What has been: times (E,), how far heads were (E, N) and Q (E, N) at every event."""

    def __init__(self, plan: BroadcastPlan) -> None:
        self._plan = plan
        self._times: list[float] = []
        count = len(plan.order)
        self._heads = [np.zeros(count)]
        self.could = np.zeros(count)
        self._history = [self.could]

    def begin(self, now: float) -> None:
        """The source begins at run time `now`."""
        self._times.append(now)

    def note(self, now: float, head: FloatArray, level: FloatArray, seconds: float) -> None:
        """`seconds` up to `now` went by in which relays could pass on `level` (N,) shares per second."""
        self.could = self.could + level * seconds
        self._times.append(now)
        self._heads.append(head)
        self._history.append(self.could)

    def through_at(self, later_s: FloatArray) -> FloatArray:
        """(N,) the Q at which each relay is through; a chunk arrives `later_s` (N,) after it was sent.

        Call when the source has sent everything. 0 for those that relay nothing.
        """
        order = chunk_order(self._plan)
        times, heads = np.array(self._times), np.array(self._heads)
        arrives = self._sent_s(order, times, heads) + later_s[order.relay]
        at = np.clip(np.searchsorted(times, arrives, side="right"), 1, len(times) - 1)
        could = np.array(self._history)
        # past the last event it goes on as it went
        pace = np.diff(could, axis=0) / np.maximum(np.diff(times), 1e-12)[:, None]
        then = could[at - 1, order.relay] + pace[at - 1, order.relay] * (arrives - times[at - 1])
        through = np.zeros_like(self.could)
        if len(order.relays):
            through[order.relays] = np.maximum.reduceat(then + order.left, order.begins)
        return through

    def since_last_s(self) -> FloatArray:
        """(N,) how long ago each relay's last chunk was sent, now that the source has sent everything."""
        order, ago = chunk_order(self._plan), np.zeros_like(self.could)
        if len(order.relays):
            last = np.append(order.begins[1:], len(order.relay)) - 1
            ago[order.relays] = (1.0 - order.sent_at[last]) * (self._times[-1] - self._times[0])
        return ago

    @staticmethod
    def _sent_s(order: ChunkOrder, times: FloatArray, heads: FloatArray) -> FloatArray:
        """(K,) when each chunk had left the source."""
        used = heads[:, order.relays]
        if not len(order.relays):
            return order.sent_at
        if (used.max(axis=1) - used.min(axis=1)).max() < 1e-6:
            return np.interp(order.sent_at, used[:, 0], times)
        sent = np.empty(len(order.relay))
        for relay in order.relays.tolist():
            mine = order.relay == relay
            sent[mine] = np.interp(order.sent_at[mine], heads[:, relay], times)
        return sent
