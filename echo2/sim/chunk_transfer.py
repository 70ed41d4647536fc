"""One snapshot on its way chunk by chunk, store and forward: who has which chunk, what waits on which edge.

Made and given rates by `echo2.sim.chunks`. Every edge (sender to receiver) is a lane: a queue of chunks, the
first of them on the wire. A chunk that has left the sender lands after the latency; a relay then puts it on
the lanes of those it feeds. Knows nothing of the formulas of the planner and of the fluid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan, chunk_relays, living_parents, relays_without, with_chunks
from echo2.sim.transfers import SOURCE, Paths, Transfer, TreeTransfer

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MOST_SENDS = 200_000
LEAST_CHUNKS = 64
NOTHING = np.iinfo(np.int64).max
NOBODY: frozenset[str] = frozenset()


def carried_in(plan: BroadcastPlan, most_sends: int = MOST_SENDS) -> int:
    """Chunks the plan is carried out in: its own, or fewer and larger ones for at most `most_sends` sends.

    Never below 64 for that; fewer chunks make the pipeline's fill longer.
    """
    return min(plan.chunks, max(LEAST_CHUNKS, most_sends // max(1, len(plan.order))))


class ChunkTransfer(Transfer):
    """Lanes are numbered as they come up; (L,) arrays hold what is known of each.

    `sender` and `receiver` are nodes, `cap_bps` the pair's level, `left` the bits of the chunk on the wire
    that have not left, `first` its place in the source's order; `busy` lanes have a chunk.
    """

    def __init__(
        self,
        version: int,
        plan: BroadcastPlan,
        source: int,
        nodes: IntArray,
        sites: IntArray,
        paths: Paths,
        had: IntArray | None = None,
    ) -> None:
        """`had` (N,): how many chunks each receiver has already, the first ones; none where not given."""
        super().__init__(version, with_chunks(plan, carried_in(plan)), source, nodes, sites, paths)
        plan, count = self.plan, len(nodes)
        self.striped = bool(plan.shares)
        self._parents = list(plan.parents) if plan.parents else [SOURCE] * count
        self._lines = {NOBODY: chunk_relays(plan)}
        self._members = {NOBODY: set(range(count))}
        self._have = np.zeros((count + 1, plan.chunks), dtype=bool)
        self._have[SOURCE] = True
        if had is not None:
            self._have[:-1] = np.arange(plan.chunks) < had[:, None]
        self._promised = self._have.copy()
        self._missing = plan.chunks - self._have[:-1].sum(axis=1)
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
        if had is None:
            for chunk in range(plan.chunks):
                self._pass_on(SOURCE, chunk)

    @classmethod
    def resumed(cls, tree: TreeTransfer, plan: BroadcastPlan) -> ChunkTransfer:
        """What is left of a fluid tree, by another plan: whole chunks of what each receiver has by now.

        Nothing is on its way until `reroute` says so.
        """
        had = (tree.landed() * plan.chunks + 1e-6).astype(np.int64)
        made = cls(tree.version, plan, tree.source, tree.nodes, tree.sites, tree.paths, had)
        made.began_s, made.active = tree.began_s, tree.active.copy()
        made._gone = set(tree.left_behind())
        return made

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
        fed: list[int] = []
        for avoided, members in self._members.items():
            relay = self._lines[avoided][chunk]
            if relay == at:
                fed += [i for i in members if i != at]
            elif at == SOURCE and relay in members:
                fed.append(relay)
        return sorted(i for i in fed if i not in self._gone)

    def _source_of(self, position: int, chunk: int) -> int:
        """From whom a receiver takes a chunk (see `broadcast.sources_of`)."""
        if not self.striped:
            return self._parents[position]
        avoided = next(key for key, members in self._members.items() if position in members)
        relay = self._lines[avoided][chunk]
        return SOURCE if relay == position else relay

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

    def leave(self, position: int) -> None:
        """A receiver is gone: nothing flows to it or from it any more."""
        if position not in self._gone:
            self._gone.add(position)
            self.active[position] = False
            self._clear(lambda at, to: position in (at, to))

    def fed_by(self, relay: str) -> list[int]:
        """Positions that have still to get something from a relay."""
        at = self.plan.order.index(relay) if relay in self.plan.order else SOURCE
        if at == SOURCE:
            return []
        active = set(np.flatnonzero(self.active).tolist()) - {at}
        if not self.striped:
            return sorted(i for i in active if self._parents[i] == at)
        using = (members for key, members in self._members.items() if at in self._lines[key])
        return sorted(active & set().union(*using))

    def reroute(self, positions: Set[int], without: Set[str]) -> None:
        """These get what they lack from others; the part of a chunk that was on its way is lost."""
        order = self.plan.order
        who = {i for i in positions if i not in self._gone}
        dead = {i for i, name in enumerate(order) if name in without}
        self._clear(lambda at, to: at in dead and to in who)
        if self.striped:
            avoided = frozenset(without)
            if avoided not in self._lines:
                self._lines[avoided] = relays_without(self.plan, avoided)
            for members in self._members.values():
                members -= who
            self._members.setdefault(avoided, set()).update(who)
            self._members = {key: members for key, members in self._members.items() if members}
        else:
            living = living_parents(self.plan, without)
            self._parents = [living[i] if i in who else parent for i, parent in enumerate(self._parents)]
        for position in sorted(who):
            self._ask(position)
        self._sort_source()

    def go_over(self, plan: BroadcastPlan) -> None:
        """A tree goes on as stripes: what is on the wire still comes, all else is asked for anew."""
        self.plan, self.striped = plan, True
        self._lines = {NOBODY: chunk_relays(plan)}
        self._members = {NOBODY: set(range(len(self.nodes)))}
        self._clear(lambda _at, _to: True, keep=1)
        for position in np.flatnonzero(self.active).tolist():
            self._ask(position)
        self._sort_source()

    def _ask(self, position: int) -> None:
        """A receiver asks for what nobody is to send it yet, where its source has that already."""
        for chunk in np.flatnonzero(~self._promised[position]).tolist():
            source = self._source_of(position, chunk)
            if self._have[source, chunk] and source not in self._gone:
                self._promised[position, chunk] = True
                self._enqueue(source, position, chunk)

    def _sort_source(self) -> None:
        """Receivers ask the source in the order of the chunks: what they took over late goes first."""
        for lane, (at, _) in enumerate(self._ends):
            queue = self._queues[lane]
            if at == SOURCE and len(queue) > 2:
                on_wire = queue.popleft()
                self._queues[lane] = deque([on_wire, *sorted(queue)])

    def _clear(self, ends: Callable[[int, int], bool], keep: int = 0) -> None:
        """Empty the lanes whose ends (sender, receiver) are such; `keep` 1: but for what is on the wire."""
        for lane, (at, to) in enumerate(self._ends):
            if ends(at, to) and len(self._queues[lane]) > keep:
                chunks = list(self._queues[lane])
                self._promised[to, chunks[keep:]] = False
                self._queues[lane] = deque(chunks[:keep])
                if not keep:
                    self._next(lane)
