"""When each receiver of a single tree has everything: shared uplinks, chunks, delays.

Used by the tree builders (`trees`, `regional`). A tree is a parent array over nodes, `parent[0] = -1`.

A node's uplink is shared max-min among its children, each limited by its downlink and its pair cap. A child
never runs ahead of its parent, so a path is a line of servers through which M equal chunks pass: the last
chunk is through after the sum of all service times plus M - 1 times the longest (flow shop with equal jobs).
With equal rates r that is the usual (F/r)(1 + (depth - 1)/M).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from echo2.policy.broadcast.problem import BroadcastProblem, FloatArray, IntArray

MIB = 2**20


@dataclass(frozen=True)
class ChunkRules:
    """How a snapshot may be cut: seconds lost per chunk and hop, least and largest chunk in bytes.

    `stripe_sizes`: how many sizes are tried for stripes, where each takes a search of its own.
    """

    overhead_s: float = 0.002
    min_bytes: float = 0.25 * MIB
    max_bytes: float = 64.0 * MIB
    stripe_sizes: int = 9

    def counts(self, size_bytes: float, points: int = 40) -> IntArray:
        """Numbers of chunks worth trying, ascending: log-spaced from the largest chunk to the least."""
        least = max(1, int(np.ceil(size_bytes / self.max_bytes)))
        most = max(least, int(size_bytes / self.min_bytes))
        return np.unique(np.rint(np.geomspace(least, most, points)).astype(np.int64))


@dataclass(frozen=True)
class TreeTiming:
    """Predicted times of one tree: best chunk count, (N,) seconds per receiver, (N+1,) bit/s of each
    node's in-edge and the node whose in-edge is the slowest on the way to the last receiver."""

    chunks: int
    receiver_s: FloatArray
    rate_bps: FloatArray
    bottleneck: int


def water_fill(total: float, caps: FloatArray) -> FloatArray:
    """Max-min fair shares of `total` under `caps` (k,): everybody gets min(cap, level)."""
    if caps.sum() <= total:
        return caps
    ascending = np.sort(caps)
    before = np.concatenate([[0.0], np.cumsum(ascending)[:-1]])
    levels = (total - before) / np.arange(len(caps), 0, -1)
    at = int(np.argmax(levels <= ascending))
    shares: FloatArray = np.minimum(caps, levels[at])
    return shares


def edge_rates(problem: BroadcastProblem, parent: IntArray) -> FloatArray:
    """(N+1,) bit/s the in-edge of each node can carry, siblings sharing max-min; inf for the source.

    All receivers take the same bytes, so siblings below their own cap end together and one at its cap has
    no use for what they free: constant rates are exact.
    """
    child = np.arange(1, len(parent))
    above = parent[1:]
    alone = problem.edge_cap[above, child]
    siblings = np.bincount(above, minlength=len(parent))
    fair = problem.uplink[above] / siblings[above]
    rate: FloatArray = np.concatenate([[np.inf], np.minimum(alone, fair)])
    spare = np.bincount(above, weights=np.where(alone < fair, fair - alone, 0.0), minlength=len(parent))
    for node in np.flatnonzero((spare > 0) & (siblings > 1)):
        kids = child[above == node]
        rate[kids] = water_fill(problem.uplink[node], alone[kids - 1])
    return rate


def breadth_first(parent: IntArray) -> list[int]:
    """Receivers, parents before children, nearest to the source first."""
    kids: list[list[int]] = [[] for _ in parent]
    for node in range(1, len(parent)):
        kids[int(parent[node])].append(node)
    order = [0]
    for node in order:
        order.extend(kids[node])
    return order[1:]


def tree_timing(problem: BroadcastProblem, parent: IntArray, rules: ChunkRules) -> TreeTiming:
    """Times of the tree `parent` with the number of chunks that makes its last receiver earliest."""
    rate = edge_rates(problem, parent)
    slowness = 1.0 / rate
    total = [0.0] * len(parent)
    worst = [0.0] * len(parent)
    where = [0] * len(parent)
    depth = [0] * len(parent)
    delay = [0.0] * len(parent)
    for node in breadth_first(parent):
        up, own = int(parent[node]), float(slowness[node])
        total[node] = total[up] + own
        worst[node], where[node] = (own, node) if own > worst[up] else (worst[up], where[up])
        depth[node] = depth[up] + 1
        delay[node] = delay[up] + float(problem.delay[up, node])
    chunks = rules.counts(problem.size_bytes)[:, None]
    chunk_bits = problem.bits / chunks
    transfer = chunk_bits * (np.array(total[1:]) + (chunks - 1) * np.array(worst[1:]))
    times = transfer + rules.overhead_s * (np.array(depth[1:]) + chunks - 1) + np.array(delay[1:])
    best = int(np.argmin(times.max(axis=1)))
    last = int(np.argmax(times[best])) + 1
    return TreeTiming(int(chunks[best, 0]), times[best], rate, where[last])
