"""A delta taken in while the learner still encodes it: its signed pages followed, its chunks fetched.

Called by the receiver for a route with a draft. Nothing is applied: the chunks wait in an unfinished
directory until the signed manifest lists the very same, and go on from there like any others; where anything
is wrong they are thrown away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from echo2.runtime.transport.client import Client, Refused
from echo2.runtime.transport.disk import Disk
from echo2.runtime.transport.gather import Gatherer
from echo2.runtime.transport.growing import Growing
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Chunk, Draft, Manifest, Route
from echo2.runtime.transport.pages import PageChain, Pages
from echo2.runtime.transport.retry import Unreachable
from echo2.runtime.transport.shelf import Shelf
from echo2.runtime.transport.signing import verified_page
from echo2.runtime.transport.unfinished import DraftJob

log = logging.getLogger("echo2.worker")

WAIT_S = 15
AGAIN_S = 0.1
QUIET_S = 600.0
"""A draft that grows no more for so long is given up."""

InThread = Callable[..., Awaitable[Any]]
"""Begins a step that blocks, at once; it ends before another fetch begins, awaited or not."""


class Ahead:
    """Follows one draft at a time."""

    def __init__(
        self, client: Client, disk: Disk, gatherer: Gatherer, shelf: Shelf, most_bytes: int, run: InThread
    ) -> None:
        self._client, self._disk, self._gatherer, self._shelf = client, disk, gatherer, shelf
        self._most_bytes, self._run = most_bytes, run
        self.quiet_s = QUIET_S

    async def fetch(
        self, version: int, parent: int, route: Route, manifest: Callable[[int], Awaitable[Manifest]]
    ) -> tuple[Manifest, int]:
        """The manifest, once all chunks of the delta are on disk, and the bytes that came.

        Raises SnapshotError for a draft that is given up or not as it should be: then nothing of it is left.
        """
        assert route.draft is not None
        draft = route.draft
        job: DraftJob = await self._run(self._disk.begin, version, draft.id, parent)
        try:
            most = min(self._most_bytes, job.most_bytes)
            chain = PageChain(self._client.run_id, version, draft.id, parent, job.parents, most)
            job.bytes = await self._gathered(job, chain, version, draft, route)
            made = await manifest(version)
            _check_end(made, chain, parent)
            await self._run(self._disk.adopt, job, made)
        except BaseException as error:
            dropping = self._run(self._disk.drop, job)
            if isinstance(error, Exception):  # who cancels a fetch waits for nothing
                await dropping
            if isinstance(error, Refused):
                raise SnapshotError(str(error)) from error
            raise
        return made, job.bytes

    async def settled(self, version: int, draft: Draft) -> None:
        """Wait until the learner has ended with a draft, whichever way. Its pages count for nothing."""
        number = 0
        while True:
            try:
                reply = await self._next(version, draft, number)
            except Refused:
                return
            number += len(reply.pages)
            if reply.whole:
                return

    # ---- inside ------------------------------------------------------------------------------------

    async def _gathered(
        self, job: DraftJob, chain: PageChain, version: int, draft: Draft, route: Route
    ) -> int:
        async def put(chunk: Chunk, data: bytearray) -> bool:
            return await asyncio.to_thread(self._disk.take, job, chunk, data)

        async def feed(run: Growing) -> None:
            heard_s, whole = time.monotonic(), False
            while not whole:
                reply = await self._next(version, draft, chain.number)
                for signed in reply.pages:
                    at, page = chain.bytes, verified_page(signed, self._client.run_key)
                    chunks = chain.take(page)
                    await self._run(self._disk.extend, job, chunks, at)
                    self._shelf.expect(version, [chunk.digest for chunk in chain.chunks])
                    run.grow(chunks)
                    heard_s = time.monotonic()
                whole = reply.whole
                if time.monotonic() - heard_s > self.quiet_s:
                    raise SnapshotError(f"version {version} has not grown for {self.quiet_s:g} s")
            log.info(
                "version %d is whole: %d of its %d chunks are here, told by %d pages",
                version, len(chain.chunks) - run.missing, len(chain.chunks), chain.number,
            )  # fmt: skip
            run.close()

        return await self._gatherer.gather_growing(version, put, route, feed)

    async def _next(self, version: int, draft: Draft, number: int) -> Pages:
        """The next pages. A learner that is silent is waited for as long as for its chunks."""
        began_s = time.monotonic()
        while True:
            try:
                reply = await self._client.pages(version, draft.id, number, WAIT_S)
            except Unreachable:
                if time.monotonic() - began_s > self._gatherer.settings.give_up_s:
                    raise
                continue
            if not reply.pages and not reply.whole:
                await asyncio.sleep(AGAIN_S)  # a learner may answer at once
            return reply


def _check_end(manifest: Manifest, chain: PageChain, parent: int) -> None:
    """Raise SnapshotError unless the manifest lists what the pages told."""
    delta = manifest.delta
    told = (parent, chain.parent_weights, tuple(chain.chunks))
    if delta is None or (manifest.parent, manifest.parent_weights, delta.chunks) != told:
        raise SnapshotError(f"version {manifest.version} was not published as the delta that its pages told")
