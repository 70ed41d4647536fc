"""An unfinished snapshot on a worker's disk: where its chunks go, what is there already, whether it is right.

Called by the receiver, in threads: everything here blocks.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Chunk, File, Manifest
from echo2.runtime.transport.model_files import WEIGHTS_FILE
from echo2.runtime.transport.store import explained
from echo2.runtime.transport.tensor_table import read_entries, weights_digest_of

MANIFEST_FILE = "snapshot.json"


@dataclass
class Job:
    """One fetch: where every chunk goes, and what has come."""

    manifest: Manifest
    path: Path
    places: dict[Chunk, list[tuple[str, int]]]
    waiting: list[Chunk] = field(default_factory=list)
    bytes: int = 0


def places_of(manifest: Manifest) -> dict[Chunk, list[tuple[str, int]]]:
    """Chunk -> (file, offset) of everywhere it goes, in the order of the files."""
    places: dict[Chunk, list[tuple[str, int]]] = {}
    for file in (*manifest.model_files, *manifest.files):
        for chunk, at in layout(file):
            places.setdefault(chunk, []).append((file.name, at))
    return places


def layout(file: File) -> list[tuple[Chunk, int]]:
    """The chunks of a file with their offsets."""
    at, found = 0, []
    for chunk in file.chunks:
        found.append((chunk, at))
        at += chunk.size
    return found


def source_of(path: Path) -> dict[str, tuple[Path, int]]:
    """Digest -> (file, offset) of the chunks that a directory on this disk should hold."""
    try:
        manifest = Manifest.model_validate_json((path / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        chunk.digest: (path / file.name, at)
        for file in (*manifest.model_files, *manifest.files)
        for chunk, at in layout(file)
    }


def take_local(job: Job, chunk: Chunk, sources: list[dict[str, tuple[Path, int]]]) -> bool:
    """Put a chunk in its places from this disk, if its bytes are there and right."""
    own = [(job.path / name, at) for name, at in job.places[chunk][:1]]
    for path, at in (*own, *(source[chunk.digest] for source in sources if chunk.digest in source)):
        with contextlib.suppress(OSError), path.open("rb") as stream:
            stream.seek(at)
            data = bytearray(stream.read(chunk.size))
            if has_digest(data, chunk):
                place(job, chunk, data)
                return True
    return False


def has_digest(data: bytes | bytearray, chunk: Chunk) -> bool:
    """Whether the bytes are the chunk's."""
    return len(data) == chunk.size and hashlib.sha256(data).hexdigest() == chunk.digest


def place(job: Job, chunk: Chunk, data: bytearray) -> None:
    """Write verified bytes everywhere they belong. Opens anew each time, so a late thread harms nothing."""
    with explained(job.path):
        for name, at in job.places[chunk]:
            with contextlib.suppress(FileExistsError):
                (job.path / name).touch(exist_ok=False)
            with (job.path / name).open("r+b") as stream:
                stream.seek(at)
                stream.write(data)


def verify(job: Job) -> None:
    """The files on this disk are what the manifest says, to the last byte. Raises SnapshotError."""
    manifest = job.manifest
    for file in manifest.model_files:
        data = (job.path / file.name).read_bytes()
        if len(data) != file.size or not all(
            has_digest(data[at : at + chunk.size], chunk) for chunk, at in layout(file)
        ):
            raise SnapshotError(f"{file.name} of snapshot {manifest.version} is damaged; nothing was applied")
    entries = read_entries(job.path / WEIGHTS_FILE)
    said = {entry.name: entry for entry in manifest.tensors}
    for entry in entries:
        if said.pop(entry.name, None) != entry:
            raise SnapshotError(
                f"tensor {entry.name[:80]!r} of snapshot {manifest.version} is not what its manifest says; "
                "nothing was applied"
            )
    if said or weights_digest_of(entries) != manifest.weights:
        missing = f"lacks tensor {min(said)[:80]!r}" if said else "has other weights than its manifest says"
        raise SnapshotError(f"snapshot {manifest.version} {missing}; nothing was applied")
