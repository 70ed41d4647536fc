"""Which verified chunks lie on this worker's disk, and where: what its relay serves from.

Filled by the receiver as chunks come and directories are renamed or removed; read by the relay. A chunk is
added only after its digest has been checked, so the relay checks nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echo2.runtime.transport.messages import Holdings

KEPT_PAYLOADS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes `offset` to `offset + size` of a file."""

    path: Path
    offset: int
    size: int


class ChunkShelf(Protocol):
    """What a relay serves from."""

    def where(self, digest: str) -> Place | None:
        """Where a verified chunk lies now; None when it is not here."""
        ...

    async def arrived(self, digest: str, wait_s: float) -> Place | None:
        """The same, after waiting for it to come for `wait_s` at most."""
        ...

    def holdings(self, version: int) -> Holdings | None:
        """What is here of the payload of a version; None for a version that was never expected."""
        ...


class Shelf:
    """Chunks by digest. `add`, `moved` and `removed` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, list[Place]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._payloads: dict[int, tuple[str, ...]] = {}

    # ---- the receiver's side -----------------------------------------------------------------------

    def expect(self, version: int, digests: Sequence[str]) -> None:
        """The payload that this worker fetches for `version`, in order; the last few are remembered."""
        self._payloads.pop(version, None)
        self._payloads[version] = tuple(digests)
        for old in list(self._payloads)[:-KEPT_PAYLOADS]:
            del self._payloads[old]

    def add(self, digest: str, path: Path, offset: int, size: int) -> None:
        """A verified chunk lies at `path` from `offset` on."""
        place = Place(path, offset, size)
        with self._lock:
            known = self._places.setdefault(digest, [])
            if place not in known:
                known.append(place)
            waiting = self._waiting.pop(digest, set())
        for future in waiting:
            future.get_loop().call_soon_threadsafe(_wake, future)

    def moved(self, before: Path, after: Path) -> None:
        """A directory has another name now."""
        with self._lock:
            for digest, places in self._places.items():
                self._places[digest] = [
                    Place(after / place.path.name, place.offset, place.size)
                    if place.path.parent == before
                    else place
                    for place in places
                ]

    def removed(self, directory: Path) -> None:
        """A directory is gone, or about to go."""
        with self._lock:
            for digest in list(self._places):
                left = [place for place in self._places[digest] if place.path.parent != directory]
                if left:
                    self._places[digest] = left
                else:
                    del self._places[digest]

    # ---- the relay's side --------------------------------------------------------------------------

    def where(self, digest: str) -> Place | None:
        """Where a verified chunk lies now; None when it is not here."""
        with self._lock:
            places = list(self._places.get(digest, ()))
        return next((place for place in reversed(places) if place.path.is_file()), None)

    async def arrived(self, digest: str, wait_s: float) -> Place | None:
        """The same, after waiting for it to come for `wait_s` at most."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            here = digest in self._places
            if not here:
                self._waiting.setdefault(digest, set()).add(future)
        try:
            if not here:
                await asyncio.wait([future], timeout=wait_s)
        finally:
            with self._lock:
                if waiting := self._waiting.get(digest):
                    waiting.discard(future)
                    if not waiting:
                        del self._waiting[digest]
        return self.where(digest)

    def holdings(self, version: int) -> Holdings | None:
        """What is here of the payload of a version; None for a version that was never expected."""
        digests = self._payloads.get(version)
        if digests is None:
            return None
        with self._lock:
            have = [i for i, digest in enumerate(digests) if digest in self._places]
        return Holdings(
            version=version, chunks=len(digests), payload=payload_id(digests), have=packed(have, len(digests))
        )


def payload_id(digests: Iterable[str]) -> str:
    """The identity of a payload: SHA-256 over its chunks' digests, a line each (ours)."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def packed(have: Iterable[int], chunks: int) -> str:
    """A bitmap in hex: chunk i is bit i % 8 of byte i // 8."""
    bits = bytearray(-(-chunks // 8))
    for i in have:
        bits[i // 8] |= 1 << i % 8
    return bits.hex()


def unpacked(have: str, chunks: int) -> set[int]:
    """The chunks of a bitmap; bits beyond `chunks`, and what is no whole byte, count for nothing."""
    bits = bytes.fromhex(have[: len(have) // 2 * 2])
    return {i for i in range(min(chunks, 8 * len(bits))) if bits[i // 8] >> i % 8 & 1}


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
