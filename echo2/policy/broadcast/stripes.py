"""Stripes: the snapshot is split, every relay takes its own part from the source and passes it to all others.

Called by `choose`. Source: Mutualcast (Li, Chou & Zhang 2005), which reaches the fluid bound while downlinks
do not bind; the whole-chunk form, the pair caps and the slow receivers are ours.

A time `tau` is tried: how many whole chunks can each relay receive and pass on by then, how many can the
source send to everybody itself? It is feasible iff they add up to M, and feasibility only grows with `tau`,
so bisection finds the least. A receiver that could not be done by `tau` under any plan (slow downlink, thin
paths) takes its own time and holds nobody up: senders share max-min, so it draws only its own slow rate.

Where a receiver's downlink binds together with the uplinks that fill it, the prediction takes rates in
proportion to the shares; plain per-flow fairness then needs longer than predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from echo2.policy.broadcast.problem import BroadcastProblem, FloatArray, IntArray
from echo2.policy.broadcast.timing import ChunkRules

HEADROOM = 1.25
EQUAL = 0.002
NEAR = 0.97
NO_TIME = 1e-200
TOLERANCE = 3e-5


@dataclass(frozen=True)
class Stripes:
    """Chunks per relay (N,), chunks sent directly, and (N,) predicted seconds."""

    chunks: int
    counts: IntArray
    direct: int
    receiver_s: FloatArray


def stripes(problem: BroadcastProblem, rules: ChunkRules) -> Stripes:
    """The split that makes the last receiver earliest, to 0.2 %, in fewest chunks. Needs two receivers."""
    tried: list[Stripes] = []
    worst_s = math.inf
    for relays in _relay_sets(problem):
        for chunks in sorted(rules.counts(problem.size_bytes, rules.stripe_sizes), reverse=True):
            split = _Split(problem, relays, int(chunks), rules.overhead_s).solve(worst_s)
            if split is not None:
                tried.append(split)
                # What is slower than this could not be chosen below: most sizes end at the first look.
                worst_s = min(worst_s, float(split.receiver_s.max()) * (1 + 4 * EQUAL))
    limit = min(split.receiver_s.max() for split in tried) * (1 + EQUAL)
    near = [split for split in tried if split.receiver_s.max() <= limit]
    # ten times the chunks for a thousandth of the time is a bad trade: each is hashed, named and tracked
    return min(near, key=lambda split: (split.chunks, split.receiver_s.max(), split.receiver_s.mean()))


def _relay_sets(problem: BroadcastProblem) -> list[IntArray]:
    """Sets of relays worth trying: all, and the fastest few that can pass on all the source sends.

    Every relay costs one chunk of the first round, which counts for small snapshots and many workers.
    """
    uplink = problem.uplink[1:]
    sets = [uplink > 0]
    needed = HEADROOM * problem.uplink[0] * (problem.count - 1)
    if uplink.sum() > needed:
        fastest = np.argsort(-uplink, kind="stable")
        few = int(np.searchsorted(np.cumsum(uplink[fastest]), needed)) + 1
        if few < np.count_nonzero(uplink):
            sets.append(np.isin(np.arange(problem.count), fastest[:few]))
    return [np.flatnonzero(chosen) for chosen in sets]


class _Split:
    """One chunk size: what is fixed while `tau` is searched. Arrays are (N,) receivers or (R,) relays."""

    def __init__(self, problem: BroadcastProblem, relays: IntArray, chunks: int, overhead_s: float) -> None:
        self.problem, self.chunks, self.overhead = problem, chunks, overhead_s
        self.bits = problem.bits / chunks
        self.source_bps = float(problem.uplink[0])
        self.source_s = problem.bits / self.source_bps
        self.relays = relays
        self.uplink = problem.uplink[1:][self.relays]
        # every relay has its first chunk after one round at the source
        self.start = min(len(self.relays) + 1, chunks) * self.bits / self.source_bps + overhead_s
        self.first_hop = self.bits / problem.edge_cap[0, 1:] + overhead_s
        self.first_pair = np.maximum(self.bits / problem.pair_cap[0, 1:] + overhead_s, NO_TIME)
        self.pair = None
        if problem.pair_cap_bps is not None:
            pair = np.maximum(self.bits / problem.pair_cap[1:, 1:] + overhead_s, NO_TIME)
            np.fill_diagonal(pair, NO_TIME)
            self.pair = pair[self.relays]
        self.own_s = self._own_times()

    def _own_times(self) -> FloatArray:
        """(N,) seconds each receiver needs at best, whatever the others do."""
        edge = self.problem.edge_cap[:, 1:].copy()
        edge[np.arange(1, len(edge)), np.arange(len(edge) - 1)] = 0.0
        takes = np.minimum(self.problem.downlink[1:], edge.sum(axis=0))
        own: FloatArray = self.problem.bits / takes + self.start + 2 * (self.bits / takes + self.overhead)
        return own

    def solve(self, worst_s: float = math.inf) -> Stripes | None:
        """The least feasible `tau` by bisection and the split that meets it; None if it is over `worst_s`."""
        low, high = self.source_s, min(2 * self.source_s, worst_s)
        while (found := self._chunks_by(high)) is None:
            if high >= worst_s:
                return None
            low, high = high, min(2 * high, worst_s)
        # Chunk sizes differ by little: most answers lie just below the worst one that would still do.
        near = max(low, NEAR * high)
        if math.isfinite(worst_s) and (tried := self._chunks_by(near)) is None:
            low = near
        while high - low > TOLERANCE * high:
            middle = (low + high) / 2
            tried = self._chunks_by(middle)
            if tried is None:
                low = middle
            else:
                high, found = middle, tried
        counts, direct = _trim(*found, self.chunks)
        times = np.maximum(high, self.own_s) + self._delays(counts, direct)
        return Stripes(self.chunks, counts, direct, times)

    def _chunks_by(self, tau: float) -> tuple[IntArray, int] | None:
        """Most chunks (per receiver to relay, direct) everybody can have by `tau`; None if fewer than M."""
        budget = tau - self.start
        if budget < self.source_s:
            return None
        # share of the bytes a receiver has drawn by tau: less than 1 for those slower than the rest
        load = np.minimum(1.0, tau / self.own_s)
        reach = np.maximum(tau, self.own_s) - self.start
        second_hop = self.bits * (load.sum() - load[self.relays]) / self.uplink + self.overhead
        relayed = self._relayed(budget, second_hop, reach, last_from_source_s=self.source_s)
        if relayed.sum() >= self.chunks:
            return relayed, 0
        relayed = self._relayed(budget, second_hop, reach, last_from_source_s=0.0)
        arrives = budget - float(np.max(self.first_hop, where=self.own_s <= tau, initial=0.0))
        room = arrives * self.source_bps / self.bits - self.chunks
        spread = float(load.sum()) - 1.0
        direct = float(self.chunks) if spread * self.chunks <= room else room / spread
        # a direct chunk takes the place of a relayed one on the source's paths: past the first full path
        # another direct chunk gains nothing
        on_path = np.floor(reach / self.first_pair) - relayed
        direct = np.floor(max(0.0, min(direct, float(on_path.min()))))
        if direct + relayed.sum() < self.chunks:
            return None
        return relayed, int(direct)

    def _relayed(
        self, budget: float, second_hop: FloatArray, reach: FloatArray, *, last_from_source_s: float
    ) -> IntArray:
        """(N,) chunks each relay can take from the source and pass on in `budget`, 0 for non-relays.

        Two servers in a line: first + second + (n - 1) max(first, second) <= budget. Where the source sends
        relayed chunks to its very end (`last_from_source_s`), the last of n leaves at (1 - 1/n) of that and
        still has to pass both; where direct chunks fill the end (0) it leaves early enough (`chunk_relays`).
        """
        first_hop = self.first_hop[self.relays]
        both = first_hop + second_hop
        counts = np.floor((budget - both) / np.maximum(first_hop, second_hop)) + 1
        if last_from_source_s > 0:
            late = last_from_source_s - (budget - both)
            in_time = last_from_source_s / np.maximum(late, last_from_source_s / (self.chunks + 1))
            counts = np.minimum(counts, np.floor(in_time))
        counts[both > budget] = 0
        if self.pair is not None:
            left = reach[None, :] - first_hop[:, None]
            counts = np.minimum(counts, np.floor((left / self.pair).min(axis=1)))
        relayed = np.zeros(self.problem.count, dtype=np.int64)
        relayed[self.relays] = np.clip(counts, 0, self.chunks)
        return relayed

    def _delays(self, counts: IntArray, direct: int) -> FloatArray:
        """(N,) the longest way any chunk takes to each receiver, one-way seconds."""
        delay = self.problem.delay
        used = np.flatnonzero(counts) + 1
        longest = np.zeros(len(counts))
        if direct:
            longest = np.maximum(longest, delay[0, 1:])
        if len(used):
            way = delay[0, used, None] + delay[used, 1:]
            way[np.arange(len(used)), used - 1] = delay[0, used]
            longest = np.maximum(longest, way.max(axis=0))
        return longest


def _trim(counts: IntArray, direct: int, chunks: int) -> tuple[IntArray, int]:
    """Exactly `chunks` in all: direct ones go first (they load the source), then relays in proportion."""
    relayed = int(counts.sum())
    if relayed < chunks:
        return counts, chunks - relayed
    exact = counts * (chunks / relayed)
    whole = np.floor(exact).astype(np.int64)
    missing = chunks - int(whole.sum())
    if missing:
        fraction = np.where(whole < counts, exact - whole, -1.0)
        whole[np.argsort(-fraction, kind="stable")[:missing]] += 1
    return whole, 0
