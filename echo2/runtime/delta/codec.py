"""Deltas of snapshots: the tensors of one version, as what changed since another. Lossless, bit by bit.

The learner's snapshot store calls `delta_pieces`, the worker's receiver `apply_delta`. Both take bytes of
tensors, not tensors: no torch. See `layout` for the format.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from echo2.runtime.delta import records
from echo2.runtime.delta.layout import (
    END,
    HEADER,
    LENGTH,
    MAGIC,
    MOST_SLICE_ELEMENTS,
    SLICE_ELEMENTS,
    Bytes,
    DeltaError,
    Head,
    check_sizes,
    fingerprint,
)
from echo2.runtime.delta.order import in_order
from echo2.runtime.delta.source import Source

_FIX = "fetch it again, or the full snapshot"
_SAME, _CHANGED = b"\x00", b"\x01"


def delta_pieces(
    old: Mapping[str, Bytes],
    new: Mapping[str, Bytes],
    itemsize: Mapping[str, int],
    threads: int = 1,
    slice_elements: int = SLICE_ELEMENTS,
) -> Iterator[bytes]:
    """The bytes of the delta from `old` to `new`, piece by piece while later tensors are still encoded.

    Arrays are the tensors' bytes, one-dimensional and contiguous; both mappings hold the same names and
    lengths. They may not change until the last piece is taken. The bytes depend neither on `threads` nor on
    the order of the mappings. Raises DeltaError for tensors that no delta can be made of.
    """
    sizes = {name: (array.nbytes, itemsize.get(name, 0)) for name, array in new.items()}
    check_sizes(sizes)
    if {name: array.nbytes for name, array in old.items()} != {name: sizes[name][0] for name in sizes}:
        raise DeltaError("old and new tensors differ in names or sizes; publish a full snapshot")
    if not 1 <= slice_elements <= MOST_SLICE_ELEMENTS:
        raise DeltaError(f"slice_elements is {slice_elements}; it must be 1 to {MOST_SLICE_ELEMENTS}")
    _check_threads(threads)
    return _pieces(old, new, sizes, threads, slice_elements)


def apply_delta(
    pieces: BinaryIO | Sequence[Path],
    old: Callable[[str], Bytes],
    put: Callable[[str, Bytes], None],
    sizes: Mapping[str, tuple[int, int]],
    threads: int = 1,
) -> None:
    """Give every tensor of the new version to `put`, by name ascending.

    `pieces`: the delta as a stream or as files one after another, nothing behind it. `sizes`: (bytes,
    bytes per element) of every tensor, from the signed manifest. An unchanged tensor is given as the very
    array that `old` returned. Raises DeltaError for bytes that are no delta of these tensors: what `put`
    was given until then must be thrown away. Memory: a few slices besides the tensors under way.
    The digest of each tensor is the caller's to check: another delta of the same tensors is not found here.
    """
    check_sizes(sizes)
    _check_threads(threads)
    source = Source(pieces)
    try:
        slice_elements = _header(source, sizes)
        for done in in_order(_jobs(source, old, sizes, slice_elements), threads):
            if done is not None:
                put(*done)
        _end(source)
    finally:
        source.close()


def _check_threads(threads: int) -> None:
    if threads < 1:
        raise DeltaError(f"threads is {threads}; it must be at least 1")


# ---- making one ----------------------------------------------------------------------------------


def _pieces(
    old: Mapping[str, Bytes],
    new: Mapping[str, Bytes],
    sizes: Mapping[str, tuple[int, int]],
    threads: int,
    slice_elements: int,
) -> Iterator[bytes]:
    head = HEADER.pack(MAGIC, slice_elements, fingerprint(sizes))
    crc = zlib.crc32(head)
    yield head
    jobs = _slices_of(old, new, sizes, slice_elements)
    for piece in _by_tensor(in_order(jobs, threads)):
        crc = zlib.crc32(piece, crc)
        yield piece
    yield END + LENGTH.pack(zlib.crc32(END, crc))


def _slices_of(
    old: Mapping[str, Bytes],
    new: Mapping[str, Bytes],
    sizes: Mapping[str, tuple[int, int]],
    slice_elements: int,
) -> Iterator[Callable[[], tuple[bytes, bool]]]:
    """A job for each slice: its record, and whether it is the tensor's last."""
    for name in sorted(sizes):
        size, item = sizes[name]
        step = slice_elements * item
        for start in range(0, max(size, 1), step):
            end = min(start + step, size)
            yield partial(_encoded, old[name][start:end], new[name][start:end], item, end == size)


def _encoded(old: Bytes, new: Bytes, item: int, last: bool) -> tuple[bytes, bool]:
    if not len(new):
        return records.UNCHANGED, last
    return records.encode(old.view(f"u{item}"), new.view(f"u{item}")), last


def _by_tensor(slices: Iterator[tuple[bytes, bool]]) -> Iterator[bytes]:
    """The records with each tensor's flag before them; an unchanged tensor is its flag alone."""
    same, changed = 0, False
    for record, last in slices:
        if not changed and record == records.UNCHANGED:
            same += 1
        elif changed:
            yield record
        else:
            changed = True
            yield _CHANGED + records.UNCHANGED * same + record
        if last:
            if not changed:
                yield _SAME
            same, changed = 0, False


# ---- applying one --------------------------------------------------------------------------------


def _header(source: Source, sizes: Mapping[str, tuple[int, int]]) -> int:
    """Elements per slice, once the delta is known to be one of these tensors."""
    magic, slice_elements, table = HEADER.unpack(source.take(HEADER.size))
    if magic != MAGIC:
        raise DeltaError(f"the bytes are no delta of format {MAGIC[-1]}; {_FIX}")
    if not 1 <= slice_elements <= MOST_SLICE_ELEMENTS:
        raise DeltaError(
            f"a delta has slices of {slice_elements} elements, it must be 1 to {MOST_SLICE_ELEMENTS}; {_FIX}"
        )
    if table != fingerprint(sizes):
        raise DeltaError(f"a delta is of other tensors than the manifest's; {_FIX}")
    return int(slice_elements)


def _jobs(
    source: Source,
    old: Callable[[str], Bytes],
    sizes: Mapping[str, tuple[int, int]],
    slice_elements: int,
) -> Iterator[Callable[[], tuple[str, Bytes] | None]]:
    """A job for each slice; the last one of a tensor gives its name and its new bytes."""
    for name in sorted(sizes):
        size, item = sizes[name]
        before = old(name)
        if before.dtype != np.uint8 or before.shape != (size,):
            raise DeltaError(
                f"tensor {name[:80]!r} is held with {before.nbytes} bytes, not {size}; fetch the full "
                "snapshot"
            )
        flag = source.take(1)
        if flag == _SAME:
            yield partial(_finished, name, before)
            continue
        if flag != _CHANGED or not size:
            raise DeltaError(f"tensor {name[:80]!r} has flag {flag[0]} in a delta, not 0 or 1; {_FIX}")
        after = np.empty(size, dtype=np.uint8)
        step = slice_elements * item
        for start in range(0, size, step):
            end = min(start + step, size)
            stored = records.read(source.take, (end - start) // item, item)
            done = (name, after) if end == size else None
            yield partial(_decoded, stored, before[start:end], after[start:end], item, done)


def _finished(name: str, array: Bytes) -> tuple[str, Bytes]:
    return name, array


def _decoded(
    stored: tuple[Head, list[bytes]] | None,
    old: Bytes,
    new: Bytes,
    item: int,
    done: tuple[str, Bytes] | None,
) -> tuple[str, Bytes] | None:
    if stored is None:
        np.copyto(new, old)
    else:
        records.decode(*stored, old.view(f"u{item}"), new.view(f"u{item}"))
    return done


def _end(source: Source) -> None:
    if source.take(1) != END:
        raise DeltaError(f"a delta does not end after its last tensor; {_FIX}")
    crc = source.crc
    if LENGTH.unpack(source.take(LENGTH.size))[0] != crc:
        raise DeltaError(f"a delta's bytes were damaged: their CRC-32 is another; {_FIX}")
    if not source.at_end():
        raise DeltaError(f"bytes stand behind a delta's end; {_FIX}")
