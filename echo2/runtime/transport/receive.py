"""A worker's side of a snapshot: fetch it whole, verify it, and only then show it. Called by the worker.

Chunks go straight to their place in an unfinished directory, which is renamed when every byte has been
verified; so a model directory that exists is a whole one, and a fetch that is cancelled, refused or cut off
changes nothing. Where a version on this disk leads to the wanted one by deltas, they are fetched instead of
the full file; when they do not come or do not fit, the newest full file and the deltas after it are. What an
unfinished or an earlier version on disk already holds is not fetched again. What is still encoded is fetched
ahead where the route says so (`ahead`). Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from echo2.errors import UserError
from echo2.runtime.transport import chain
from echo2.runtime.transport.ahead import Ahead
from echo2.runtime.transport.client import Client, Refused
from echo2.runtime.transport.disk import Disk
from echo2.runtime.transport.gather import Gatherer, GatherSettings
from echo2.runtime.transport.manifest_check import SnapshotError, check_manifest
from echo2.runtime.transport.messages import Chunk, Manifest, Route
from echo2.runtime.transport.shelf import Shelf

log = logging.getLogger("echo2.worker")

LONGEST_CHAIN = 1000
"""Manifests asked for at most to find a chain."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Received:
    """A verified snapshot at `path`, a model directory. Seconds of fetching and verifying, bytes fetched.

    `parent`: the version it was made from by deltas alone; -1: from a full file.
    """

    path: Path
    manifest: Manifest
    transfer_s: float
    check_s: float
    bytes: int
    parent: int = -1


class SnapshotReceiver:
    """Fetches snapshots of the client's run into `directory`, one at a time, and keeps the last few."""

    def __init__(
        self,
        client: Client,
        directory: Path,
        streams: int = 4,
        keep: int = 2,
        give_up_s: float = 120.0,
        max_bytes: int = 1 << 42,
        gatherer: Gatherer | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """`streams` chunks at once; `keep` snapshots on disk, which later ones are made from.

        `give_up_s`: how long failures in a row may go on; `max_bytes`: the largest snapshot taken;
        `gatherer`: brings the chunks (None: all from the learner); `shelf`: told of every chunk on this disk.
        """
        if streams < 1 or keep < 1:
            raise UserError(f"streams is {streams} and keep {keep}; both must be at least 1")
        self._client, self._max_bytes = client, max_bytes
        settings = GatherSettings(streams=streams, give_up_s=give_up_s)
        self._gatherer = gatherer or Gatherer(client, "", settings=settings)
        self.shelf = shelf or Shelf()
        self._disk = Disk(directory, keep, self.shelf)
        self._ahead = Ahead(client, self._disk, self._gatherer, self.shelf, max_bytes, self._in_thread)
        self._one_at_a_time = asyncio.Lock()
        self._step: asyncio.Task[object] | None = None

    async def fetch(self, version: int = -1, parent: int = -1, route: Route | None = None) -> Received:
        """The snapshot of `version` (-1: the newest) as a model directory, verified to the last byte.

        With a `route` the payload is the one it was made for: the deltas from `parent` on, or from the newest
        full file on for -1. Without, it is the smallest that this disk allows. Raises SnapshotError for a
        snapshot that is not what it says or does not fit here, UserError for a full disk or a learner out of
        reach. Cancelling is safe at any time.
        """
        async with self._one_at_a_time:
            if self._step is not None:
                # a thread that a cancelled fetch has left behind still writes
                await asyncio.wait([self._step])
            began_s = time.monotonic()
            target, ahead_bytes = await self._target(version, parent, route)
            ahead_s, began_s = time.monotonic() - began_s if ahead_bytes else 0.0, time.monotonic()
            if (path := await self._in_thread(self._disk.have, target)) is not None:
                return Received(path, target, 0.0, time.monotonic() - began_s, 0)
            got = await self._brought(target, parent, route)
            return replace(got, transfer_s=got.transfer_s + ahead_s, bytes=got.bytes + ahead_bytes)

    async def _target(self, version: int, parent: int, route: Route | None) -> tuple[Manifest, int]:
        """The manifest, and the bytes of the delta that came while it was encoded, where the route has it so.

        Where those have to be thrown away, the version is waited for, and fetched like any other.
        """
        if route is None or route.draft is None:
            return await self._manifest(version), 0
        try:
            return await self._ahead.fetch(version, parent, route, self._manifest)
        except SnapshotError as error:
            log.warning("version %d: what came while it was encoded is dropped: %s", version, error)
            await self._ahead.settled(version, route.draft)
            try:
                return await self._manifest(version), 0
            except Refused:
                raise error from None

    async def _brought(self, target: Manifest, parent: int, route: Route | None) -> Received:
        """By the payload that was planned; by the newest full file where that fails."""
        payload: chain.Payload | None = None
        try:
            payload = await self._payload(target, parent, route)
            return await self._bring(payload, route)
        except SnapshotError as error:
            whole = await self._from_nothing(target, error)
            if payload is not None and [f for _, f in whole.files] == [f for _, f in payload.files]:
                raise
            log.warning(
                "version %d by deltas failed (%s): taking the full snapshot of version %d and %d deltas",
                target.version, error, whole.files[0][0].version, len(whole.steps),
            )  # fmt: skip
            return await self._bring(whole, None)

    async def _bring(self, payload: chain.Payload, route: Route | None) -> Received:
        began_s = time.monotonic()
        job = await self._in_thread(self._disk.prepare, payload)
        self.shelf.expect(payload.target.version, [chunk.digest for chunk in payload.chunks])

        async def put(chunk: Chunk, data: bytearray) -> bool:
            return await asyncio.to_thread(self._disk.take, job, chunk, data)

        version = payload.target.version
        job.bytes = await self._gatherer.gather(version, payload.chunks, job.waiting, put, route)
        fetched_s = time.monotonic()
        path = await self._in_thread(self._disk.finish, job)
        seconds = time.monotonic() - fetched_s
        return Received(path, payload.target, fetched_s - began_s, seconds, job.bytes, payload.parent)

    def _in_thread(self, step: Callable[..., Made], *given: object) -> asyncio.Future[Made]:
        """Begin a step that blocks. A cancelled caller leaves at once; `fetch` waits for what it left."""
        task = asyncio.create_task(asyncio.to_thread(step, *given))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._step = task
        return asyncio.shield(task)

    # ---- which payload ---------------------------------------------------------------------------

    async def _manifest(self, version: int) -> Manifest:
        manifest = await self._client.manifest(version)
        check_manifest(manifest, version, self._client.run_id, self._max_bytes)
        return manifest

    async def _payload(self, target: Manifest, parent: int, route: Route | None) -> chain.Payload:
        """What to fetch. Raises SnapshotError where no chain leads there."""
        held = await self._in_thread(self._disk.held)
        if route is not None or parent >= 0:
            found = await self._chain(target, parent, held)
            payload = chain.payload_of({m.version: m for m in found}, target.version, parent)
            if parent < 0 or payload.steps[0].parent_weights in held.get(parent, ()):
                return payload
            log.warning("version %d, from which deltas to %d lead on, is not here", parent, target.version)
        best = chain.cheapest(await self._chain(target, -1, held), held)
        if best is None:
            raise SnapshotError(f"no chain of deltas leads to version {target.version}")
        return best

    async def _from_nothing(self, target: Manifest, cause: SnapshotError) -> chain.Payload:
        """The newest full file and the deltas after it. Raises `cause` where that cannot be had either."""
        try:
            found = await self._chain(target, -1, {})
            return chain.payload_of({m.version: m for m in found}, target.version)
        except SnapshotError:
            raise cause from None

    async def _chain(self, target: Manifest, parent: int, held: dict[int, set[str]]) -> list[Manifest]:
        """Manifests from the target back: to `parent`, else to a full file or to the last that may help."""
        found, oldest = [target], min(held, default=target.version)
        while len(found) < LONGEST_CHAIN:
            last = found[-1]
            if last.delta is None or last.parent == parent >= 0:
                break
            if parent < 0 and not self._goes_on(found, held, oldest):
                break
            try:
                before = await self._manifest(last.parent)
            except Refused as refused:
                log.info("the chain of version %d ends at %d: %s", target.version, last.version, refused)
                break
            if not chain.follows(last, before):
                raise SnapshotError(
                    f"version {last.version} is a delta against other weights than those of {before.version}"
                )
            found.append(before)
        return found

    @staticmethod
    def _goes_on(found: list[Manifest], held: dict[int, set[str]], oldest: int) -> bool:
        """Whether a manifest before these may lead to a smaller payload."""
        best = chain.cheapest(found, held)
        if best is None:
            return True
        deltas = sum(m.delta.size for m in found if m.delta is not None)
        return best.base is not None and oldest < found[-1].parent and deltas < best.bytes
