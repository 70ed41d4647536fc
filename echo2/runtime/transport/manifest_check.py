"""Whether a manifest can be right, before a byte is fetched for it. Called by the receiver.

What it says is signed by the run key; this looks whether it is of this run and adds up, so that a mistake on
the learner's side costs a clear error and not a disk.
"""

from __future__ import annotations

from echo2.errors import UserError
from echo2.runtime.transport.messages import File, Manifest
from echo2.runtime.transport.model_files import DELTA_FILE, WEIGHTS_FILE, harmless
from echo2.runtime.transport.tensor_table import entry_bytes, layout_of, weights_digest_of

MAX_CHUNK_BYTES = 256 << 20
"""A chunk is held in memory while it is fetched."""


class SnapshotError(UserError):
    """A snapshot was refused; nothing of it was applied, the old weights go on."""


def files_of(manifest: Manifest) -> tuple[File, ...]:
    """All files that a manifest lists."""
    return (*filter(None, (manifest.full, manifest.delta)), *manifest.model_files)


def result_bytes(manifest: Manifest) -> int:
    """Bytes of the model directory that comes out."""
    head, places = layout_of(manifest.tensors)
    tensors = len(head) + sum(size for _, size in places.values())
    return tensors + sum(file.size for file in manifest.model_files)


def check_manifest(manifest: Manifest, version: int, run_id: str, max_bytes: int) -> None:
    """Raise SnapshotError, naming the value, unless the manifest is of this run and adds up."""
    which = f"snapshot {manifest.version}"
    if run_id and manifest.run_id != run_id:
        raise SnapshotError(f"{which} is of run {manifest.run_id!r}, this worker is in run {run_id!r}")
    if manifest.version < 0 or version not in (-1, manifest.version):
        raise SnapshotError(f"asked for version {version}, the learner sent {which}")
    _check_ways(manifest, which)
    names_seen: set[str] = {WEIGHTS_FILE, "snapshot.json"}
    for file in manifest.model_files:
        if not harmless(file.name):
            raise SnapshotError(
                f"{which} holds a file {file.name!r}, which may not go into a model directory"
            )
        if file.name in names_seen:
            raise SnapshotError(f"{which} holds two files {file.name!r}")
        names_seen.add(file.name)
    if len({entry.name for entry in manifest.tensors}) < len(manifest.tensors):
        raise SnapshotError(f"{which} lists a tensor twice")
    if weights_digest_of(manifest.tensors) != manifest.weights:
        raise SnapshotError(f"the tensor table of {which} does not have the digest it is named by")
    _check_sizes(manifest, which, max_bytes)


def _check_ways(manifest: Manifest, which: str) -> None:
    """It has a full file or a delta, and a delta has a parent."""
    full, delta = manifest.full, manifest.delta
    if full is None and delta is None:
        raise SnapshotError(f"{which} has neither a full file nor a delta")
    if full is not None and full.name != WEIGHTS_FILE:
        raise SnapshotError(f"{which} has weights in {full.name}; it must be one {WEIGHTS_FILE}")
    if delta is not None and delta.name != DELTA_FILE:
        raise SnapshotError(f"{which} has a delta in {delta.name}; it must be one {DELTA_FILE}")
    if (delta is None) != (manifest.parent_weights is None) or (delta is None) != (manifest.parent < 0):
        raise SnapshotError(f"{which} names a parent without a delta, or has a delta without a parent")
    if manifest.parent >= manifest.version:
        raise SnapshotError(f"{which} is a delta against version {manifest.parent}; a parent comes before it")


def _check_sizes(manifest: Manifest, which: str, max_bytes: int) -> None:
    for file in files_of(manifest):
        chunks = sum(chunk.size for chunk in file.chunks)
        if chunks != file.size:
            raise SnapshotError(f"{which}: {file.name} has {file.size} bytes, its chunks have {chunks}")
        largest = max((chunk.size for chunk in file.chunks), default=0)
        if largest > MAX_CHUNK_BYTES:
            raise SnapshotError(
                f"{which} has a chunk of {largest} bytes; at most {MAX_CHUNK_BYTES} are taken"
            )
    total = max(result_bytes(manifest), sum(file.size for file in files_of(manifest)))
    if total > max_bytes:
        raise SnapshotError(
            f"{which} has {total:,} bytes, this worker takes at most {max_bytes:,}; raise its limit if that "
            "is right"
        )
    tensors = sum(entry_bytes(entry) for entry in manifest.tensors)
    if manifest.full is not None and tensors > manifest.full.size:
        raise SnapshotError(
            f"{which} lists {tensors:,} bytes of tensors, its file has {manifest.full.size:,}"
        )
    if manifest.delta is not None and manifest.delta.size > 2 * tensors + (1 << 20):
        raise SnapshotError(
            f"{which} has a delta of {manifest.delta.size:,} bytes for {tensors:,} bytes of tensors"
        )
