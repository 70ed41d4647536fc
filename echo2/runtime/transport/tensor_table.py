"""The table of tensors in safetensors bytes: read, hashed and written without torch.

Called by the snapshot store (writes) and the receiver (lays out, verifies). The format: 8 bytes little-endian
length, a JSON header, the tensors' bytes without gaps (safetensors format specification).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.transport.digests import digest_of_all
from echo2.runtime.transport.messages import MAX_TENSORS, TensorEntry

HEADER_LIMIT = 100_000_000
"""Bytes of a header at most: the format's own limit."""

ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}
"""Bytes of one value by dtype as safetensors spells it."""

HASH_THREADS = min(8, os.cpu_count() or 1)
"""Tensors hashed at once: hashing of large buffers runs outside the interpreter's lock."""

_READ_BYTES = 1 << 20


def entry_bytes(entry: TensorEntry) -> int:
    """Bytes of a tensor's values. Raises UserError for a dtype that is not known."""
    return _values(entry.shape) * _item_bytes(entry.dtype, entry.name)


def weights_digest_of(entries: Iterable[TensorEntry]) -> str:
    """The identity of weights: SHA-256 over a JSON line [name, dtype, shape, digest] a tensor (ours)."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda e: e.name):
        line = json.dumps([entry.name, entry.dtype, list(entry.shape), entry.digest])
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def layout_of(entries: Iterable[TensorEntry]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The one way we lay a file out: its first bytes, and (offset, bytes) of each tensor, in order.

    Widest values first, then by name: that keeps every tensor aligned without gaps, which the format does
    not allow. Whoever makes the same tensors makes the same bytes.
    """
    order = sorted(entries, key=lambda e: (-_item_bytes(e.dtype, e.name), e.name))
    head = header_of([(e.name, e.dtype, e.shape, entry_bytes(e)) for e in order])
    places, at = {}, len(head)
    for entry in order:
        size = entry_bytes(entry)
        places[entry.name] = (at, size)
        at += size
    return head, places


def header_of(tensors: Sequence[tuple[str, str, Sequence[int], int]]) -> bytes:
    """The first bytes of a file that holds (name, dtype, shape, bytes) in this order, padded to 8 bytes."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, size in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_entries(file: Path, threads: int = HASH_THREADS) -> tuple[TensorEntry, ...]:
    """Every tensor of a safetensors file with the digest of its bytes, by name. Raises UserError."""
    try:
        with file.open("rb") as stream:
            places = sorted(_places(stream, file.stat().st_size).items())

        def entry(place: tuple[str, tuple[str, tuple[int, ...], int, int]]) -> TensorEntry:
            name, (dtype, shape, start, end) = place
            return TensorEntry(name=name, dtype=dtype, shape=shape, digest=_hash(file, start, end - start))

        with ThreadPoolExecutor(threads) as pool:
            return tuple(pool.map(entry, places))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file.name} is not a whole safetensors file ({reason}); write it again") from error


def places_in(file: Path) -> dict[str, tuple[int, int]]:
    """(offset in the file, bytes) of each tensor of a safetensors file. Raises UserError."""
    try:
        with file.open("rb") as stream:
            found = _places(stream, file.stat().st_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file.name} is not a whole safetensors file ({error}); write it again") from error
    return {name: (start, end - start) for name, (_, _, start, end) in found.items()}


def read_all_entries(path: Path) -> tuple[TensorEntry, ...]:
    """The tensors of a safetensors file, or of all such files in a directory. Raises UserError."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise UserError(f"no safetensors weights at {str(path)!r}; give such a file or a directory of them")
    entries = [entry for file in files for entry in read_entries(file)]
    names = {entry.name for entry in entries}
    if len(names) < len(entries):
        raise UserError(f"{str(path)!r} holds a tensor twice, in several files; keep one of each")
    return tuple(sorted(entries, key=lambda e: e.name))


def weights_digest(path: Path) -> str:
    """The identity of the weights in a safetensors file or directory; equals a manifest's `weights`."""
    return weights_digest_of(read_all_entries(path))


def _places(stream: BinaryIO, size: int) -> Mapping[str, tuple[str, tuple[int, ...], int, int]]:
    length = int.from_bytes(stream.read(8), "little")
    if not 0 < length <= min(HEADER_LIMIT, size):
        raise ValueError(f"header of {length} bytes")
    table = json.loads(stream.read(length))
    table.pop("__metadata__", None)
    if not 0 < len(table) <= MAX_TENSORS:
        raise ValueError(f"{len(table)} tensors")
    places: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    for name, entry in table.items():
        start, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if end - start != _values(shape) * _item_bytes(entry["dtype"], name):
            raise ValueError(f"tensor {name!r} has {end - start} bytes")
        places[name] = (entry["dtype"], shape, start + 8 + length, end + 8 + length)
    at = 8 + length
    for _, _, start, end in sorted(places.values(), key=lambda p: p[2:]):
        if start != at:
            raise ValueError("tensors overlap or leave gaps")
        at = end
    if at != size:
        raise ValueError(f"the file has {size} bytes, its tensors end at {at}")
    return places


def _hash(file: Path, start: int, size: int) -> str:
    with file.open("rb") as stream:
        stream.seek(start)
        return digest_of_all(_read(stream, size))


def _read(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = stream.read(min(size, _READ_BYTES))
        if not piece:
            raise ValueError("the file is cut short")
        yield piece
        size -= len(piece)


def _values(shape: Sequence[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def _item_bytes(dtype: str, name: str) -> int:
    if dtype not in ITEM_BYTES:
        raise UserError(
            f"tensor {name[:80]!r} is of dtype {dtype[:20]!r}; a snapshot takes {', '.join(ITEM_BYTES)}"
        )
    return ITEM_BYTES[dtype]
