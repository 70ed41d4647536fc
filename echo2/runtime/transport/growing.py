"""A payload on its way to this worker while its list of chunks still grows.

Made by the gatherer for a delta that is being encoded. A route's turns are gone through again and again:
everybody who receives along the plan numbers the chunks alike, so a relay is asked for what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.gathering import Gathering
from echo2.runtime.transport.lane import Lane

if TYPE_CHECKING:
    from echo2.runtime.transport.chain import Put
    from echo2.runtime.transport.gather import Gatherer


class Growing(Gathering):
    """The state of one gather without a known end: `grow`, then `close`."""

    def __init__(self, owner: Gatherer, version: int, put: Put) -> None:
        super().__init__(owner, version, (), (), put)
        self._open = True
        self._known: set[str] = set()

    def grow(self, chunks: Sequence[m.Chunk]) -> None:
        """The next chunks of the payload; they are fetched from now on."""
        new = []
        for i, chunk in enumerate(chunks, self._count):
            if chunk.digest not in self._known:
                self._known.add(chunk.digest)
                new.append(i)
        self._payload = (*self._payload, *chunks)
        self._count = len(self._payload)
        self._missing.update(new)
        for i in new:
            self._give(i)

    @property
    def missing(self) -> int:
        """Chunks that are known and not here yet."""
        return len(self._missing)

    def close(self) -> None:
        """No more chunks will come: the gather ends with the last of those known."""
        self._open = False
        self._end_if_whole()

    # ---- inside ------------------------------------------------------------------------------------

    @property
    def _unfinished(self) -> bool:
        return self._open or bool(self._missing)

    def _give(self, i: int) -> None:
        """Let the source of a new chunk owe it, after what it owes already; its pace is judged on."""
        source = self._source_of(i)
        if source.worker_id not in self._lanes:
            self._owe(self._lane(source), [])
        lane = self._lane(source)
        if lane.dead:
            lane = self._lanes[m.LEARNER]
        if not lane.queue:
            lane.pace.owes()
        lane.queue.append(i)
        self._whose[i] = lane.source.worker_id
        lane.changed.set()
        self._begin_streams(lane)

    def _source_of(self, i: int) -> m.Source:
        route = self._route
        if route is None or not route.turns or i >= self._count:
            return super()._source_of(i)
        return route.sources[route.turns[i % len(route.turns)]]

    def _expected_bps(self, lane: Lane, n_bytes: int) -> float:
        """By the size that was expected when the route was made: what is known yet says nothing."""
        route = self._route
        if route is None or route.draft is None or route.expected_s <= 0 or not route.turns:
            return 0.0
        owed = sum(route.sources[turn] == lane.source for turn in route.turns)
        return 8.0 * route.draft.bytes / route.expected_s * owed / len(route.turns)
