"""Snapshots on the learner's host: weights in, signed manifests and content-addressed chunks out.

The learner's side calls `put` after a step (in a thread: everything here blocks); the server reads manifests
and chunks. Weights go from tensors to chunks in one pass, without a copy of the whole file on disk. The same
weights make the same bytes. The chunks of a delta can be had while it is encoded, by the pages of its draft;
a version is served once all of it is on disk, never before. What is served can always be had from nothing: a
full file, and every delta after it, stay as long as a version needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.runtime.transport import chain
from echo2.runtime.transport.draft import Draft
from echo2.runtime.transport.kept import kept_manifests
from echo2.runtime.transport.messages import Chunk, File, Manifest, SignedManifest
from echo2.runtime.transport.model_files import harmless
from echo2.runtime.transport.signing import RunKey
from echo2.runtime.transport.store import explained, write_whole
from echo2.runtime.transport.tensor_table import HASH_THREADS
from echo2.runtime.transport.versions import NEWEST, Versions, distinct_chunks
from echo2.runtime.transport.writing import Bits, Raw, cut_file, delta_file, full_file, raw_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NEWEST", "SnapshotStore", "distinct_chunks"]


class SnapshotStore(Versions):
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
        with explained(directory):
            super().__init__(directory, keep, budget_bytes)
        self.run_id, self._key = run_id, key
        self.chunk_bytes, self._threads = chunk_bytes, threads
        self._writing = threading.Lock()  # makes one `put` wait for another
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
        begun: Callable[[Draft], object] = lambda _draft: None,
    ) -> Manifest:
        """Store the weights of `version` and serve them, as a full file, as a delta to the version before, or
        both; the newest version is replaced when it is put again.

        A full file is written in any case for the first version, after a resume, and where a delta would
        not be smaller. `owned`: nobody writes to the tensors any more, so that no copy is made; the bits
        stay in memory as what the next delta is taken against. `begun` is told of the draft when a delta
        begins to be encoded. Raises UserError when the disk is full, a tensor's dtype has no place in
        safetensors, or a later version is there; then everything is as it was, and the draft is dropped.
        """
        with self._writing, explained(self.directory):
            self._check_newest(version)
            held: list[Chunk] = []
            draft: Draft | None = None
            try:
                raw = raw_of(tensors, owned, self._threads)
                if delta and (draft := self._opened(version, raw)) is not None:
                    begun(draft)
                manifest, bits = self._write(version, raw, full, draft, held)
                before = self._show(manifest)
                self._baseline = (manifest, bits)
            except BaseException as error:
                if draft is not None:
                    draft.drop(str(error).split("\n")[0] or type(error).__name__)
                raise
            finally:
                self._chunks.release(held)
            if draft is not None:
                draft.whole()
            if before is not None:
                self._chunks.release(distinct_chunks(before))
        self._collect()
        return manifest

    def forget_above(self, version: int) -> None:
        """Throw away all later versions, pinned or not: a run resumed at `version` makes them anew."""
        with self._writing:
            with self._lock:
                gone = [self._take_out(later) for later in list(self._versions) if later > version]
                self._drafts.clear()
            self._baseline = None
            for manifest in filter(None, gone):
                self._chunks.release(distinct_chunks(manifest))

    # ---- inside ----------------------------------------------------------------------------------

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
        kept = kept_manifests(self._manifests, self.run_id, self._key.public)
        for file, (manifest, signed) in kept.items():
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

    def _opened(self, version: int, raw: Raw) -> Draft | None:
        """The draft of a delta against the baseline; None where there can be no delta."""
        before, draft = self._baseline, None
        if before is not None and before[0].version < version and raw.like(before[1]):
            draft = Draft(self._key, self.run_id, version, before[0])
        self._keep_draft(version, draft)
        return draft

    def _write(
        self, version: int, raw: Raw, full: bool, draft: Draft | None, held: list[Chunk]
    ) -> tuple[Manifest, Bits]:
        """Chunks and manifest of weights. Every chunk is held once more, and noted in `held`.

        The delta first, whose chunks leave at once; the tensors' digests are for the manifest only.
        """
        before, changes, size, threads = self._baseline, None, self.chunk_bytes, self._threads
        if draft is not None and before is not None:
            changes = delta_file(self._chunks, before[1], raw, size, held, threads, draft.add)
            draft.encoded()
        bits = raw.hashed(threads)
        whole: File | None = None
        if full or changes is None:
            whole = full_file(self._chunks, bits, size, held, threads)
        parent = before[0] if before is not None and changes is not None else None
        manifest = Manifest(
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
        return manifest, bits

    def _show(self, manifest: Manifest) -> Manifest | None:
        """Serve a version; the one of the same number before it."""
        signed, version = self._key.sign(manifest), manifest.version
        write_whole(self._manifest_path(version), signed.model_dump_json().encode())
        self._chunks.hold(distinct_chunks(manifest))
        with self._lock:
            before = self._versions.get(version)
            self._versions[version], self._signed[version] = manifest, signed
        return before

    def _add_file(self, path: Path) -> File:
        if not harmless(path.name):
            raise UserError(f"model file {path.name[:100]!r} may not travel; give those of model_files_of()")
        if not path.is_file():
            raise UserError(f"model file {str(path)!r} does not exist; give those of model_files_of()")
        size = chain.chunk_bytes_of(path.stat().st_size, self.chunk_bytes)
        file = cut_file(self._chunks, path.name, [path.read_bytes()], size, [], threads=1)
        assert file is not None  # no bound was given
        return file
