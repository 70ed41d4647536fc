"""Snapshots of a live run: written in a thread of their own, fetched by workers, paid for by the byte.

Called by the live world, and by `workers` for what workers report of their sources. A broadcast is carried
out by orders to fetch, each with the route that the plan has for that worker. Where the payload is the delta
that is being encoded, the orders leave when the encoding begins: the route then goes round for as many chunks
as there will be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from echo2.policy import decisions as d
from echo2.policy.facts import WorkerOffer
from echo2.policy.settings import SchedulerSettings
from echo2.runtime.driver.life import Life
from echo2.runtime.driver.routes import Course, course_of, route_along, route_from
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.chain import delta_chunks
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.draft import Draft
from echo2.runtime.transport.snapshot import SnapshotStore


@dataclass(frozen=True, slots=True)
class _Writing:
    """A version that is being written: its draft, None once it is known that there is none; its manifest."""

    begun: asyncio.Future[Draft | None]
    done: asyncio.Future[m.Manifest]


class Snapshots:
    """Those being written, the orders to fetch that wait for them, and the broadcasts under way.

    `_courses` and `_reroutes` are by worker: what it receives along, or received last, and what has been
    changed since.
    """

    def __init__(
        self,
        life: Life,
        store: SnapshotStore,
        settings: SchedulerSettings,
        offers: Mapping[str, WorkerOffer],
    ) -> None:
        self._life, self._store, self._settings, self._offers = life, store, settings, offers
        self._writing: dict[int, _Writing] = {}
        self._draft: tuple[int, m.Draft] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="echo2-snapshot")
        self._courses: dict[str, Course] = {}
        self._reroutes: dict[str, d.Reroute] = {}

    def close(self) -> None:
        """End the thread; one that is at work still is not waited for."""
        self._writer.shutdown(wait=False, cancel_futures=True)

    # ---- writing ---------------------------------------------------------------------------------

    async def take(self, version: int, weights: Mapping[str, Any]) -> None:
        """Begin to write a version, after those before it: no more than one copy of the weights waits."""
        for earlier, writing in list(self._writing.items()):
            await asyncio.shield(writing.done)
            self._writing.pop(earlier, None)
        self._writing[version] = self._write(version, weights)

    def proven(self, version: int, weights: str) -> bool:
        """Whether weights of this identity are the stored ones of `version`. Raises UserError if not kept."""
        return self._store.manifest(version).weights == weights

    def payload_bytes(self) -> float:
        """What a worker that holds the last version will need for the next: as much as for the last (ours).

        The scheduler is told when the step ends, and the delta of that step is only encoded then.
        """
        newest = self._store.manifest()
        return float(newest.delta.size) if newest.delta is not None else self._settings.full_snapshot_bytes

    def _write(self, version: int, weights: Mapping[str, Any]) -> _Writing:
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[Draft | None] = loop.create_future()

        def tell(draft: Draft | None) -> None:
            if not begun.done():
                begun.set_result(draft)

        done = loop.run_in_executor(
            self._writer, self._put, version, weights, lambda draft: loop.call_soon_threadsafe(tell, draft)
        )
        done.add_done_callback(lambda _: tell(None))
        # Whoever waits for it raises its error; when the run ends first, nobody does.
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Writing(begun, done)

    def _put(self, version: int, weights: Mapping[str, Any], begun: Callable[[Draft], object]) -> m.Manifest:
        full = self._settings.full_at(version)
        return self._store.put(version, weights, full=full, owned=True, begun=begun)

    # ---- fetching --------------------------------------------------------------------------------

    def publish(self, decision: d.PublishSnapshot) -> None:
        """Order all workers of the plan to fetch along it."""
        self._life.spawn(self._broadcast(decision))

    def reroute(self, decision: d.Reroute) -> None:
        """Order workers that receive along a plan to do without some relays."""
        self._life.records.metrics.rerouted(decision)
        for name in decision.worker_ids:
            self._reroutes[name] = decision
            course = self._courses.get(name)
            if course is not None and course.version == decision.version:
                self._order(name, course)

    def fetch(self, decision: d.FetchSnapshot) -> None:
        """Order one worker to fetch from one holder, or to fetch from there what it still lacks."""
        self._life.spawn(self._single(decision))

    def abort(self, decision: d.AbortTransfer) -> None:
        """Order a worker to give up a fetch."""
        self._life.hub.post(decision.worker_id, m.Abort(version=decision.version))

    def charge(self, worker_id: str, sources: Mapping[str, int]) -> None:
        """Charge what a worker has fetched, by whoever sent it, at the egress price between their sites."""
        links = self._settings.links
        to = links.index(self._offers[worker_id].site)
        for name, count in sources.items():
            offer = self._offers.get(name)
            sender = links.index(links.learner_site if offer is None else offer.site)
            self._life.records.egress_usd[worker_id] += float(links.egress[sender, to]) * count / 1e9

    async def _broadcast(self, decision: d.PublishSnapshot) -> None:
        version, plan = decision.version, decision.plan
        self._life.records.metrics.broadcast(decision)
        ahead = await self._sent_ahead(decision)
        await self._written(version)
        parent, chunks = self._payload(version, decision.parent_version)
        if not ahead or parent != decision.parent_version:
            if self._draft is not None and self._draft[0] == version:
                self._draft = None
            self._send(course_of(version, parent, plan, chunks))

    async def _sent_ahead(self, decision: d.PublishSnapshot) -> bool:
        """Whether the orders have left before the version is whole: where its delta is the payload."""
        version, plan, writing = decision.version, decision.plan, self._writing.get(decision.version)
        draft = await asyncio.shield(writing.begun) if writing is not None else None
        if draft is None or draft.parent != decision.parent_version:
            return False
        draft.followed_by(len(plan.order))
        self._draft = version, m.Draft(id=draft.id, bytes=round(plan.size_bytes))
        expected = delta_chunks(plan.size_bytes, self._store.chunk_bytes)
        self._send(course_of(version, draft.parent, plan, expected))
        return True

    def _send(self, course: Course) -> None:
        for name in course.plan.order:
            self._courses[name] = course
            self._order(name, course)

    async def _single(self, decision: d.FetchSnapshot) -> None:
        version, name = decision.version, decision.worker_id
        self._life.records.metrics.published(version, self._life.now())
        await self._written(version)
        self._courses.pop(name, None)
        parent, _ = self._payload(version, decision.parent_version)
        route = route_from(decision.source_id, decision.helpers, self._url_of)
        self._life.hub.post(name, m.Fetch(version=version, parent=parent, route=route))

    def _order(self, name: str, course: Course) -> None:
        reroute = self._reroutes.get(name)
        if reroute is not None and reroute.version != course.version:
            reroute = None
        route = route_along(course, name, reroute, self._url_of)
        if self._draft is not None and self._draft[0] == course.version:
            route = route.model_copy(update={"draft": self._draft[1]})
        self._life.hub.post(name, m.Fetch(version=course.version, parent=course.parent, route=route))

    async def _written(self, version: int) -> None:
        if (writing := self._writing.get(version)) is not None:
            await asyncio.shield(writing.done)

    def _payload(self, version: int, parent: int) -> tuple[int, int]:
        """(the version to hold beforehand, chunks); from nothing where no chain leads on from `parent`."""
        try:
            return parent, len(self._store.payload(version, parent).chunks)
        except Refusal:
            if parent < 0:
                raise
            return -1, len(self._store.payload(version).chunks)

    def _url_of(self, name: str) -> str:
        seat = self._life.hub.seats.get(name)
        return seat.relay_url if seat is not None else ""
