"""One snapshot on its way along a plan: what every kind of transfer offers, and the fluid tree.

The network (`echo2.sim.network`) hands out link rates (`echo2.sim.sharing`), these turn them into progress.
The other kinds are fluid stripes (`echo2.sim.stripes`) and whole chunks (`echo2.sim.chunks`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan, living_parents

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
SOURCE = -1
CAUGHT_UP = 1e-7
STILL_BPS = 1e-9


class Paths(NamedTuple):
    """Between sites, (S, S) each, [sender, receiver]: what one edge carries and the one-way delay."""

    cap_bps: FloatArray
    latency_s: FloatArray


class Transfer(ABC):
    """A broadcast under way. Positions follow `plan.order`; `nodes[i]` is the network's index of receiver i.

    `sites` (N+1,) are those of the receivers and, last, of the source (position -1), in the `paths` between
    sites. `active[i]`: receiver i is still to be served.
    """

    def __init__(
        self, version: int, plan: BroadcastPlan, source: int, nodes: IntArray, sites: IntArray, paths: Paths
    ) -> None:
        self.version, self.plan, self.source, self.nodes = version, plan, source, nodes
        self.sites, self.paths = sites, paths
        self.bits = 8.0 * plan.size_bytes
        self.chunk_bits = self.bits / max(1, plan.chunks)
        self.active = np.ones(len(nodes), dtype=bool)
        self.began_s = 0.0

    def begin(self, now: float) -> None:
        """The transfer begins at run time `now`."""
        self.began_s = now

    @abstractmethod
    def got(self, position: int) -> float:
        """Share of the snapshot that has been sent to a receiver."""

    @abstractmethod
    def advance(self, now: float, seconds: float) -> None:
        """Let the last `seconds` before `now` pass at the present rates."""

    @abstractmethod
    def next_event_s(self) -> float:
        """Seconds until something of this transfer changes by itself; inf if nothing moves."""

    @abstractmethod
    def pop_complete(self, now: float, slack_s: float) -> list[tuple[int, float]]:
        """Receivers complete by `now + slack_s`: (position, seconds from `now` until it has everything)."""

    @abstractmethod
    def leave(self, position: int) -> None:
        """A receiver is gone: nothing flows to it or from it any more."""

    @abstractmethod
    def fed_by(self, relay: str) -> list[int]:
        """Positions that have still to get something from a relay."""

    @abstractmethod
    def reroute(self, positions: Set[int], without: Set[str]) -> None:
        """These get what they lack from others than `without`, by the rules of `broadcast.schedule`."""

    @abstractmethod
    def involved(self) -> set[int]:
        """Nodes whose links matter now."""


class TreeTransfer(Transfer):
    """A single tree as fluid: a receiver that has all its parent has grows no faster than the parent.

    `have` is the share of the snapshot each receiver has, `rate_bps` how fast it grows and `edge_bps` what
    its edge carries when the parent has data waiting.
    """

    def __init__(
        self, version: int, plan: BroadcastPlan, source: int, nodes: IntArray, sites: IntArray, paths: Paths
    ) -> None:
        super().__init__(version, plan, source, nodes, sites, paths)
        count = len(nodes)
        self.have = np.zeros(count)
        self.rate_bps = np.zeros(count)
        self.edge_bps = np.zeros(count)
        self.parents = np.array(plan.parents or (SOURCE,) * count, dtype=np.int64)
        self._lost_bits: FloatArray | None = None
        self._idle = np.zeros(count, dtype=bool)
        self._here = np.ones(count + 1, dtype=bool)
        # the last value is for the source, parent of the first
        self._end_s = np.zeros(count + 1)
        self._rewire()

    def _rewire(self) -> None:
        above, own = self.sites[self.parents], self.sites[:-1]
        self.edge_cap_bps = np.where(self._here[self.parents], self.paths.cap_bps[above, own], 0.0)
        self._edge_delay_s = self.paths.latency_s[above, own]
        self.senders = np.append(self.nodes, self.source)[self.parents]
        self._fed = self.parents != SOURCE

    def got(self, position: int) -> float:
        """Share of the snapshot that has been sent to a receiver."""
        return float(self.have[position])

    def landed(self) -> FloatArray:
        """(N,) share of the snapshot each receiver has in whole chunks, which come later than the fluid."""
        lost = np.zeros(len(self.have)) if self._lost_bits is None else self._lost_bits / self.bits
        return np.where(self.have < 1.0, np.maximum(0.0, self.have - np.where(self._fed, lost, 0.0)), 1.0)

    def left_behind(self) -> list[int]:
        """Positions of receivers that have left."""
        gone: list[int] = np.flatnonzero(~self._here[:-1]).tolist()
        return gone

    def path_limits(self, rates_bps: FloatArray) -> FloatArray:
        """(N,) least of `rates_bps` over the ancestors that a receiver has caught up with; inf for none."""
        limits = np.full(len(rates_bps), np.inf)
        waits = self._fed & self.active
        if not waits.any():
            return limits
        waits &= self.active[self.parents] & (self.have >= self.have[self.parents] - CAUGHT_UP)
        if not waits.any():
            return limits
        # pointer doubling: after k rounds every node knows the least over its 2^k nearest ancestors
        last = len(rates_bps)
        above = np.append(np.where(waits, self.parents, last), last)
        least = np.append(rates_bps, np.inf)
        limits = least[above]
        while (above != last).any():
            limits = np.minimum(limits, limits[above])
            above = above[above]
        return np.asarray(limits[:-1], dtype=np.float64)

    def advance(self, now: float, seconds: float) -> None:
        """Let the last `seconds` before `now` pass at the present rates."""
        if self._lost_bits is None:
            self._lost_bits = self._bits_lost_at_start()
        grown = np.minimum(1.0, self.have + self.rate_bps * (seconds / self.bits))
        self.have = np.where(self.active, grown, self.have)
        level = (self.have > 0) & (self.have >= self.have[self.parents] * (1.0 - CAUGHT_UP * 10))
        self._idle |= level & self._fed & (self.have < 1.0)

    def _bits_lost_at_start(self) -> FloatArray:
        """(N,) bits that an edge does not carry because the first chunk has not reached its sender yet.

        Through an edge that begins in an outage nothing comes for a while, neither as fluid nor in chunks.
        """
        safe = np.where(self.edge_bps > 0, self.edge_bps, np.inf)
        chunk_s: list[float] = (self.chunk_bits / safe).tolist()
        delay_s: list[float] = self._edge_delay_s.tolist()
        starts = [0.0] * len(chunk_s)
        for i, parent in enumerate(self.parents.tolist()):
            if parent != SOURCE:
                starts[i] = starts[parent] + chunk_s[parent] + delay_s[parent]
        return np.asarray(self.edge_bps * np.array(starts), dtype=np.float64)

    def next_event_s(self) -> float:
        """Seconds until a receiver is complete or catches up with its parent; inf if nothing moves."""
        moving = self.active & (self.rate_bps > STILL_BPS)
        if not moving.any():
            return float("inf")
        rate = self.rate_bps / self.bits
        soonest = float(((1.0 - self.have[moving]) / rate[moving]).min())
        fed = moving & self._fed
        if fed.any():
            parent = self.parents[fed]
            gap = self.have[parent] - self.have[fed]
            closing = rate[fed] - rate[parent]
            chasing = (gap > CAUGHT_UP) & (closing > 0) & self.active[parent]
            if chasing.any():
                soonest = min(soonest, float((gap[chasing] / closing[chasing]).min()))
        return soonest

    def pop_complete(self, now: float, slack_s: float) -> list[tuple[int, float]]:
        """Receivers complete by `now + slack_s`: what is left, and what whole chunks add to the fluid."""
        left = 1.0 - self.have
        done = self.active & ((left <= 1e-12) | (left * self.bits <= self.rate_bps * slack_s))
        found = []
        for i in np.flatnonzero(done).tolist():
            wait = float(left[i] * self.bits / max(self.rate_bps[i], STILL_BPS)) if left[i] > 0 else 0.0
            self._end_s[i] = self._chunk_end(i, now + wait)
            found.append((i, float(self._end_s[i]) - now))
            self.have[i] = 1.0
            self.active[i] = False
        return found

    def _chunk_end(self, i: int, fluid_s: float) -> float:
        """When receiver i has the last chunk, its fluid being through at `fluid_s`. Parents end first.

        An edge that was never idle makes up for its late start at the end; one that was idle is a chunk
        behind the fluid; and none is through before its sender has the last chunk and has sent that too.
        """
        delay = float(self._edge_delay_s[i])
        if not self._fed[i]:
            return fluid_s + delay
        parent, rate = int(self.parents[i]), max(float(self.edge_bps[i]), STILL_BPS)
        chunk_s = self.chunk_bits / rate
        if self._idle[i] or self._lost_bits is None:
            late_s = chunk_s if self.rate_bps[i] >= rate * (1 - CAUGHT_UP) else 0.0
        else:
            late_s = float(self._lost_bits[i]) / rate
        return max(fluid_s + late_s, float(self._end_s[parent]) + chunk_s) + delay

    def involved(self) -> set[int]:
        """Nodes whose links matter now."""
        return {*self.senders[self.active].tolist(), *self.nodes[self.active].tolist()}

    def leave(self, position: int) -> None:
        """A receiver is gone: nothing flows to it or from it any more."""
        self.active[position] = self._here[position] = False
        self._rewire()

    def fed_by(self, relay: str) -> list[int]:
        """Positions that have still to get something from a relay."""
        if relay not in self.plan.order:
            return []
        fed: list[int] = np.flatnonzero(self.active & (self.parents == self.plan.order.index(relay))).tolist()
        return fed

    def reroute(self, positions: Set[int], without: Set[str]) -> None:
        """Each of these is fed by its nearest ancestor that is not among `without`."""
        if self.plan.parents:
            who = sorted(positions)
            self.parents[who] = np.array(living_parents(self.plan, without))[who]
            self._rewire()
