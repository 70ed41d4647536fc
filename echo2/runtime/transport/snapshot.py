"""Snapshots on the learner's host: weights in, a manifest and content-addressed chunks out.

The learner's side calls `put` after a step (in a thread: everything here blocks); the server reads manifests
and chunks. Weights go from tensors to chunks in one pass, without a copy of the whole file on disk. The same
weights make the same bytes. A version is served once all of it is on disk, never before.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.messages import Chunk, File, Manifest, TensorEntry
from echo2.runtime.transport.model_files import WEIGHTS_FILE, harmless
from echo2.runtime.transport.store import Bytes, ChunkStore, cut, explained, write_whole
from echo2.runtime.transport.tensor_table import ITEM_BYTES, header_of, weights_digest_of

if TYPE_CHECKING:
    from torch import Tensor

NEWEST = -1
_READ_BYTES = 4 << 20

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Dtypes as torch spells them, and as safetensors does."""


class SnapshotStore:
    """The versions of one run that workers can fetch. Safe to call from several threads."""

    def __init__(
        self,
        directory: Path,
        run_id: str,
        model_files: Sequence[Path],
        chunk_bytes: int = 8 << 20,
        keep: int = 2,
        budget_bytes: int | None = None,
    ) -> None:
        """Open or make a store. `keep`: newest versions kept; `budget_bytes`: older ones go earlier to fit.

        The newest and the pinned are kept whatever the budget. Raises UserError for a store of another run,
        a model file that may not travel, and a disk that cannot be written.
        """
        if keep < 1 or chunk_bytes < 1:
            raise UserError(f"keep is {keep} and chunk_bytes {chunk_bytes}; both must be at least 1")
        self.directory, self.run_id = directory, run_id
        self._chunk_bytes, self._keep, self._budget_bytes = chunk_bytes, keep, budget_bytes
        # `_writing` makes one `put` wait for another; `_lock` is never held for long, so that the server's
        # event loop can ask for a manifest meanwhile
        self._writing, self._lock = threading.Lock(), threading.Lock()
        self._pins: Counter[int] = Counter()
        self._chunks = ChunkStore(directory / "chunks")
        self._manifests = directory / "manifests"
        self._versions: dict[int, Manifest] = {}
        with explained(directory):
            self._manifests.mkdir(parents=True, exist_ok=True)
            self._load()
            self._model_files = tuple(self._add_file(path) for path in model_files)
            self._chunks.sweep()

    # ---- versions in -----------------------------------------------------------------------------

    def put(self, version: int, tensors: Mapping[str, Tensor]) -> Manifest:
        """Store the weights of `version` and serve them; a version that is there already is replaced.

        Raises UserError when the disk is full or a tensor's dtype has no place in safetensors; then
        everything is as it was before.
        """
        with self._writing, explained(self.directory):
            held: list[Chunk] = []
            try:
                manifest = self._write(version, tensors, held)
                write_whole(self._manifest_path(version), manifest.model_dump_json().encode())
                self._chunks.hold(distinct_chunks(manifest))
                with self._lock:
                    before = self._versions.get(version)
                    self._versions[version] = manifest
            finally:
                self._chunks.release(held)
            if before is not None:
                self._chunks.release(distinct_chunks(before))
        self._collect()
        return manifest

    def forget_above(self, version: int) -> None:
        """Throw away all later versions, pinned or not: a run resumed at `version` makes them anew."""
        with self._lock:
            gone = [self._take_out(later) for later in list(self._versions) if later > version]
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
            wanted = max(self._versions, default=NEWEST) if version == NEWEST else version
            if wanted not in self._versions:
                have = ", ".join(map(str, sorted(self._versions))) or "none yet"
                raise Refusal(404, "no-snapshot", f"there is no snapshot {version}; there is {have}")
            return self._versions[wanted]

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
            if version == NEWEST:
                version = max(self._versions, default=NEWEST)
            if version in self._versions:
                self._pins[version] += 1
                return version
        return self.manifest(version).version

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

    def _load(self) -> None:
        """Take in the manifests of an earlier life whose chunks are all there."""
        for file in self._manifests.glob("*.json"):
            try:
                manifest = Manifest.model_validate_json(file.read_bytes())
            except ValidationError:
                file.unlink()
                continue
            if manifest.run_id != self.run_id:
                raise UserError(
                    f"{str(self.directory)!r} holds snapshots of run {manifest.run_id!r}, not "
                    f"{self.run_id!r}; choose another directory"
                )
            if all(self._chunks.has(c) for c in distinct_chunks(manifest)):
                self._versions[manifest.version] = manifest
                self._chunks.hold(distinct_chunks(manifest))
            else:
                file.unlink()

    def _write(self, version: int, tensors: Mapping[str, Tensor], held: list[Chunk]) -> Manifest:
        """Chunks and manifest of weights. Every chunk is held once more, and noted in `held`."""
        order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        # Widest values first keeps every tensor aligned without gaps, which the format does not allow.
        head = header_of([(n, _dtype(n, tensors[n]), tensors[n].shape, tensors[n].nbytes) for n in order])
        entries: list[TensorEntry] = []

        def pieces() -> Iterator[Bytes]:
            yield head
            for name in order:
                tensor = tensors[name]
                data, shape = _bytes_of(tensor), tuple(tensor.shape)
                digest = hashlib.sha256(data).hexdigest()
                entries.append(TensorEntry(name=name, dtype=_dtype(name, tensor), shape=shape, digest=digest))
                yield data

        file = self._cut_file(WEIGHTS_FILE, pieces(), held)
        table = tuple(sorted(entries, key=lambda e: e.name))
        return Manifest(
            run_id=self.run_id,
            version=version,
            weights=weights_digest_of(table),
            tensors=table,
            files=(file,),
            model_files=self._model_files,
        )

    def _cut_file(self, name: str, pieces: Iterable[Bytes], held: list[Chunk]) -> File:
        chunks: list[Chunk] = []
        for part in cut(pieces, self._chunk_bytes):
            chunks.append(self._chunks.put(part))
            held.append(chunks[-1])
        return File(name=name, size=sum(c.size for c in chunks), chunks=tuple(chunks))

    def _add_file(self, path: Path) -> File:
        if not harmless(path.name):
            raise UserError(f"model file {path.name[:100]!r} may not travel; give those of model_files_of()")

        if not path.is_file():
            raise UserError(f"model file {str(path)!r} does not exist; give those of model_files_of()")

        def pieces() -> Iterator[Bytes]:
            with path.open("rb") as stream:
                while piece := stream.read(_READ_BYTES):
                    yield piece

        return self._cut_file(path.name, pieces(), [])

    def _collect(self) -> None:
        """Drop what is neither pinned nor among the newest, then older ones while over the budget."""
        with self._lock:
            old = [v for v in sorted(self._versions)[:-1] if not self._pins[v]]
            newest = set(sorted(self._versions)[-self._keep :])
        for version in old:
            over = self._budget_bytes is not None and self.bytes_on_disk() > self._budget_bytes
            if version in newest and not over:
                continue
            with self._lock:
                gone = None if self._pins[version] else self._take_out(version)
            if gone is not None:
                self._chunks.release(distinct_chunks(gone))

    def _take_out(self, version: int) -> Manifest | None:
        # The manifest goes first: after a crash in between, no version is served without its chunks.
        self._manifest_path(version).unlink(missing_ok=True)
        self._pins.pop(version, None)
        return self._versions.pop(version, None)

    def _manifest_path(self, version: int) -> Path:
        return self._manifests / f"{version:08d}.json"


def distinct_chunks(manifest: Manifest) -> list[Chunk]:
    """Every chunk of a snapshot, weights and model files, in order and once."""
    files = (*manifest.files, *manifest.model_files)
    return list(dict.fromkeys(chunk for file in files for chunk in file.chunks))


def _dtype(name: str, tensor: Tensor) -> str:
    spelled = str(tensor.dtype).removeprefix("torch.")
    if spelled not in _DTYPES:
        raise UserError(
            f"tensor {name[:80]!r} is of dtype {spelled}; a snapshot takes {', '.join(sorted(ITEM_BYTES))}"
        )
    return _DTYPES[spelled]


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's values in memory order; no copy for a contiguous one on the CPU."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    view: memoryview = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    return view
