"""Which chunks bring a worker from what it holds to a version: the rules of the chain of deltas.

Pure rules over manifests. Called by the snapshot store (what must be kept, what a worker will need) and by
the receiver (what to fetch). A *payload* is an ordered list of chunks: those of a full file, then those of
one delta a version, oldest first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Chunk, File, Manifest

FLOOR_BYTES = 64 << 10
"""Smallest size that chunks are cut to on purpose: below, requests cost more than bytes."""
PIECES = 64
"""A payload is cut into this many chunks or more where the floor allows: enough for relays to pipeline."""

Put = Callable[[Chunk, bytearray], Awaitable[bool]]
"""Takes the bytes of a chunk that has come; False where they are not the chunk's."""


@dataclass(frozen=True, slots=True)
class Payload:
    """From `parent` (the version to hold beforehand, -1: none) or `base` (a full file) by `steps` of deltas.

    `base` is None exactly when `parent` is at least 0. Without steps the base is the version wanted.
    """

    base: Manifest | None
    steps: tuple[Manifest, ...]

    @property
    def parent(self) -> int:
        """The version that must be held beforehand; -1: none."""
        return -1 if self.base is not None else self.steps[0].parent

    @property
    def target(self) -> Manifest:
        """The version that comes out."""
        return self.steps[-1] if self.steps else self._full_of()[0]

    @property
    def files(self) -> tuple[tuple[Manifest, File], ...]:
        """The files to have, in order, each with the manifest that lists it."""
        deltas = tuple((step, step.delta) for step in self.steps if step.delta is not None)
        return deltas if self.base is None else (self._full_of(), *deltas)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks in order; what a route's turns count. The same chunk may come twice."""
        return tuple(chunk for _, file in self.files for chunk in file.chunks)

    @property
    def bytes(self) -> int:
        """Bytes of all files, without the model files."""
        return sum(file.size for _, file in self.files)

    def _full_of(self) -> tuple[Manifest, File]:
        if self.base is None or self.base.full is None:
            raise ValueError("a payload starts from a full file or from a delta")
        return self.base, self.base.full


def needed_for(version: int, manifests: Mapping[int, Manifest]) -> frozenset[int]:
    """The versions without which `version` cannot be had from nothing. Empty if it cannot be had at all."""
    found: set[int] = set()
    while version in manifests and version not in found:
        found.add(version)
        manifest = manifests[version]
        if manifest.full is not None:
            return frozenset(found)
        if not follows(manifest, manifests.get(manifest.parent)):
            break
        version = manifest.parent
    return frozenset()


def follows(manifest: Manifest, parent: Manifest | None) -> bool:
    """Whether `parent` is the very one that the manifest's delta is against."""
    return (
        parent is not None
        and manifest.delta is not None
        and (parent.version, parent.weights) == (manifest.parent, manifest.parent_weights)
        and parent.version < manifest.version
    )


def payload_of(manifests: Mapping[int, Manifest], version: int, parent: int = -1) -> Payload:
    """What brings a holder of `parent` to `version`; -1: the newest full file and the deltas after it.

    Raises SnapshotError where the chain does not lead there.
    """
    steps: list[Manifest] = []
    at = manifests.get(version)
    while at is not None:
        if parent < 0 and at.full is not None:
            return Payload(at, tuple(reversed(steps)))
        steps.append(at)
        if at.delta is not None and at.parent == parent >= 0:
            return Payload(None, tuple(reversed(steps)))
        before = manifests.get(at.parent)
        at = before if follows(at, before) else None
    start = f"version {parent}" if parent >= 0 else "a full snapshot"
    raise SnapshotError(
        f"no chain of deltas leads from {start} to version {version}; take the newest full one"
    )


def cheapest(chain: Sequence[Manifest], held: Mapping[int, Set[str]]) -> Payload | None:
    """The payload of fewest bytes along `chain` (newest first), given the weights held of each version."""
    best: Payload | None = None
    for count, manifest in enumerate(chain):
        later = tuple(reversed(chain[:count]))
        ways = [Payload(manifest, later)] if manifest.full is not None else []
        if manifest.delta is not None and manifest.parent_weights in held.get(manifest.parent, frozenset()):
            ways.append(Payload(None, (manifest, *later)))
        for way in ways:
            if best is None or way.bytes < best.bytes:
                best = way
    return best


def delta_chunks(total: float, most: int) -> int:
    """How many chunks a file of so many bytes is cut into by `next_chunk_bytes`; at least 1."""
    count, written = 1, next_chunk_bytes(0, most)
    while written < total:
        count, written = count + 1, written + next_chunk_bytes(written, most)
    return count


def chunk_bytes_of(total: int, most: int) -> int:
    """Bytes of each chunk of a file of `total` bytes: total / 64, at least 64 KiB, at most `most` (ours)."""
    return min(most, max(FLOOR_BYTES, -(-total // PIECES)))


def next_chunk_bytes(written: int, most: int) -> int:
    """Bytes of the next chunk of a file whose end is not known yet: what is written / 64, within the same
    limits (ours).

    64 chunks of 64 KiB, then each larger by 1/64: no chunk is more than 1/64 of the whole file or 64 KiB,
    and the count grows with the logarithm of the size.
    """
    return min(most, max(FLOOR_BYTES, written // PIECES))
