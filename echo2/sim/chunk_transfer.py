"""One snapshot on its way chunk by chunk, store and forward: who has which chunk, what waits on which edge.

Made and given rates by `echo2.sim.chunks`. Every edge (sender to receiver) is a lane: a queue of chunks, the
first of them on the wire. A chunk that has left the sender lands after the latency; a relay then puts it on
the lanes of those it feeds. Knows nothing of the formulas of the planner and of the fluid.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan, chunk_relays, stripe_counts
from echo2.sim.transfers import SOURCE, Paths, Transfer

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MOST_SENDS = 200_000
LEAST_CHUNKS = 64
NOTHING = np.iinfo(np.int64).max


def coarsened(plan: BroadcastPlan, most_sends: int = MOST_SENDS) -> BroadcastPlan:
    """The plan with at most `most_sends` chunk-sends (never below 64 chunks), its shares kept in proportion.

    Fewer, larger chunks make the pipeline's fill longer; plans that fit are left alone.
    """
    chunks = max(LEAST_CHUNKS, most_sends // max(1, len(plan.order)))
    if plan.chunks <= chunks:
        return plan
    if not plan.shares:
        return replace(plan, chunks=chunks)
    counts, direct = stripe_counts(plan)
    exact = np.array([*counts, direct]) * (chunks / plan.chunks)
    whole = np.floor(exact)
    missing = chunks - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    shares = tuple((whole[:-1] / chunks).tolist())
    return replace(plan, chunks=chunks, shares=shares, direct_share=float(whole[-1]) / chunks)


class ChunkTransfer(Transfer):
    """Lanes are numbered as they come up; (L,) arrays hold what is known of each.

    `sender` and `receiver` are nodes, `cap_bps` the pair's level, `left` the bits of the chunk on the wire
    that have not left, `first` its place in the source's order; `busy` lanes have a chunk.
    """

    def __init__(
        self, version: int, plan: BroadcastPlan, source: int, nodes: IntArray, sites: IntArray, paths: Paths
    ) -> None:
        super().__init__(version, coarsened(plan), source, nodes, sites, paths)
        plan, count = self.plan, len(nodes)
        self.striped = bool(plan.shares)
        self._parents = list(plan.parents) if plan.parents else [SOURCE] * count
        self._relays = list(chunk_relays(plan))
        self._have = np.zeros((count + 1, plan.chunks), dtype=bool)
        self._have[SOURCE] = True
        self._promised = self._have.copy()
        self._missing = np.full(count, plan.chunks)
        self._gone: set[int] = set()
        self._numbers: dict[tuple[int, int], int] = {}
        self._ends: list[tuple[int, int]] = []
        self._queues: list[deque[int]] = []
        self._landing: list[tuple[float, int, int, int]] = []
        self._landings = 0
        lanes = count * count + count if self.striped else 2 * count
        self.sender, self.receiver = np.zeros(lanes, dtype=np.int64), np.zeros(lanes, dtype=np.int64)
        self.cap_bps, self.left, self.rate = np.zeros(lanes), np.zeros(lanes), np.zeros(lanes)
        self.first = np.full(lanes, NOTHING)
        self.busy = np.zeros(lanes, dtype=bool)
        for chunk in range(plan.chunks):
            self._pass_on(SOURCE, chunk)

    # ---- who sends what to whom ------------------------------------------------------------------

    def _pass_on(self, at: int, chunk: int) -> None:
        """Position `at` (or the source) has the chunk: put it on the lanes of all that it feeds with it."""
        for child in self._fed_by(at, chunk):
            if not self._promised[child, chunk]:
                self._promised[child, chunk] = True
                self._enqueue(at, child, chunk)

    def _fed_by(self, at: int, chunk: int) -> list[int]:
        if not self.striped:
            return [i for i in self._children(at) if i not in self._gone]
        relay = self._relays[chunk]
        if relay == at:
            return [i for i in range(len(self.nodes)) if i != at and i not in self._gone]
        return [relay] if at == SOURCE else []

    def _children(self, at: int) -> list[int]:
        return [i for i, parent in enumerate(self._parents) if parent == at]

    def _enqueue(self, at: int, to: int, chunk: int) -> None:
        lane = self._lane(at, to)
        queue = self._queues[lane]
        queue.append(chunk)
        if len(queue) == 1:
            self._next(lane)

    def _lane(self, at: int, to: int) -> int:
        lane = self._numbers.get((at, to))
        if lane is None:
            lane = self._numbers[at, to] = len(self._queues)
            self._queues.append(deque())
            self._ends.append((at, to))
            if lane >= len(self.sender):
                self._grow()
            self.sender[lane] = self.source if at == SOURCE else self.nodes[at]
            self.receiver[lane] = self.nodes[to]
            self.cap_bps[lane] = self.paths.cap_bps[self.sites[at], self.sites[to]]
        return lane

    def _grow(self) -> None:
        for name in ("sender", "receiver", "cap_bps", "left", "rate", "first", "busy"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros_like(old)]))

    def _next(self, lane: int) -> None:
        queue = self._queues[lane]
        self.busy[lane] = bool(queue)
        self.left[lane] = self.chunk_bits
        self.first[lane] = queue[0] if queue else NOTHING

    # ---- progress --------------------------------------------------------------------------------

    def got(self, position: int) -> float:
        """Share of the snapshot that was sent to a receiver, chunks on the wire included."""
        on_wire = sum(to == position for _, _, to, _ in self._landing) * self.chunk_bits
        lanes = [lane for lane, (_, to) in enumerate(self._ends) if to == position and self.busy[lane]]
        on_wire += float((self.chunk_bits - self.left[lanes]).sum())
        return 1.0 - float(self._missing[position]) / self.plan.chunks + on_wire / self.bits

    def advance(self, now: float, seconds: float) -> None:
        """Let the last `seconds` before `now` pass at the present rates."""
        self.left -= self.rate * seconds
        sent = self.busy & (self.left <= self.rate * 1e-9 + self.chunk_bits * 1e-9)
        for lane in np.flatnonzero(sent).tolist():
            at, to = self._ends[lane]
            chunk = self._queues[lane].popleft()
            self._next(lane)
            self._landings += 1
            lands_s = now + float(self.paths.latency_s[self.sites[at], self.sites[to]])
            heappush(self._landing, (lands_s, self._landings, to, chunk))
        while self._landing and self._landing[0][0] <= now + 1e-9:
            _, _, to, chunk = heappop(self._landing)
            self._land(to, chunk)

    def _land(self, to: int, chunk: int) -> None:
        if to in self._gone or self._have[to, chunk]:
            return
        self._have[to, chunk] = True
        self._missing[to] -= 1
        self._pass_on(to, chunk)

    def next_event_s(self) -> float:
        """Seconds until a chunk has left or lands; inf if nothing moves."""
        moving = self.busy & (self.rate > 0)
        soonest = float((self.left[moving] / self.rate[moving]).min(initial=np.inf))
        if self._landing:
            soonest = min(soonest, self._landing[0][0] - self._now)
        return soonest

    def pop_complete(self, now: float, slack_s: float) -> list[tuple[int, float]]:
        """Receivers that have every chunk; latency is in the landings, so nothing is added."""
        self._now = now
        done = np.flatnonzero(self.active & (self._missing == 0)).tolist()
        self.active[done] = False
        return [(position, 0.0) for position in done]

    def involved(self) -> set[int]:
        """Nodes whose links matter now."""
        busy = self.busy
        return {*self.sender[busy].tolist(), *self.receiver[busy].tolist()}

    # ---- departures ------------------------------------------------------------------------------

    def remove(self, position: int) -> None:
        """A receiver is gone: what it had not sent comes from whoever feeds its children now."""
        if position in self._gone:
            return
        self._gone.add(position)
        self.active[position] = False
        for lane, (at, to) in enumerate(self._ends):
            if position not in (at, to):
                continue
            self._promised[to, list(self._queues[lane])] = False
            self._queues[lane].clear()
            self._next(lane)
        if self.striped:
            self._new_relays(position)
        else:
            above = self._parents[position]
            self._parents = [above if parent == position else parent for parent in self._parents]
            for chunk in np.flatnonzero(self._have[above]).tolist():
                self._pass_on(above, chunk)

    def _new_relays(self, position: int) -> None:
        """Chunks that the relay has not passed to all go to the others in proportion to their shares.

        What the new relay lacks, the source sends it again; without relays it sends to everybody.
        """
        others = [i for i, share in enumerate(self.plan.shares) if share > 0 and i not in self._gone]
        here = [i for i in range(len(self.nodes)) if i not in self._gone]
        dealt = dict.fromkeys(others, 0)
        for chunk, relay in enumerate(self._relays):
            if relay != position or self._promised[here, chunk].all():
                continue
            if others:
                relay = min(others, key=lambda i: (dealt[i] + 1) / self.plan.shares[i])
                dealt[relay] += 1
            else:
                relay = SOURCE
            self._relays[chunk] = relay
            self._pass_on(SOURCE, chunk)
            if relay != SOURCE and self._have[relay, chunk]:
                self._pass_on(relay, chunk)
