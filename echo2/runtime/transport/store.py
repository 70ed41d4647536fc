"""Chunks on disk under their digest: written atomically, reused, thrown away when nobody holds them.

A chunk file either has all its bytes or does not exist, so whoever finds one may serve it.
Owned by a snapshot store.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.transport.digests import digest_of
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
        self._sure: set[str] = set()
        with explained(directory):
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a chunk lies or would lie. Raises ValueError for what is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest[:80]!r} is not a digest in hexadecimal")
        return self.directory / digest[:2] / digest

    def has(self, chunk: Chunk) -> bool:
        """Whether the whole chunk is there."""
        try:
            return self.path(chunk.digest).stat().st_size == chunk.size
        except OSError:
            return False

    def put(self, data: Bytes) -> Chunk:
        """Keep bytes under their digest, and hold the chunk once. Raises OSError (disk full)."""
        view = memoryview(data).cast("B")
        chunk = Chunk(digest=digest_of(view), size=len(view))
        self.hold([chunk])
        try:
            if not self._is_sure(chunk):
                write_whole(self.path(chunk.digest), view)
                self._sure.add(chunk.digest)
        except BaseException:
            self.release([chunk])
            raise
        return chunk

    def _is_sure(self, chunk: Chunk) -> bool:
        """Whether the chunk is there with the right bytes.

        A file of an earlier life is read once: after a power failure it may have its size and not its bytes.
        """
        if not self.has(chunk):
            return False
        if chunk.digest not in self._sure:
            data = self.path(chunk.digest).read_bytes()
            if digest_of(data) != chunk.digest:
                return False
            self._sure.add(chunk.digest)
        return True

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
                    self._sure.discard(chunk.digest)
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
    # by thread too: a full file and a delta of the same version may hold the same chunk at the same time
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            stream.write(data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def cut(pieces: Iterable[Bytes], size: int | Callable[[int], int]) -> Iterator[memoryview]:
    """The bytes of all pieces, in order, cut at every `size`; good for as long as nobody changes a piece.

    `size` may be a rule: bytes cut so far -> bytes of the next part. A part that lies in one piece is not
    copied.
    """
    rule = size if callable(size) else (lambda _: size)
    done, most = 0, rule(0)
    held = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            step = min(most - len(held), len(view))
            whole = step == most
            if not whole:
                held += view[:step]
            if whole or len(held) == most:
                yield view[:step] if whole else memoryview(held)
                done, held = done + most, bytearray()
                most = rule(done)
            view = view[step:]
    if held:
        yield memoryview(held)


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
