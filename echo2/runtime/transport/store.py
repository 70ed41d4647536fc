"""Chunks on disk under their SHA-256: written atomically, reused, thrown away when nobody holds them.

A chunk file either has all its bytes or does not exist, so whoever finds one may serve it.
Owned by a snapshot store.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.transport.messages import Chunk

Bytes = bytes | bytearray | memoryview

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ChunkStore:
    """Files `ab/abcdef...` under `directory`. All methods block; safe to call from several threads."""

    def __init__(self, directory: Path) -> None:
        """Raises UserError when the directory cannot be used."""
        self.directory = directory
        self._lock = threading.Lock()
        self._held: Counter[Chunk] = Counter()
        with explained(directory):
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a chunk lies or would lie. Raises ValueError for what is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest[:80]!r} is not a SHA-256 in hexadecimal")
        return self.directory / digest[:2] / digest

    def has(self, chunk: Chunk) -> bool:
        """Whether the whole chunk is there."""
        try:
            return self.path(chunk.digest).stat().st_size == chunk.size
        except OSError:
            return False

    def put(self, data: Bytes) -> Chunk:
        """Keep bytes under their SHA-256, and hold the chunk once. Raises OSError (disk full)."""
        view = memoryview(data).cast("B")
        chunk = Chunk(digest=hashlib.sha256(view).hexdigest(), size=len(view))
        self.hold([chunk])
        try:
            if not self.has(chunk):
                write_whole(self.path(chunk.digest), view)
        except BaseException:
            self.release([chunk])
            raise
        return chunk

    def hold(self, chunks: Iterable[Chunk]) -> None:
        """Keep chunks until they are released as often as they were held."""
        with self._lock:
            for chunk in chunks:
                self._held[chunk] += 1

    def release(self, chunks: Iterable[Chunk]) -> None:
        """Throw away those that nobody holds any more; whoever is reading one can read on."""
        for chunk in chunks:
            # one at a time, so that a writer need not wait for thousands of deletions
            with self._lock:
                self._held[chunk] -= 1
                if self._held[chunk] <= 0:
                    del self._held[chunk]
                    self.path(chunk.digest).unlink(missing_ok=True)

    def bytes_held(self) -> int:
        """Bytes of all chunks that are held, each once."""
        with self._lock:
            return sum(chunk.size for chunk in self._held)

    def sweep(self) -> None:
        """Throw away every file that is not held: what a crash left behind."""
        with self._lock:
            keep = {chunk.digest for chunk in self._held}
            for file in self.directory.glob("??/*"):
                if file.name not in keep:
                    file.unlink(missing_ok=True)


def write_whole(path: Path, data: Bytes) -> None:
    """Write a file beside its place and rename it, so that it is whole or not there. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            stream.write(data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def cut(pieces: Iterable[Bytes], size: int) -> Iterator[memoryview]:
    """The bytes of all pieces, in order, cut at every `size`; a view is valid until the next is asked for."""
    held = bytearray(size)
    at = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            step = min(size - at, len(view))
            held[at : at + step] = view[:step]
            at, view = at + step, view[step:]
            if at == size:
                yield memoryview(held)
                at = 0
    if at:
        yield memoryview(held)[:at]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError inside the context into a UserError that names the path and the way out."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; free some space or choose another "
            "directory"
        ) from error
