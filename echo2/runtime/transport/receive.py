"""A worker's side of a snapshot: fetch it whole, verify it, and only then show it. Called by the worker.

Chunks go straight to their place in an unfinished directory, which is renamed when every byte has been
verified; so a model directory that exists is a whole one, and a fetch that is cancelled, refused or cut off
changes nothing. What an unfinished or an earlier version on disk already holds is not fetched again.
Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from echo2.errors import UserError
from echo2.runtime.transport.client import Broken, Client, Refused
from echo2.runtime.transport.manifest_check import SnapshotError, check_manifest
from echo2.runtime.transport.messages import Chunk, Manifest
from echo2.runtime.transport.retry import Patience
from echo2.runtime.transport.store import explained
from echo2.runtime.transport.unfinished import (
    MANIFEST_FILE,
    Job,
    has_digest,
    place,
    places_of,
    source_of,
    take_local,
    verify,
)

TRIES = 3
"""How often a chunk is fetched before its bytes are called wrong."""
_SPARE_BYTES = 64 << 20

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Received:
    """A verified snapshot at `path`, a model directory. Seconds of fetching and verifying, bytes fetched."""

    path: Path
    manifest: Manifest
    transfer_s: float
    check_s: float
    bytes: int


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
    ) -> None:
        """`streams` chunks at once; `keep` snapshots on disk, which later ones take equal chunks from.

        `give_up_s`: how long failures in a row may go on; `max_bytes`: the largest snapshot taken.
        """
        if streams < 1 or keep < 1:
            raise UserError(f"streams is {streams} and keep {keep}; both must be at least 1")
        self._client, self._directory = client, directory
        self._streams, self._keep = streams, keep
        self._give_up_s, self._max_bytes = give_up_s, max_bytes
        self._one_at_a_time = asyncio.Lock()
        self._step: asyncio.Task[object] | None = None

    async def fetch(self, version: int = -1) -> Received:
        """The snapshot of `version` (-1: the newest) as a model directory, verified to the last byte.

        Raises SnapshotError for one that is not what it says or does not fit here, UserError for a full
        disk or a learner out of reach. Cancelling is safe at any time.
        """
        async with self._one_at_a_time:
            if self._step is not None:
                # a thread that a cancelled fetch has left behind still writes
                await asyncio.wait([self._step])
            manifest = await self._client.manifest(version)
            check_manifest(manifest, version, self._client.run_id, self._max_bytes)
            began_s = time.monotonic()
            if (path := await self._in_thread(self._have, manifest)) is not None:
                return Received(path, manifest, 0.0, time.monotonic() - began_s, 0)
            job = await self._in_thread(self._prepare, manifest)
            await self._download(job)
            fetched_s = time.monotonic()
            await self._in_thread(verify, job)
            path = await self._in_thread(self._show, job)
            return Received(path, manifest, fetched_s - began_s, time.monotonic() - fetched_s, job.bytes)

    async def _in_thread(self, step: Callable[[Given], Made], given: Given) -> Made:
        """Run a step that blocks. A cancelled caller leaves at once; `fetch` waits for what it left."""
        task = asyncio.create_task(asyncio.to_thread(step, given))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._step = task
        return await asyncio.shield(task)

    # ---- disk: in threads ------------------------------------------------------------------------

    def _have(self, manifest: Manifest) -> Path | None:
        """The directory of this very snapshot if it is here and still verifies."""
        path = self._path(manifest)
        with contextlib.suppress(UserError, OSError):
            verify(Job(manifest, path, {}))
            os.utime(path)
            return path
        return None

    def _prepare(self, manifest: Manifest) -> Job:
        """Make the unfinished directory and put into it what is on this disk already."""
        final = self._path(manifest)
        job = Job(manifest, self._directory / f"unfinished-{final.name}", places_of(manifest))
        with explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            for other in self._directory.glob("unfinished-*"):
                if other != job.path:
                    shutil.rmtree(other, ignore_errors=True)
            job.path.mkdir(exist_ok=True)
            sources = [source_of(path) for path in (job.path, *self._shown())]
            job.waiting = [chunk for chunk in job.places if not take_local(job, chunk, sources)]
            missing = sum(chunk.size * len(job.places[chunk]) for chunk in job.waiting)
            free = shutil.disk_usage(self._directory).free
            if missing + _SPARE_BYTES > free:
                raise SnapshotError(
                    f"snapshot {manifest.version} needs {missing:,} more bytes in {str(self._directory)!r}, "
                    f"which has {free:,} free; free some space or choose another directory"
                )
            for file in (*manifest.files, *manifest.model_files):
                # also makes empty files, and cuts off what an earlier attempt may have left too long
                with (job.path / file.name).open("ab") as stream:
                    stream.truncate(file.size)
        return job

    def _show(self, job: Job) -> Path:
        """Give the verified directory its name, and throw away the oldest."""
        final = self._path(job.manifest)
        with explained(self._directory):
            (job.path / MANIFEST_FILE).write_text(job.manifest.model_dump_json(), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)
            job.path.rename(final)
            for old in self._shown()[self._keep :]:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def _shown(self) -> list[Path]:
        """Whole snapshots on this disk, the last one fetched first."""
        found = [path for path in self._directory.glob("version-*") if path.is_dir()]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def _path(self, manifest: Manifest) -> Path:
        # the weights belong to the name: a resumed run makes a version anew, with other weights
        return self._directory / f"version-{manifest.version:08d}-{manifest.weights[:16]}"

    # ---- network ---------------------------------------------------------------------------------

    async def _download(self, job: Job) -> None:
        patience = Patience(
            f"fetching snapshot {job.manifest.version} from {self._client.url}", self._give_up_s
        )
        queue = list(reversed(job.waiting))

        async def stream() -> None:
            while queue:
                await self._fetch_chunk(job, queue.pop(), patience)

        async with _first_error(), asyncio.TaskGroup() as group:
            for _ in range(min(self._streams, len(queue))):
                group.create_task(stream())

    async def _fetch_chunk(self, job: Job, chunk: Chunk, patience: Patience) -> None:
        for _ in range(TRIES):
            data = await self._fetch_bytes(job, chunk, patience)
            if await asyncio.to_thread(has_digest, data, chunk):
                await asyncio.to_thread(place, job, chunk, data)
                return
        raise SnapshotError(
            f"chunk {chunk.digest} of snapshot {job.manifest.version} from {self._client.url} has the wrong "
            "SHA-256; nothing was applied"
        )

    def _wrong_length(self, job: Job, chunk: Chunk, what: str) -> SnapshotError:
        return SnapshotError(
            f"chunk {chunk.digest} of snapshot {job.manifest.version} from {self._client.url} {what}; "
            "nothing was applied"
        )

    async def _fetch_bytes(self, job: Job, chunk: Chunk, patience: Patience) -> bytearray:
        """All bytes of the chunk; an attempt goes on where the one before broke off."""
        data = bytearray()
        while len(data) < chunk.size:
            had = len(data)
            try:
                async with self._client.chunk(chunk.digest, had) as pieces:
                    async for piece in pieces:
                        data += piece
                        job.bytes += len(piece)
                        if len(data) > chunk.size:
                            raise self._wrong_length(job, chunk, f"is longer than {chunk.size} bytes")
                if len(data) < chunk.size:
                    raise Broken("the answer was cut short")
            except Refused as refused:
                if refused.status == 416:
                    raise self._wrong_length(job, chunk, f"has {had} bytes, not {chunk.size}") from refused
                raise SnapshotError(
                    f"snapshot {job.manifest.version} is no longer served: {refused}"
                ) from refused
            except Broken as broken:
                if len(data) > had:
                    patience.progress()
                await patience.failed(str(broken))
        patience.progress()
        return data


@asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """The first error of a task group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
