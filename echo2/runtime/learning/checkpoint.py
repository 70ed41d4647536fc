"""Checkpoints of the learner: atomic, complete and bit-exact on CPU.

Called by the live driver. A checkpoint is the directory `version-00000012`, a Hugging Face model directory
(config.json, model.safetensors) with `trainer.pt` (optimiser, random generators) and `manifest.json`
(version, SHA-256 of every file, the driver's own state). It is written beside its place and renamed, so a
crash leaves either the whole of it or nothing that is read. `trainer.pt` is read by `torch.load` with
`weights_only`, so a foreign file cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from echo2.errors import UserError
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.weights import set_state, set_weights, weight_names, whole_state, whole_weights

FORMAT = 1
MODEL, TRAINER, MANIFEST = "model.safetensors", "trainer.pt", "manifest.json"
_NAME = re.compile(r"version-(\d{8,})")


def save(learner: Learner, directory: Path, state: Mapping[str, Any] | None = None) -> Path:
    """Write the learner's checkpoint under `directory` and return its path.

    All ranks of a sharded learner call it, the first writes; it can be loaded on any number of ranks.
    `state` is the driver's own (ledger frontier, scheduler state), JSON values only. A checkpoint of the
    same version is replaced. Raises UserError when the disk cannot take it; what was there then stays.
    """
    final = directory / f"version-{learner.version:08d}"
    partial = directory / f".{final.name}.{os.getpid()}.partial"
    weights = whole_weights(learner.model)
    trainer = {"optimizer": whole_state(learner.model, learner.optimizer), "generators": _generators()}
    trouble = ""
    if learner.ranks.rank == 0:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _write(learner, partial, weights, trainer, dict(state or {}))
            _put_in_place(partial, final)
        except (OSError, SafetensorError, RuntimeError) as error:
            trouble = str(error)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    # all ranks learn how it went, so that none waits for one that has given up
    if troubles := learner.ranks.suspects([trouble] if trouble else []):
        raise UserError(
            f"checkpoint {final} cannot be written: {troubles[0]}; "
            "free some space or choose another directory"
        )
    return final


def newest(directory: Path) -> Path | None:
    """The complete checkpoint of the highest version under `directory`, or None."""
    found = [path for path in directory.glob("version-*") if _NAME.fullmatch(path.name)]
    return max(found, key=lambda path: int(path.name.removeprefix("version-")), default=None)


def load(learner: Learner, path: Path) -> dict[str, Any]:
    """Bring a learner of the same model to a checkpoint, and return the driver's `state`.

    Restores weights, optimiser, random generators (torch, CUDA, Python) and version. Everything is read
    and checked before anything changes. Raises UserError for a missing, damaged or foreign checkpoint and
    for one older than the learner's version.
    """
    manifest = _manifest(path)
    version = int(manifest["version"])
    if version < learner.version:
        raise UserError(
            f"checkpoint {path} is of version {version}, older than the learner's {learner.version}; "
            "versions never go back, start from a new learner"
        )
    for name, digest in manifest["sha256"].items():
        if not (path / name).is_file() or _sha256(path / name) != digest:
            raise UserError(
                f"checkpoint file {path / name} is missing or damaged (SHA-256 differs); "
                "use an older checkpoint"
            )
    try:
        weights = load_file(path / MODEL)
        trainer = torch.load(path / TRAINER, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, UnpicklingError, RuntimeError) as error:
        raise UserError(
            f"checkpoint {path} cannot be read ({str(error).splitlines()[0]}); use an older checkpoint"
        ) from error
    _check_fit(learner, weights, path)
    set_weights(learner.model, weights)
    set_state(learner.model, learner.optimizer, trainer["optimizer"])
    _set_generators(trainer["generators"])
    learner.version = version
    state: dict[str, Any] = manifest["state"]
    return state


def _write(
    learner: Learner,
    partial: Path,
    weights: dict[str, Tensor],
    trainer: dict[str, Any],
    state: dict[str, Any],
) -> None:
    partial.mkdir()
    learner.model.config.save_pretrained(partial)
    save_file({name: t.contiguous() for name, t in weights.items()}, partial / MODEL, {"format": "pt"})
    torch.save(trainer, partial / TRAINER)
    names = sorted(file.name for file in partial.iterdir())
    manifest = {
        "format": FORMAT,
        "version": learner.version,
        "sha256": {name: _sha256(partial / name) for name in names},
        "state": state,
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n")
    for name in (*names, MANIFEST):
        _sync(partial / name)
    _sync(partial)


def _put_in_place(partial: Path, final: Path) -> None:
    if final.exists():
        # a directory cannot be replaced by a rename; the dot keeps `newest` from reading the old one
        replaced = final.with_name(f".{final.name}.{os.getpid()}.replaced")
        os.rename(final, replaced)
        os.rename(partial, final)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        os.rename(partial, final)
    _sync(final.parent)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        found = manifest["format"]
        complete = {MODEL, TRAINER} <= set(manifest["sha256"]) and {"version", "state"} <= set(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} holds no readable checkpoint ({error}); name a version-* directory"
        ) from error
    if found != FORMAT or not complete:
        raise UserError(f"checkpoint {path} has format {found}; this echo2 reads format {FORMAT} only")
    return manifest


def _check_fit(learner: Learner, weights: dict[str, Tensor], path: Path) -> None:
    """The stored tensors are those of the model, by name and shape."""
    held = learner.model.state_dict()
    wanted = {name: held[name] for name in weight_names(learner.model)}
    missing = [name for name in wanted if name not in weights]
    unfit = [n for n, t in weights.items() if n not in wanted or wanted[n].shape != t.shape]
    if missing or unfit:
        raise UserError(
            f"checkpoint {path} is of another model: {len(missing)} tensors missing, {len(unfit)} unknown or "
            f"of another shape (first: {(missing + unfit)[0]}); give the model the run was started with"
        )


def _generators() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


def _set_generators(stored: dict[str, Any]) -> None:
    torch.set_rng_state(stored["torch"])
    if stored["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(stored["cuda"])
    kind, words, gauss = stored["python"]
    random.setstate((kind, tuple(words), gauss))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
