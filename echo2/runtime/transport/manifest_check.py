"""Whether a manifest can be right, before a byte is fetched for it. Called by the receiver."""

from __future__ import annotations

from echo2.errors import UserError
from echo2.runtime.transport.messages import Manifest
from echo2.runtime.transport.model_files import WEIGHTS_FILE, harmless
from echo2.runtime.transport.tensor_table import entry_bytes, weights_digest_of

MAX_CHUNK_BYTES = 256 << 20
"""A chunk is held in memory while it is fetched."""


class SnapshotError(UserError):
    """A snapshot was refused; nothing of it was applied, the old weights go on."""


def total_bytes(manifest: Manifest) -> int:
    """Bytes of all files."""
    return sum(file.size for file in (*manifest.files, *manifest.model_files))


def check_manifest(manifest: Manifest, version: int, run_id: str, max_bytes: int) -> None:
    """Raise SnapshotError, naming the value, unless the manifest is of this run and adds up."""
    which = f"snapshot {manifest.version}"
    if run_id and manifest.run_id != run_id:
        raise SnapshotError(f"{which} is of run {manifest.run_id!r}, this worker is in run {run_id!r}")
    if manifest.version < 0 or version not in (-1, manifest.version):
        raise SnapshotError(f"asked for version {version}, the learner sent {which}")
    if [file.name for file in manifest.files] != [WEIGHTS_FILE]:
        names = ", ".join(file.name for file in manifest.files)
        raise SnapshotError(f"{which} has weights in {names[:200]}; it must be one {WEIGHTS_FILE}")
    names_seen: set[str] = {WEIGHTS_FILE, "snapshot.json"}
    for file in manifest.model_files:
        if not harmless(file.name):
            raise SnapshotError(
                f"{which} holds a file {file.name!r}, which may not go into a model directory"
            )
        if file.name in names_seen:
            raise SnapshotError(f"{which} holds two files {file.name!r}")
        names_seen.add(file.name)
    _check_sizes(manifest, which, max_bytes)
    if len({entry.name for entry in manifest.tensors}) < len(manifest.tensors):
        raise SnapshotError(f"{which} lists a tensor twice")
    if weights_digest_of(manifest.tensors) != manifest.weights:
        raise SnapshotError(f"the tensor table of {which} does not have the SHA-256 it is named by")


def _check_sizes(manifest: Manifest, which: str, max_bytes: int) -> None:
    for file in (*manifest.files, *manifest.model_files):
        chunks = sum(chunk.size for chunk in file.chunks)
        if chunks != file.size:
            raise SnapshotError(f"{which}: {file.name} has {file.size} bytes, its chunks have {chunks}")
        largest = max((chunk.size for chunk in file.chunks), default=0)
        if largest > MAX_CHUNK_BYTES:
            raise SnapshotError(
                f"{which} has a chunk of {largest} bytes; at most {MAX_CHUNK_BYTES} are taken"
            )
    if total_bytes(manifest) > max_bytes:
        raise SnapshotError(
            f"{which} has {total_bytes(manifest):,} bytes, this worker takes at most {max_bytes:,}; raise "
            "its limit if that is right"
        )
    tensors = sum(entry_bytes(entry) for entry in manifest.tensors)
    if tensors > manifest.files[0].size:
        raise SnapshotError(
            f"{which} lists {tensors:,} bytes of tensors, its file has {manifest.files[0].size:,}"
        )
