"""What a broadcast is about: one snapshot, the learner that has it, the workers that want it, their links.

Built by the planner from a configuration, by the simulator from traces and by the live driver from
measurements; read by every other file of this package. Node 0 is the source, node i the i-th receiver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

TCP_WINDOW_BYTES = 2.55 * 2**20
"""Bytes one default-tuned TCP flow moves per round trip: median of 350 iperf runs over 20 ms RTT
(hivemind-multi-cloud, 2023; p10 2.24 MiB, p90 2.67 MiB)."""

GB = 1e9


@dataclass(frozen=True, slots=True)
class Peer:
    """One end of the links: the learner's host or a worker's.

    `weight` is the worker's rollouts/s, for the throughput-weighted mean. `site` names the place inside which
    traffic is near and unpaid ("" = unknown, a site of its own). A peer that cannot relay only receives.
    """

    peer_id: str
    uplink_bps: float
    downlink_bps: float
    site: str = ""
    can_relay: bool = True
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class BroadcastProblem:
    """One snapshot of `size_bytes` to be brought from `source` to every receiver.

    The three matrices are (N+1, N+1), row = sender, column = receiver, index 0 = source; None = no such
    limit, delay or price. `pair_cap_bps` holds inf where a pair has no cap of its own, `latency_s` one-way
    seconds, `egress_usd_per_gb` USD per 1e9 bytes. The diagonals are ignored.
    Raises ValueError, naming the peer and the value, for anything that is not a positive finite number.
    """

    size_bytes: float
    source: Peer
    receivers: tuple[Peer, ...]
    pair_cap_bps: FloatArray | None = None
    latency_s: FloatArray | None = None
    egress_usd_per_gb: FloatArray | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size_bytes) and self.size_bytes > 0):
            raise ValueError(f"size_bytes must be positive and finite, got {self.size_bytes}")
        seen: set[str] = set()
        for peer in self.peers:
            _check_peer(peer)
            if peer.peer_id in seen:
                raise ValueError(f"peer id {peer.peer_id!r} occurs twice; ids must be unique")
            seen.add(peer.peer_id)
        self._check_matrix("pair_cap_bps", self.pair_cap_bps, positive=True)
        self._check_matrix("latency_s", self.latency_s, positive=False)
        self._check_matrix("egress_usd_per_gb", self.egress_usd_per_gb, positive=False)

    def _check_matrix(self, name: str, matrix: FloatArray | None, *, positive: bool) -> None:
        if matrix is None:
            return
        nodes = len(self.receivers) + 1
        if matrix.shape != (nodes, nodes):
            raise ValueError(f"{name} must have shape {(nodes, nodes)} (source first), got {matrix.shape}")
        good = matrix > 0 if positive else (matrix >= 0) & np.isfinite(matrix)
        good = good | np.eye(nodes, dtype=bool)
        if not good.all():
            i, j = (int(k) for k in np.argwhere(~good)[0])
            wanted = "> 0 (inf = no cap)" if positive else ">= 0 and finite"
            pair = f"from {self.peers[i].peer_id!r} to {self.peers[j].peer_id!r}"
            raise ValueError(f"{name} {pair} must be {wanted}, got {matrix[i, j]}")

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Source and receivers, in the order of the matrices."""
        return (self.source, *self.receivers)

    @property
    def count(self) -> int:
        """N, the number of receivers."""
        return len(self.receivers)

    @property
    def bits(self) -> float:
        """F, the snapshot's size in bits."""
        return 8.0 * self.size_bytes

    @cached_property
    def uplink(self) -> FloatArray:
        """(N+1,) bit/s each node may send; 0 for a receiver that cannot relay."""
        relays = [self.source.uplink_bps, *(p.uplink_bps if p.can_relay else 0.0 for p in self.receivers)]
        return np.array(relays, dtype=np.float64)

    @cached_property
    def downlink(self) -> FloatArray:
        """(N+1,) bit/s each node may receive."""
        return np.array([p.downlink_bps for p in self.peers], dtype=np.float64)

    @cached_property
    def weight(self) -> FloatArray:
        """(N,) weights of the receivers for the mean; all ones where every weight is zero."""
        weights = np.array([p.weight for p in self.receivers], dtype=np.float64)
        return weights if weights.sum() > 0 else np.ones(len(weights))

    @cached_property
    def pair_cap(self) -> FloatArray:
        """(N+1, N+1) bit/s of every pair, inf where none is known and on the diagonal."""
        nodes = self.count + 1
        caps = np.full((nodes, nodes), np.inf) if self.pair_cap_bps is None else self.pair_cap_bps.copy()
        np.fill_diagonal(caps, np.inf)
        return caps

    @cached_property
    def edge_cap(self) -> FloatArray:
        """(N+1, N+1) bit/s of an edge alone: least of pair cap, sender's uplink, receiver's downlink."""
        ends = np.minimum(self.uplink[:, None], self.downlink[None, :])
        cap: FloatArray = np.minimum(self.pair_cap, ends)
        return cap

    @cached_property
    def delay(self) -> FloatArray:
        """(N+1, N+1) one-way seconds, zero where unknown."""
        return self._or_zero(self.latency_s)

    @cached_property
    def egress(self) -> FloatArray:
        """(N+1, N+1) USD per bit moved, zero where unknown."""
        return self._or_zero(self.egress_usd_per_gb) / (8.0 * GB)

    def _or_zero(self, matrix: FloatArray | None) -> FloatArray:
        nodes = self.count + 1
        return np.zeros((nodes, nodes)) if matrix is None else np.asarray(matrix, dtype=np.float64)


def flow_cap_bps(
    capacity_bps: FloatArray | float,
    rtt_s: FloatArray | float,
    streams: int,
    window_bytes: float = TCP_WINDOW_BYTES,
) -> FloatArray:
    """What `streams` TCP flows move over a path: min(capacity, streams x window / RTT), bit/s.

    Shapes broadcast; an RTT of 0 leaves the capacity. Source: hivemind-multi-cloud's iperf runs, in which
    flows add up linearly to the NIC. Raises ValueError for streams < 1.
    """
    if streams < 1:
        raise ValueError(f"streams must be >= 1, got {streams}")
    rtt = np.asarray(rtt_s, dtype=np.float64)
    positive = np.where(rtt > 0, rtt, 1.0)
    window = np.where(rtt > 0, streams * window_bytes * 8.0 / positive, np.inf)
    cap: FloatArray = np.minimum(np.asarray(capacity_bps, dtype=np.float64), window)
    return cap


def _check_peer(peer: Peer) -> None:
    for name in ("uplink_bps", "downlink_bps"):
        value = getattr(peer, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"peer {peer.peer_id!r}: {name} must be positive and finite, got {value}")
    if not (math.isfinite(peer.weight) and peer.weight >= 0):
        raise ValueError(f"peer {peer.peer_id!r}: weight must be >= 0 and finite, got {peer.weight}")
