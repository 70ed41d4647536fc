"""One snapshot on its way along a plan, as fluid: how much each receiver has and how fast it grows.

The network (`echo2.sim.network`) hands out link rates, these turn them into progress. A tree's receiver
cannot overtake the one it is fed by. In stripes every receiver draws from all relays at once; it is done
when the slowest stripe is, so its rate is the least of what the stripes allow in proportion to their shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
SOURCE = -1


@dataclass
class Transfer:
    """State of a broadcast. Arrays follow `plan.order`; `nodes[i]` is the network's index of receiver i.

    `have` is the share of the snapshot each receiver has, `rate` its growth per second. `edge_cap_bps[i]`
    bounds the edge into receiver i (trees) and `stripe_cap_bps[i]` its rate over all stripes.
    `lag_s` is the pipeline's fill and latency, added when a receiver's flow is complete.
    """

    version: int
    plan: BroadcastPlan
    source: int
    nodes: npt.NDArray[np.int64]
    edge_cap_bps: FloatArray
    latency_s: FloatArray
    bits: float
    began_s: float
    have: FloatArray = field(init=False)
    rate: FloatArray = field(init=False)
    active: BoolArray = field(init=False)
    parents: npt.NDArray[np.int64] = field(init=False)
    shares: FloatArray = field(init=False)
    direct_share: float = field(init=False)
    lag_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.plan.order)
        self.have = np.zeros(count)
        self.rate = np.zeros(count)
        self.active = np.ones(count, dtype=bool)
        self.lag_s = np.zeros(count)
        parents = self.plan.parents or (SOURCE,) * count
        self.parents = np.array(parents, dtype=np.int64)
        self.shares = np.array(self.plan.shares, dtype=np.float64)
        self.direct_share = self.plan.direct_share

    @property
    def striped(self) -> bool:
        """Whether all receivers draw from all relays."""
        return bool(self.plan.shares)

    @property
    def chunk_bits(self) -> float:
        """Bits of one chunk."""
        return self.bits / max(1, self.plan.chunks)

    def senders(self) -> npt.NDArray[np.int64]:
        """Network index of the node that feeds each receiver (trees)."""
        return np.where(self.parents == SOURCE, self.source, self.nodes[np.maximum(self.parents, 0)])

    def follow_parents(self, rates_bps: FloatArray) -> FloatArray:
        """Trees: a receiver that has all its parent has grows no faster than the parent."""
        out = rates_bps.copy()
        for i, parent in enumerate(self.parents):
            if parent == SOURCE or not self.active[i] or not self.active[parent]:
                continue
            if self.have[i] >= self.have[parent] - 1e-9:
                out[i] = min(out[i], out[parent])
        return out

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at the present rates."""
        self.have = np.where(self.active, np.minimum(1.0, self.have + self.rate * seconds), self.have)

    def next_event_s(self) -> float:
        """Seconds until a receiver is complete or catches up with its parent; inf if nothing moves."""
        moving = self.active & (self.rate > 0)
        if not moving.any():
            return float("inf")
        soonest = float(((1.0 - self.have[moving]) / self.rate[moving]).min())
        fed = moving & (self.parents != SOURCE)
        if fed.any():
            parent = self.parents[fed]
            gap = self.have[parent] - self.have[fed]
            closing = self.rate[fed] - np.where(self.active[parent], self.rate[parent], 0.0)
            chasing = (gap > 1e-9) & (closing > 0) & self.active[parent]
            if chasing.any():
                soonest = min(soonest, float((gap[chasing] / closing[chasing]).min()))
        return soonest

    def pop_complete(self, slack_s: float) -> list[int]:
        """Receivers that are complete, or will be within `slack_s`: positions in the order."""
        left = 1.0 - self.have
        done = self.active & ((left <= 1e-12) | (left <= self.rate * slack_s))
        positions = [int(i) for i in np.flatnonzero(done)]
        for i in positions:
            self.lag_s[i] = self._lag(i)
            self.have[i] = 1.0
            self.active[i] = False
        return positions

    def _lag(self, i: int) -> float:
        """Latency and, for everyone but the first hop, the time of a chunk per hop."""
        if self.striped:
            return float(2.0 * self.latency_s[i]) + self.chunk_bits / max(self.rate[i] * self.bits, 1e-9)
        parent = self.parents[i]
        if parent == SOURCE:
            return float(self.latency_s[i])
        fill = self.chunk_bits / max(self.rate[i] * self.bits, 1e-9)
        before = self.lag_s[parent] if not self.active[parent] else self._lag(int(parent))
        return float(before + fill + self.latency_s[i])

    def remove(self, position: int) -> None:
        """A receiver is gone: whatever it fed is fed by what fed it, its stripe goes to the other relays."""
        self.active[position] = False
        if not self.striped:
            self.parents = np.where(self.parents == position, self.parents[position], self.parents)
            return
        orphaned, self.shares[position] = float(self.shares[position]), 0.0
        others = float(self.shares.sum())
        if others > 0:
            self.shares *= 1.0 + orphaned / others
        else:
            self.direct_share += orphaned


def stripe_rates(
    transfer: Transfer, source_bps: float, uplink_bps: FloatArray, downlink_bps: FloatArray
) -> FloatArray:
    """Stripes: bits/s of each receiver over all its stripes, (N,).

    Receiver j gets stripe i (share s_i) from relay i at no more than `uplink_i / m`, with m receivers left,
    `pair_cap_ij` and the head of the stripe; and everything through its own downlink:
    min(head, d_j, min_i uplink_i / (m s_i), min_i cap_ij / s_i), the last being `edge_cap_bps`. The
    source sends 1 - direct + N * direct copies, hence head = source_bps / that.
    """
    shares, active = transfer.shares, transfer.active
    left = int(active.sum())
    head = source_bps / source_copies(transfer)
    served = np.maximum(1, left - active.astype(np.int64))
    with np.errstate(divide="ignore", invalid="ignore"):
        per_relay = np.where(shares > 0, uplink_bps / (served * shares), np.inf)
    slowest = int(per_relay.argmin())
    by_others = np.full(len(shares), per_relay[slowest])
    # A relay does not relay its own stripe to itself, so it is held back by the next slowest.
    by_others[slowest] = np.partition(per_relay, 1)[1] if len(per_relay) > 1 else np.inf
    rates = np.minimum(np.minimum(head, downlink_bps), np.minimum(by_others, transfer.edge_cap_bps))
    return np.where(active, rates, 0.0)


def source_copies(transfer: Transfer) -> float:
    """How many times the source sends the whole snapshot in stripes: relayed parts once, direct ones N times."""
    direct = transfer.direct_share
    return max(1e-12, float(transfer.shares.sum()) + direct * max(1, int(transfer.active.sum())))


def stripe_pair_caps(shares: FloatArray, direct_share: float, caps: FloatArray) -> FloatArray:
    """min over stripes of cap[sender][receiver] / share, (N,), from (N+1, N+1) caps, source first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = np.where(shares[:, None] > 0, caps[1:, 1:] / shares[:, None], np.inf)
        own = shares + direct_share
        np.fill_diagonal(limit, np.where(own > 0, caps[0, 1:] / own, np.inf))
    return np.asarray(limit.min(axis=0), dtype=np.float64)
