"""A worker's snapshots on disk: those shown, and the one being made. Called by the receiver, in threads.

`shelf` is told of every verified chunk, of directories renamed and of those that go, so that a relay can
serve from here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.transport.chain import Payload
from echo2.runtime.transport.manifest_check import SnapshotError, result_bytes
from echo2.runtime.transport.messages import Chunk, Manifest
from echo2.runtime.transport.model_files import WEIGHTS_FILE
from echo2.runtime.transport.rebuild import rebuild
from echo2.runtime.transport.shelf import Shelf
from echo2.runtime.transport.store import explained
from echo2.runtime.transport.tensor_table import entry_bytes
from echo2.runtime.transport.unfinished import (
    DraftJob,
    Job,
    Placing,
    chunks_in,
    delta_name,
    has_digest,
    place,
    places_of,
    read_record,
    sources_in,
    take_local,
    verify,
    write_record,
)

_SPARE_BYTES = 64 << 20
_UNFINISHED = "unfinished-"


class Disk:
    """Directories `version-*` (whole) and `unfinished-*` under `directory`."""

    def __init__(self, directory: Path, keep: int, shelf: Shelf) -> None:
        self._directory, self._keep, self._shelf = directory, keep, shelf

    # ---- what is here ------------------------------------------------------------------------------

    def held(self) -> dict[int, set[str]]:
        """Version -> identities of the weights that a directory here should hold."""
        found: dict[int, set[str]] = {}
        for path in self._shown():
            for own in read_record(path)[:1]:
                found.setdefault(own.version, set()).add(own.weights)
        return found

    def have(self, manifest: Manifest) -> Path | None:
        """The directory of this very snapshot if it is here and still verifies."""
        path = self._path(manifest)
        with contextlib.suppress(UserError, OSError):
            verify(path, manifest)
            os.utime(path)
            self._put_on_shelf(path, read_record(path))
            return path
        return None

    # ---- one that is being made --------------------------------------------------------------------

    def prepare(self, payload: Payload) -> Job:
        """Make the unfinished directories and put into them what is on this disk already.

        Raises SnapshotError where there is too little room, UserError for a disk that cannot be written.
        """
        job = self._job(payload)
        with explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            mine = [path for path in (job.path, job.base) if path is not None]
            self._clear(mine)
            for path in mine:
                path.mkdir(exist_ok=True)
            sources = [sources_in(path) for path in self._shown()]
            for chunk in job.places:
                if take_local(job, chunk, sources):
                    self._shelve(job, chunk)
                else:
                    job.waiting.append(chunk)
            self._check_room(job)
            for file, listed in job.files():
                # also makes empty files, and cuts off what an earlier attempt may have left too long
                with file.open("ab") as stream:
                    stream.truncate(listed.size)
        return job

    def take(self, job: Placing, chunk: Chunk, data: bytearray) -> bool:
        """Write the bytes of a chunk where they belong, and tell the shelf; False where they are not its."""
        if not has_digest(data, chunk):
            return False
        place(job, chunk, data)
        self._shelve(job, chunk)
        return True

    def finish(self, job: Job) -> Path:
        """Make the weights, verify them, show the directory. Raises SnapshotError; then nothing is shown."""
        payload, keep = job.payload, self._keep
        if job.base is not None and payload.base is not None:
            keep += 1  # what it is made from takes no place of a version that an engine may be loading
            verify(job.base, payload.base)
            base = self._show(job.base, payload.base, [payload.base])
            job.base, job.parent = None, base / WEIGHTS_FILE
        if payload.steps:
            assert job.parent is not None  # a payload with steps has a base or a parent
            deltas = [(step, job.path / delta_name(step.version)) for step in payload.steps]
            with explained(self._directory):
                rebuild(job.parent, deltas, job.path / WEIGHTS_FILE)
        verify(job.path, job.manifest)
        others = [step for step in payload.steps if step is not job.manifest]
        path = self._show(job.path, job.manifest, [job.manifest, *others])
        with explained(self._directory):
            for old in self._shown()[keep:]:
                self._remove(old)
        return path

    # ---- one whose chunks are not all known yet ----------------------------------------------------

    def begin(self, version: int, draft_id: str, parent: int) -> DraftJob:
        """Make room for the chunks of a delta against `parent`. Raises SnapshotError where it is not here."""
        owns = [own for path in self._shown() for own in read_record(path)[:1] if own.version == parent]
        if not owns:
            raise SnapshotError(f"version {parent}, from which the delta leads on, is not on this disk")
        path = self._directory / f"{_UNFINISHED}draft-{version:08d}-{draft_id[:16]}"
        with explained(self._directory):
            self._clear([])
            path.mkdir()
        most = sum(entry_bytes(entry) for entry in owns[0].tensors)
        return DraftJob(path, path / delta_name(version), frozenset(own.weights for own in owns), most)

    def extend(self, job: DraftJob, chunks: Sequence[Chunk], at: int) -> None:
        """The next chunks stand at `at` of the delta. Raises SnapshotError where there is too little room."""
        self._check_free(job.path.name, sum(chunk.size for chunk in chunks) + job.most_bytes)
        for chunk in chunks:
            job.places.setdefault(chunk, []).append((job.file, at))
            at += chunk.size

    def adopt(self, job: DraftJob, manifest: Manifest) -> None:
        """The chunks are those of this manifest's delta: what `prepare` will find."""
        path = self._unfinished(manifest)
        with explained(self._directory):
            if path.exists():
                self._remove(path)
            job.path.rename(path)
        self._shelf.moved(job.path, path)

    def drop(self, job: DraftJob) -> None:
        """Nothing will come of it."""
        self._remove(job.path)

    # ---- inside ------------------------------------------------------------------------------------

    def _job(self, payload: Payload) -> Job:
        job = Job(payload, self._unfinished(payload.target))
        if payload.base is None:
            first = payload.steps[0]
            parent = self._find(first.parent, first.parent_weights or "")
            if parent is None:
                raise SnapshotError(f"version {first.parent}, from which deltas lead on, is not on this disk")
            job.parent = parent / WEIGHTS_FILE
        elif payload.steps:
            job.base = self._unfinished(payload.base)
        job.places = places_of(job)
        return job

    def _check_room(self, job: Job) -> None:
        missing = sum(chunk.size * len(job.places[chunk]) for chunk in job.waiting)
        if job.payload.steps:
            missing += result_bytes(job.manifest)
        self._check_free(f"snapshot {job.manifest.version}", missing)

    def _check_free(self, what: str, missing: int) -> None:
        free = shutil.disk_usage(self._directory).free
        if missing + _SPARE_BYTES > free:
            raise SnapshotError(
                f"{what} needs {missing:,} more bytes in {str(self._directory)!r}, which has {free:,} free; "
                "free some space or choose another directory"
            )

    def _clear(self, spared: list[Path]) -> None:
        """Remove what is unfinished but for a few directories."""
        for other in self._directory.glob(f"{_UNFINISHED}*"):
            if other not in spared:
                self._remove(other)

    def _show(self, path: Path, manifest: Manifest, record: list[Manifest]) -> Path:
        """Give a verified directory its name."""
        final = self._path(manifest)
        with explained(self._directory):
            write_record(path, record)
            if final.exists():
                self._remove(final)
            path.rename(final)
            os.utime(final)
        self._shelf.moved(path, final)
        self._put_on_shelf(final, record)
        return final

    def _put_on_shelf(self, path: Path, record: list[Manifest]) -> None:
        """Everything that a verified directory can serve, its full file too where it is laid out the same."""
        manifest = record[0] if record else None
        full = manifest.full if manifest is not None else None
        same = full is not None and _starts_with(path / WEIGHTS_FILE, full.chunks[0])
        for chunk, (file, at) in chunks_in(path, record):
            if file.name != WEIGHTS_FILE or same:
                self._shelf.add(chunk.digest, file, at, chunk.size)

    def _shelve(self, job: Placing, chunk: Chunk) -> None:
        file, at = job.places[chunk][0]
        self._shelf.add(chunk.digest, file, at, chunk.size)

    def _remove(self, path: Path) -> None:
        self._shelf.removed(path)
        shutil.rmtree(path, ignore_errors=True)

    def _shown(self) -> list[Path]:
        """Whole snapshots on this disk, the last one fetched first."""
        found = [path for path in self._directory.glob("version-*") if path.is_dir()]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def _find(self, version: int, weights: str) -> Path | None:
        for path in self._shown():
            if any((own.version, own.weights) == (version, weights) for own in read_record(path)[:1]):
                return path
        return None

    def _path(self, manifest: Manifest) -> Path:
        # the weights belong to the name: a resumed run makes a version anew, with other weights
        return self._directory / f"version-{manifest.version:08d}-{manifest.weights[:16]}"

    def _unfinished(self, manifest: Manifest) -> Path:
        return self._directory / f"{_UNFINISHED}{self._path(manifest).name}"


def _starts_with(file: Path, chunk: Chunk) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as stream:
        return has_digest(stream.read(chunk.size), chunk)
    return False
