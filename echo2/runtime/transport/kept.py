"""The manifests that an earlier life of a learner left on disk. Called by the snapshot store at its start."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Manifest, SignedManifest
from echo2.runtime.transport.signing import verified


def kept_manifests(directory: Path, run_id: str, run_key: str) -> dict[Path, tuple[Manifest, SignedManifest]]:
    """Those in `directory` that this run's key has signed, by file; what is none is deleted.

    Raises UserError for a directory of another run, OSError.
    """
    found: dict[Path, tuple[Manifest, SignedManifest]] = {}
    for file in directory.glob("*.json"):
        try:
            signed = SignedManifest.model_validate_json(file.read_bytes())
            manifest = verified(signed, run_key)
        except (ValidationError, SnapshotError):
            file.unlink()
            continue
        if manifest.run_id != run_id:
            raise UserError(
                f"{str(directory.parent)!r} holds snapshots of run {manifest.run_id!r}, not {run_id!r}; "
                "choose another directory"
            )
        found[file] = manifest, signed
    return found
