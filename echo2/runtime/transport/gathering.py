"""One payload on its way to this worker: which chunk comes from whom, and what becomes of failures.

Made by the gatherer. Each source is a lane with a few streams; a stream fetches the first chunk that its
lane owes and nobody fetches already. Bytes that have come are kept over failures and changes of route, and
what comes next from another source goes on where they end; should the whole then have the wrong digest, it
is fetched anew from one source, so that nobody is blamed for another.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from echo2.policy.broadcast.schedule import rarest_first
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Broken
from echo2.runtime.transport.fetching import TRIES, Fetching, Part
from echo2.runtime.transport.holdings import holdings_of
from echo2.runtime.transport.lane import Cause, Flight, Lane, Port, laggards
from echo2.runtime.transport.learner_port import learner_port
from echo2.runtime.transport.line import Line

if TYPE_CHECKING:
    from echo2.runtime.transport.chain import Put
    from echo2.runtime.transport.gather import Gatherer

log = logging.getLogger("echo2.worker")

WATCH_S = 0.25
HOLDINGS_S = 1.0
_LEARNER = m.Source(worker_id=m.LEARNER)


class Gathering:
    """The state of one gather; all of it on one event loop."""

    def __init__(
        self,
        owner: Gatherer,
        version: int,
        payload: Sequence[m.Chunk],
        missing: Sequence[m.Chunk],
        put: Put,
    ) -> None:
        self.version = version
        self._owner, self._put = owner, put
        first: dict[str, int] = {}
        for i, chunk in enumerate(payload):
            first.setdefault(chunk.digest, i)
        # what else is missing comes after the payload, where no route reaches
        others = [chunk for chunk in missing if chunk.digest not in first]
        self._payload, self._count = (*payload, *others), len(payload)
        wanted = {chunk.digest for chunk in missing}
        self._missing = {i for digest, i in first.items() if digest in wanted}
        self._missing |= set(range(len(payload), len(self._payload)))
        self._lanes: dict[str, Lane] = {}
        self._whose: dict[int, str] = {}
        self._flying: dict[int, Flight] = {}
        self._parts: dict[int, Part] = {}
        self._route: m.Route | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settings, url = owner.settings, owner.client.url
        self._fetching = Fetching(version, url, settings.wait_s, settings.give_up_s, self._fail)
        worker = int.from_bytes(hashlib.sha256(owner.worker_id.encode()).digest()[:4], "big")
        self._start = worker % max(1, len(payload))

    @property
    def bytes(self) -> int:
        """Bytes that have come."""
        return sum(lane.bytes for lane in self._lanes.values())

    def bytes_by_source(self) -> dict[str, int]:
        """The same by source."""
        return {name: lane.bytes for name, lane in self._lanes.items() if lane.bytes}

    @property
    def _unfinished(self) -> bool:
        return bool(self._missing)

    async def run(self, route: m.Route | None) -> int:
        """Until everything is there; bytes that came."""
        if not self._unfinished:
            return 0
        self.follow(route)
        watching = asyncio.create_task(self._watch(), name="echo2-gather-watch")
        watching.add_done_callback(self.ended)
        try:
            await self._end
        finally:
            tasks = [watching, *(task for lane in self._lanes.values() for task in lane.streams)]
            for lane in self._lanes.values():
                lane.close()
            watching.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.bytes

    # ---- who owes what -----------------------------------------------------------------------------

    def follow(self, route: m.Route | None) -> None:
        """From now on, what is missing comes along this route."""
        self._route = route
        queues: dict[m.Source, list[int]] = {}
        for i in sorted(self._missing):
            queues.setdefault(self._source_of(i), []).append(i)
        self._deal(queues)

    def _source_of(self, i: int) -> m.Source:
        route = self._route
        if route is None or not route.turns or i >= self._count:
            return _LEARNER
        if len(route.turns) == 1:
            return route.sources[route.turns[0]]
        return route.sources[route.turns[i]] if i < len(route.turns) else _LEARNER

    def _deal(self, queues: dict[m.Source, list[int]]) -> None:
        """Let every source owe its queue; the dead leave theirs to the learner."""
        owed: dict[str, list[int]] = {m.LEARNER: []}
        for source, queue in queues.items():
            lane = self._lane(source)
            owed.setdefault(m.LEARNER if lane.dead else source.worker_id, []).extend(queue)
        if any(self._lane(source).dead for source in queues):
            owed[m.LEARNER].sort()
        self._lane(_LEARNER)
        for name, lane in self._lanes.items():
            self._owe(lane, owed.get(name, []))
        # a chunk that is coming from one who is still in the plan may come; what is there of others is kept
        named = {m.LEARNER, *(source.worker_id for source in queues)}
        for i, flight in list(self._flying.items()):
            name = flight.lane.source.worker_id
            if name != self._whose.get(i) and not (flight.port.sending and name in named):
                flight.task.cancel()

    def _lane(self, source: m.Source) -> Lane:
        lane = self._lanes.get(source.worker_id)
        if lane is None:
            lane = self._lanes[source.worker_id] = Lane(source, self._owner.settings.pace)
        return lane

    def _owe(self, lane: Lane, queue: list[int]) -> None:
        name = lane.source.worker_id
        for i in queue:
            self._whose[i] = name
        sizes = [self._payload[i].size for i in queue]
        lane.owe(queue, self._expected_bps(lane, sum(sizes)), max(sizes, default=0))
        self._begin_streams(lane)

    def _expected_bps(self, lane: Lane, n_bytes: int) -> float:
        """What the plan expects of a source that owes so much; 0: nobody knows."""
        expected_s = self._route.expected_s if self._route is not None else 0.0
        return 8.0 * n_bytes / expected_s if expected_s > 0 else 0.0

    def _begin_streams(self, lane: Lane) -> None:
        name, queue = lane.source.worker_id, lane.queue
        while len(lane.streams) < min(self._owner.settings.streams, len(queue)) and not lane.dead:
            task = asyncio.create_task(self._stream(lane), name=f"echo2-gather-{name}")
            task.add_done_callback(self.ended)
            lane.streams.append(task)

    # ---- streams -----------------------------------------------------------------------------------

    async def _stream(self, lane: Lane) -> None:
        port = self._port(lane)
        lane.ports.append(port)
        while self._unfinished:
            i = self._next(lane)
            if i is None:
                lane.changed.clear()
                await lane.changed.wait()
                continue
            task = asyncio.create_task(self._fetch(lane, port, i))
            self._flying[i] = Flight(lane, port, task)
            try:
                await asyncio.wait({task})
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                del self._flying[i]
                if i in self._missing and (whose := self._lanes.get(self._whose[i])) is not None:
                    whose.changed.set()
            if not task.cancelled():
                task.result()
            if lane.dead:
                return

    def _port(self, lane: Lane) -> Port:
        owner = self._owner
        if lane.is_learner:
            return learner_port(owner.client, owner.worker_id, lane.heard)
        return Line(lane.source.url, owner.key, owner.worker_id, owner.link, lane.heard)

    def _next(self, lane: Lane) -> int | None:
        lane.queue = [i for i in lane.queue if i in self._missing]
        return next((i for i in lane.queue if i not in self._flying), None)

    def ended(self, task: asyncio.Task[None]) -> None:
        """A task of this gather has ended: with an error, so does the gather."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._end.done():
            self._end.set_exception(error)

    # ---- one chunk ---------------------------------------------------------------------------------

    async def _fetch(self, lane: Lane, port: Port, i: int) -> None:
        """Get chunk i from a source, or let the source fail. Returns early where others are to do it."""
        chunk = self._payload[i]
        part = self._parts.pop(i, None) or Part(bytearray(chunk.size))
        wrong = 0
        try:
            while await self._fetching.filled(lane, port, i, chunk, part):
                if await self._put(chunk, part.data):
                    return self._here(lane, i)
                only, part = part.sources <= {lane.source.worker_id}, Part(bytearray(chunk.size))
                wrong += only
                if only and not lane.is_learner:
                    return self._fail(lane, "wrong-bytes", f"chunk {chunk.digest} has another digest")
                if wrong >= TRIES:
                    raise self._fetching.wrong(chunk)
        finally:
            liars = {name for name, lane in self._lanes.items() if lane.dead == "wrong-bytes"}
            if i in self._missing and part.filled and not part.sources & liars:
                self._parts[i] = part

    def _here(self, lane: Lane, i: int) -> None:
        lane.pace.finished()
        if lane.is_learner:
            self._fetching.patience.progress()
        self._missing.discard(i)
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        if not self._unfinished and not self._end.done():
            self._end.set_result(None)

    # ---- failures ----------------------------------------------------------------------------------

    def _fail(self, lane: Lane, cause: Cause, detail: str) -> None:
        """Ask a relay no more. What it owes waits a little for a new route, then the learner gives it."""
        if lane.dead or lane.is_learner:
            return
        lane.dead = cause
        name = lane.source.worker_id
        log.warning(
            "version %d: %s is %s (%s); what it owes comes from elsewhere", self.version, name, cause, detail
        )
        report = m.SourceFailed(version=self.version, source_id=name, cause=cause, detail=detail[:2000])
        self._owner.failed(report)
        if cause == "wrong-bytes":
            for i in [i for i, part in self._parts.items() if name in part.sources]:
                del self._parts[i]
        lane.close()
        asyncio.get_running_loop().call_later(self._owner.settings.grace_s, self._to_learner, lane)

    def _to_learner(self, lane: Lane) -> None:
        name = lane.source.worker_id
        left = [i for i in self._missing if self._whose.get(i) == name]
        if left and not self._end.done():
            learner = self._lanes[m.LEARNER]
            self._owe(learner, sorted({*left, *learner.queue} & self._missing))

    def _judge(self, lanes: list[Lane]) -> None:
        """Let those fail that are too slow. Never the learner: there is nobody behind it."""
        for lane, detail in laggards(lanes, self._owner.settings.wait_s):
            self._fail(lane, "slow", detail)

    async def _watch(self) -> None:
        ticks = 0
        while True:
            self._judge([lane for lane in self._lanes.values() if not lane.dead])
            if self._route is not None and not self._route.turns and ticks % (HOLDINGS_S / WATCH_S) == 0:
                await self._pull(self._route)
            ticks += 1
            await asyncio.sleep(WATCH_S)

    # ---- pull: from whoever has it -----------------------------------------------------------------

    async def _pull(self, route: m.Route) -> None:
        """Deal what is missing anew among the sources by what they have now, the rarest chunks first."""
        able = [source for source in route.sources if source.url and not self._lane(source).dead]
        found = await asyncio.gather(*(self._holdings(source) for source in able))
        if self._route is not route:
            return
        holdings = {source.worker_id: have for source, have in zip(able, found)}
        by_id = {source.worker_id: source for source in able} | {m.LEARNER: _LEARNER}
        queues: dict[m.Source, list[int]] = {}
        for i, name in rarest_first(self._missing - self._flying.keys(), holdings, self._start):
            queues.setdefault(by_id[name], []).append(i)
        for i, flight in self._flying.items():
            queues.setdefault(flight.lane.source, []).append(i)
        self._deal(queues)

    async def _holdings(self, source: m.Source) -> set[int]:
        digests = (chunk.digest for chunk in self._payload[: self._count])
        try:
            return await holdings_of(source, self._owner, self.version, digests, self._count)
        except Broken as broken:
            self._fail(self._lane(source), "gone", str(broken))
            return set()
