"""Snapshots on the learner's host: weights in, signed manifests and content-addressed chunks out.

The learner's side calls `put` after a step (in a thread: everything here blocks); the server reads manifests
and chunks. Weights go from tensors to chunks in one pass, without a copy of the whole file on disk. The same
weights make the same bytes. A version is served once all of it is on disk, never before; what is served can
always be had from nothing: a full file, and every delta after it, stay as long as a version needs them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.transport import chain
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.manifest_check import SnapshotError, files_of
from echo2.runtime.transport.messages import Chunk, File, Manifest, SignedManifest
from echo2.runtime.transport.model_files import harmless
from echo2.runtime.transport.signing import RunKey, verified
from echo2.runtime.transport.store import ChunkStore, explained, write_whole
from echo2.runtime.transport.tensor_table import HASH_THREADS
from echo2.runtime.transport.writing import Bits, bits_of, cut_file, delta_file, full_file

if TYPE_CHECKING:
    from torch import Tensor

NEWEST = -1


class SnapshotStore:
    """The versions of one run that workers can fetch. Safe to call from several threads."""

    def __init__(
        self,
        directory: Path,
        run_id: str,
        model_files: Sequence[Path],
        key: RunKey,
        chunk_bytes: int = 8 << 20,
        keep: int = 2,
        budget_bytes: int | None = None,
        threads: int = HASH_THREADS,
    ) -> None:
        """Open or make a store. `keep`: newest versions kept; `budget_bytes`: older ones go earlier to fit.

        The newest and the pinned, and what they are made from, are kept whatever the budget. `chunk_bytes`:
        of the largest chunks. Raises UserError for a store of another run, a model file that may not travel,
        and a disk that cannot be written.
        """
        if keep < 1 or chunk_bytes < 1 or threads < 1:
            raise UserError(
                f"keep is {keep}, chunk_bytes {chunk_bytes} and threads {threads}; all must be at least 1"
            )
        self.directory, self.run_id, self._key = directory, run_id, key
        self._chunk_bytes, self._keep, self._budget_bytes = chunk_bytes, keep, budget_bytes
        self._threads = threads
        # `_writing` makes one `put` wait for another; `_lock` is never held for long, so that the server's
        # event loop can ask for a manifest meanwhile
        self._writing, self._lock = threading.Lock(), threading.Lock()
        self._pins: Counter[int] = Counter()
        self._chunks = ChunkStore(directory / "chunks")
        self._manifests = directory / "manifests"
        self._versions: dict[int, Manifest] = {}
        self._signed: dict[int, SignedManifest] = {}
        self._baseline: tuple[Manifest, Bits] | None = None
        with explained(directory):
            self._manifests.mkdir(parents=True, exist_ok=True)
            self._load()
            self._model_files = tuple(self._add_file(path) for path in model_files)
            self._chunks.sweep()

    @property
    def run_key(self) -> str:
        """The public key that manifests are signed for."""
        return self._key.public

    # ---- versions in -----------------------------------------------------------------------------

    def put(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        full: bool = True,
        delta: bool = True,
        owned: bool = False,
    ) -> Manifest:
        """Store the weights of `version` and serve them, as a full file, as a delta to the version before, or
        both; the newest version is replaced when it is put again.

        A full file is written in any case for the first version, after a resume, and where a delta would
        not be smaller. `owned`: nobody writes to the tensors any more, so that no copy is made; the bits
        stay in memory as what the next delta is taken against. Raises UserError when the disk is full, a
        tensor's dtype has no place in safetensors, or a later version is there; then everything is as it was.
        """
        with self._writing, explained(self.directory):
            self._check_newest(version)
            held: list[Chunk] = []
            try:
                bits = bits_of(tensors, owned, self._threads)
                manifest = self._write(version, bits, full, delta, held)
                signed = self._key.sign(manifest)
                write_whole(self._manifest_path(version), signed.model_dump_json().encode())
                self._chunks.hold(distinct_chunks(manifest))
                with self._lock:
                    before = self._versions.get(version)
                    self._versions[version], self._signed[version] = manifest, signed
                self._baseline = (manifest, bits)
            finally:
                self._chunks.release(held)
            if before is not None:
                self._chunks.release(distinct_chunks(before))
        self._collect()
        return manifest

    def forget_above(self, version: int) -> None:
        """Throw away all later versions, pinned or not: a run resumed at `version` makes them anew."""
        with self._writing:
            with self._lock:
                gone = [self._take_out(later) for later in list(self._versions) if later > version]
            self._baseline = None
            for manifest in filter(None, gone):
                self._chunks.release(distinct_chunks(manifest))

    # ---- versions out ----------------------------------------------------------------------------

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that can be fetched, ascending."""
        with self._lock:
            return tuple(sorted(self._versions))

    def manifest(self, version: int = NEWEST) -> Manifest:
        """The manifest of a version, of the newest for -1. Raises Refusal (404)."""
        with self._lock:
            return self._versions[self._known(version)]

    def signed(self, version: int = NEWEST) -> SignedManifest:
        """The same as it travels, with its signature. Raises Refusal (404)."""
        with self._lock:
            return self._signed[self._known(version)]

    def payload(self, version: int = NEWEST, parent: int = -1) -> chain.Payload:
        """The chunks that bring a holder of `parent` (-1: of nothing) to `version`. Raises Refusal (404)."""
        with self._lock:
            version, manifests = self._known(version), dict(self._versions)
        try:
            return chain.payload_of(manifests, version, parent)
        except SnapshotError as error:
            raise Refusal(404, "no-chain", str(error)) from error

    def chunk(self, digest: str) -> Path:
        """The file of a chunk. Raises Refusal (404)."""
        with contextlib.suppress(ValueError):
            path = self._chunks.path(digest)
            if path.is_file():
                return path
        raise Refusal(404, "no-chunk", f"there is no chunk {digest[:64]!r}; fetch the newest snapshot")

    def pin(self, version: int) -> int:
        """Keep a version (-1: the newest) while somebody fetches it; returns which, for `unpin`.

        Raises Refusal (404).
        """
        with self._lock:
            version = self._known(version)
            self._pins[version] += 1
            return version

    def unpin(self, version: int) -> None:
        """Take a pin back. A version that is not pinned is ignored. May delete files: call it in a thread."""
        with self._lock:
            self._pins[version] -= 1
            if self._pins[version] > 0:
                return
            del self._pins[version]
        self._collect()

    def bytes_on_disk(self) -> int:
        """Bytes of all chunks that are kept, shared ones once."""
        return self._chunks.bytes_held()

    # ---- inside ----------------------------------------------------------------------------------

    def _known(self, version: int) -> int:
        """The number of a version that is there; the lock is held."""
        wanted = max(self._versions, default=NEWEST) if version == NEWEST else version
        if wanted not in self._versions:
            have = ", ".join(map(str, sorted(self._versions))) or "none yet"
            raise Refusal(404, "no-snapshot", f"there is no snapshot {version}; there is {have}")
        return wanted

    def _check_newest(self, version: int) -> None:
        newest = max(self.versions, default=version)
        if not newest <= version < 2**31:
            raise UserError(
                f"version {version} cannot be put after version {newest}; versions only go up, unless a run "
                "that goes on from a checkpoint forgets those above it"
            )

    def _load(self) -> None:
        """Take in the manifests of an earlier life that are signed by this run's key and whole on disk."""
        found: dict[int, tuple[Manifest, SignedManifest]] = {}
        for file in self._manifests.glob("*.json"):
            try:
                signed = SignedManifest.model_validate_json(file.read_bytes())
                manifest = verified(signed, self._key.public)
            except (ValidationError, SnapshotError):
                file.unlink()
                continue
            if manifest.run_id != self.run_id:
                raise UserError(
                    f"{str(self.directory)!r} holds snapshots of run {manifest.run_id!r}, not "
                    f"{self.run_id!r}; choose another directory"
                )
            if all(self._chunks.has(c) for c in distinct_chunks(manifest)):
                found[manifest.version] = manifest, signed
            else:
                file.unlink()
        whole = {version: manifest for version, (manifest, _) in found.items()}
        for version, (manifest, signed) in found.items():
            if chain.needed_for(version, whole):
                self._versions[version], self._signed[version] = manifest, signed
                self._chunks.hold(distinct_chunks(manifest))
            else:
                self._manifest_path(version).unlink()

    def _write(self, version: int, bits: Bits, full: bool, delta: bool, held: list[Chunk]) -> Manifest:
        """Chunks and manifest of weights. Every chunk is held once more, and noted in `held`."""
        before, changes = self._baseline, None
        if delta and before is not None and before[0].version < version and bits.like(before[1]):
            changes = delta_file(self._chunks, before[1], bits, self._chunk_bytes, held, self._threads)
        whole: File | None = None
        if full or changes is None:
            whole = full_file(self._chunks, bits, self._chunk_bytes, held, self._threads)
        parent = before[0] if before is not None and changes is not None else None
        return Manifest(
            run_id=self.run_id,
            version=version,
            parent=-1 if parent is None else parent.version,
            parent_weights=None if parent is None else parent.weights,
            weights=bits.weights,
            tensors=bits.table,
            full=whole,
            delta=changes,
            model_files=self._model_files,
        )

    def _add_file(self, path: Path) -> File:
        if not harmless(path.name):
            raise UserError(f"model file {path.name[:100]!r} may not travel; give those of model_files_of()")
        if not path.is_file():
            raise UserError(f"model file {str(path)!r} does not exist; give those of model_files_of()")
        size = chain.chunk_bytes_of(path.stat().st_size, self._chunk_bytes)
        file = cut_file(self._chunks, path.name, [path.read_bytes()], size, [], threads=1)
        assert file is not None  # no bound was given
        return file

    def _collect(self) -> None:
        """Drop what nothing kept is made from: beyond the newest few, and those too while over the budget."""
        with self._lock:
            kept = [v for v in sorted(self._versions) if self._pins[v]]
            newest = sorted(self._versions)[-self._keep :]
        self._drop_all_but({*kept, *newest})
        for oldest in newest[:-1]:
            if self._budget_bytes is None or self.bytes_on_disk() <= self._budget_bytes:
                return
            newest.remove(oldest)
            self._drop_all_but({*kept, *newest})

    def _drop_all_but(self, kept: set[int]) -> None:
        """Drop versions, oldest first, that no version of `kept` and none pinned meanwhile needs."""
        for version in self.versions:
            with self._lock:
                pinned = {v for v in self._versions if self._pins[v]}
                needed = [chain.needed_for(v, self._versions) for v in kept | pinned]
                gone = None if version in frozenset().union(*needed) else self._take_out(version)
            if gone is not None:
                self._chunks.release(distinct_chunks(gone))

    def _take_out(self, version: int) -> Manifest | None:
        # The manifest goes first: after a crash in between, no version is served without its chunks.
        self._manifest_path(version).unlink(missing_ok=True)
        self._pins.pop(version, None)
        self._signed.pop(version, None)
        return self._versions.pop(version, None)

    def _manifest_path(self, version: int) -> Path:
        return self._manifests / f"{version:08d}.json"


def distinct_chunks(manifest: Manifest) -> list[Chunk]:
    """Every chunk of a snapshot, weights and model files, in order and once."""
    return list(dict.fromkeys(chunk for file in files_of(manifest) for chunk in file.chunks))
