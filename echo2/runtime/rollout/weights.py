"""Checks weights before an engine touches its model: names, shapes and dtypes, then every value.

A snapshot must have exactly the tensors of the model directory the engine started from. Headers of
safetensors files are read here without loading torch; only `check_finite` and `stage` do.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.runtime.rollout.engine import Weights, WeightUpdateError

if TYPE_CHECKING:
    from torch import Tensor

HEADER_LIMIT = 100_000_000
"""Bytes of a safetensors header at most: the format's own limit."""

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
"""Floating-point dtypes as torch and as safetensors spell them."""

TIED_NAME = "lm_head.weight"


@dataclass(frozen=True)
class Manifest:
    """Name -> (dtype as safetensors spells it, shape) of every tensor of a snapshot."""

    tensors: dict[str, tuple[str, tuple[int, ...]]]

    @property
    def checksum(self) -> str:
        """SHA-256 over names, dtypes and shapes, in the order of the names."""
        lines = (f"{name} {dtype} {list(shape)}\n" for name, (dtype, shape) in sorted(self.tensors.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def main_dtype(self) -> str:
        """The dtype most tensors have, as torch spells it."""
        counts = Counter(dtype for dtype, _ in self.tensors.values())
        dtype = counts.most_common(1)[0][0]
        return {spelled: name for name, spelled in DTYPES.items()}.get(dtype, dtype)

    def check(self, found: Manifest) -> None:
        """Raise WeightUpdateError, naming the first difference, unless `found` has the same tensors."""
        if self.checksum == found.checksum:
            return
        for name in sorted(self.tensors.keys() | found.tensors.keys()):
            want, have = self.tensors.get(name), found.tensors.get(name)
            if want == have:
                continue
            if have is None:
                raise _refused(f"tensor {name} is missing; send every tensor of the model")
            if want is None:
                raise _refused(f"tensor {name} is not in the model the engine was started from")
            raise _refused(
                f"tensor {name} is {have[0]} {list(have[1])}, the model has {want[0]} {list(want[1])}; "
                "send it in the dtype and shape of the model directory"
            )


def files_of(path: Path) -> list[Path]:
    """The safetensors files of a snapshot: the file itself, or all in the directory by name."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    return [path] if path.is_file() else []


def read_manifest(path: Path) -> Manifest:
    """The manifest of a safetensors file or directory, from headers alone. Raises UserError if unreadable."""
    files = files_of(path)
    if not files:
        raise UserError(
            f"no safetensors weights at {path.name!r}; give a .safetensors file or a directory of them"
        )
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in files:
        tensors.update(_header(file))
    return Manifest(tensors)


def manifest_of(tensors: Mapping[str, Tensor]) -> Manifest:
    """The manifest of tensors in memory."""
    return Manifest({name: (_dtype_name(t), tuple(t.shape)) for name, t in tensors.items()})


@contextmanager
def stage(weights: Weights, expected: Manifest) -> Iterator[Path]:
    """Verified weights as a path that lives as long as the context: tensors are written to a temporary file.

    Raises WeightUpdateError for a missing, extra, misshapen or non-finite tensor or an unreadable file.
    A tied LM head sent along with the embedding it equals is left out, as `save_pretrained` does.
    """
    if isinstance(weights, Path):
        try:
            found = read_manifest(weights)
        except UserError as error:
            raise _refused(str(error)) from error
        expected.check(found)
        for file in files_of(weights):
            check_finite(load(file))
        yield weights
        return
    tensors = {name: t.detach() for name, t in weights.items()}
    _drop_tied(tensors, expected)
    expected.check(manifest_of(tensors))
    check_finite(tensors)
    from safetensors.torch import save_file

    with TemporaryDirectory(prefix="echo2-weights-") as directory:
        path = Path(directory) / "model.safetensors"
        save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, path)
        yield path


def load(path: Path) -> dict[str, Tensor]:
    """All tensors of a snapshot, memory-mapped on the CPU."""
    from safetensors.torch import load_file

    return {name: tensor for file in files_of(path) for name, tensor in load_file(file).items()}


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise WeightUpdateError, naming the tensor, when any value is NaN or infinite."""
    import torch

    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise _refused(f"tensor {name} has {bad} of {tensor.numel()} values NaN or infinite")


def _drop_tied(tensors: dict[str, Tensor], expected: Manifest) -> None:
    """Take a tied LM head out when it equals the embedding; one that differs is left to be refused."""
    if TIED_NAME not in tensors or TIED_NAME in expected.tensors:
        return
    head = tensors[TIED_NAME]
    embeddings = (t for name, t in tensors.items() if name.endswith("embed_tokens.weight"))
    if any(t.shape == head.shape and bool((t == head).all()) for t in embeddings):
        del tensors[TIED_NAME]


def _header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor entries of one file's header: 8 bytes little-endian length, then JSON (safetensors format)."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= HEADER_LIMIT:
                raise ValueError(f"header of {length} bytes")
            entries = json.loads(stream.read(length))
        body = file.stat().st_size - 8 - length
        named = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        if max((entry["data_offsets"][1] for entry in named.values()), default=0) != body:
            raise ValueError("the file is cut short")
        return {name: (str(e["dtype"]), tuple(e["shape"])) for name, e in named.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file.name} is not a whole safetensors file ({error}); write it again") from error


def _dtype_name(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return DTYPES.get(name, name)


def _refused(what: str) -> WeightUpdateError:
    return WeightUpdateError(f"weights refused: {what}")
