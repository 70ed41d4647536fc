"""An unfinished snapshot on a worker's disk: where its chunks go, what is there already, whether it is right.

Called by the receiver, in threads: everything here blocks.

    unfinished-version-00000007-<weights>/   model.safetensors, the model files, delta-00000007.echo2, ...
    version-00000007-<weights>/              the same once verified, with snapshot.json

Deltas stay beside the weights that were made with them, so that their chunks can be passed on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from echo2.runtime.transport.chain import Payload
from echo2.runtime.transport.digests import digest_of
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Chunk, File, Manifest
from echo2.runtime.transport.model_files import WEIGHTS_FILE
from echo2.runtime.transport.store import explained
from echo2.runtime.transport.tensor_table import read_entries, weights_digest_of

MANIFEST_FILE = "snapshot.json"
"""One manifest a line: the version's own, then those of the other deltas that lie here."""

Place = tuple[Path, int]
Sources = dict[str, list[Place]]


class Placing(Protocol):
    """What chunks are being put into: a directory, and where each chunk goes."""

    path: Path
    places: dict[Chunk, list[Place]]


@dataclass
class DraftJob:
    """One fetch of a delta whose list of chunks still grows: all of it goes into `file`.

    `parents`: identities of the weights held here of the version that it is against; `most_bytes`: what the
    tensors that come out have, which no delta reaches.
    """

    path: Path
    file: Path
    parents: frozenset[str]
    most_bytes: int
    places: dict[Chunk, list[Place]] = field(default_factory=dict)
    bytes: int = 0


@dataclass
class Job:
    """One fetch: where every chunk goes, and what has come.

    `path`: directory of the version wanted. `base`: directory of the full file it is made from, where that
    is another version's. `parent`: the file that the first delta is applied to (None: no deltas).
    """

    payload: Payload
    path: Path
    base: Path | None = None
    parent: Path | None = None
    places: dict[Chunk, list[Place]] = field(default_factory=dict)
    waiting: list[Chunk] = field(default_factory=list)
    bytes: int = 0

    @property
    def manifest(self) -> Manifest:
        """Of the version wanted."""
        return self.payload.target

    def files(self) -> Iterator[tuple[Path, File]]:
        """Every file to be filled from chunks."""
        for manifest, file in self.payload.files:
            if file is manifest.delta:
                yield self.path / delta_name(manifest.version), file
            else:
                yield (self.base or self.path) / WEIGHTS_FILE, file
        for file in self.manifest.model_files:
            yield self.path / file.name, file
        if self.base is not None and self.payload.base is not None:
            for file in self.payload.base.model_files:
                yield self.base / file.name, file


def delta_name(version: int) -> str:
    """The file of a version's delta in a directory."""
    return f"delta-{version:08d}.echo2"


def places_of(job: Job) -> dict[Chunk, list[Place]]:
    """Chunk -> everywhere it goes, small files first: what is missing then shows early."""
    places: dict[Chunk, list[Place]] = {}
    for path, file in sorted(job.files(), key=lambda f: f[0].name in (WEIGHTS_FILE,)):
        for chunk, at in layout(file):
            places.setdefault(chunk, []).append((path, at))
    return places


def layout(file: File) -> list[tuple[Chunk, int]]:
    """The chunks of a file with their offsets."""
    at, found = 0, []
    for chunk in file.chunks:
        found.append((chunk, at))
        at += chunk.size
    return found


def write_record(path: Path, manifests: list[Manifest]) -> None:
    """Note what a directory holds. Raises OSError."""
    text = "\n".join(manifest.model_dump_json() for manifest in manifests)
    (path / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_record(path: Path) -> list[Manifest]:
    """What `write_record` noted; nothing where that cannot be read or does not add up."""
    try:
        lines = (path / MANIFEST_FILE).read_text(encoding="utf-8").splitlines()
        manifests = [Manifest.model_validate_json(line) for line in lines]
    except (OSError, ValueError, ValidationError):
        return []
    if not manifests or weights_digest_of(manifests[0].tensors) != manifests[0].weights:
        return []
    return manifests


def chunks_in(path: Path, manifests: list[Manifest]) -> Iterator[tuple[Chunk, Place]]:
    """The chunks that a directory with this record should hold."""
    if not manifests:
        return
    own = manifests[0]
    files = [(file, file.name) for file in own.model_files]
    files += [(m.delta, delta_name(m.version)) for m in manifests if m.delta is not None]
    if own.full is not None:
        files.append((own.full, WEIGHTS_FILE))
    for file, name in files:
        if (path / name).is_file():
            for chunk, at in layout(file):
                yield chunk, (path / name, at)


def sources_in(path: Path) -> Sources:
    """Digest -> where a directory on this disk should hold that chunk."""
    found: Sources = {}
    for chunk, place in chunks_in(path, read_record(path)):
        found.setdefault(chunk.digest, []).append(place)
    return found


def take_local(job: Placing, chunk: Chunk, sources: list[Sources]) -> bool:
    """Put a chunk in its places from this disk, if its bytes are there and right."""
    elsewhere = [place for source in sources for place in source.get(chunk.digest, ())]
    for path, at in (*job.places[chunk], *elsewhere):
        with contextlib.suppress(OSError), path.open("rb") as stream:
            stream.seek(at)
            data = bytearray(stream.read(chunk.size))
            if has_digest(data, chunk):
                place(job, chunk, data)
                return True
    return False


def has_digest(data: bytes | bytearray, chunk: Chunk) -> bool:
    """Whether the bytes are the chunk's."""
    return len(data) == chunk.size and digest_of(data) == chunk.digest


def place(job: Placing, chunk: Chunk, data: bytes | bytearray) -> None:
    """Write verified bytes everywhere they belong. Opens anew each time, so a late thread harms nothing."""
    with explained(job.path):
        for path, at in job.places[chunk]:
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
            with path.open("r+b") as stream:
                stream.seek(at)
                stream.write(data)


def verify(path: Path, manifest: Manifest) -> None:
    """The model directory is what the manifest says, to the last byte. Raises SnapshotError or UserError."""
    for file in manifest.model_files:
        data = (path / file.name).read_bytes()
        if len(data) != file.size or not all(
            has_digest(data[at : at + chunk.size], chunk) for chunk, at in layout(file)
        ):
            raise SnapshotError(f"{file.name} of snapshot {manifest.version} is damaged; nothing was applied")
    entries = read_entries(path / WEIGHTS_FILE)
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
