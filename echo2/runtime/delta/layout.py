"""What a delta's bytes look like: header, records, end; and the one error of everything that is not so.

A delta is (integers little-endian):

    header   8 bytes MAGIC, u32 elements per slice, 32 bytes fingerprint of the table of tensors
    tensors  by name, ascending; each one byte: 0 unchanged, 1 followed by one record per slice
    record   one byte kind; unless UNCHANGED: u8 planes, u32 count, u32 stream, then the sections
    section  u32 stored length, then that many bytes: the content itself if lengths are equal, else zstd
    end      one byte 0x45, u32 CRC-32 of everything before it

Names, sizes and order are not in it: both sides know them from the signed manifest, and the fingerprint
refuses a delta of other tensors. So there is nothing in it that could name a tensor twice or not at all.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echo2.errors import UserError

Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger[Any]]
"""Values as bit patterns, of 1, 2, 4 or 8 bytes."""

MAGIC = b"echo2d\x00\x01"
HEADER = struct.Struct("<8sI32s")
RECORD = struct.Struct("<BII")
LENGTH = struct.Struct("<I")
END = b"\x45"

ITEM_SIZES = (1, 2, 4, 8)
SLICE_ELEMENTS = 1 << 20
"""Elements coded at a time: 2 MiB of bf16, about what stays in a core's cache."""
MOST_SLICE_ELEMENTS = 1 << 22
"""What a receiver accepts; with 8-byte elements it works on 32 MiB at a time."""


class DeltaError(UserError):
    """Bytes that are no delta of the tensors at hand, or tensors that no delta can be made of."""


class Kind(IntEnum):
    """How one slice is coded."""

    UNCHANGED = 0
    GAPS8 = 1
    GAPS16 = 2
    BITMAP = 3
    DENSE = 4
    FULL = 5


@dataclass(frozen=True, slots=True)
class Head:
    """Of a record that is not UNCHANGED.

    `planes`: bytes kept of each value, lowest first. `count`: values in it. `stream`: units of the stream
    of gaps, else 0.
    """

    kind: Kind
    planes: int
    count: int
    stream: int


def fingerprint(sizes: Mapping[str, tuple[int, int]]) -> bytes:
    """SHA-256 over a JSON line [name, bytes, bytes per element] a tensor, by name (ours)."""
    digest = hashlib.sha256()
    for name in sorted(sizes):
        digest.update(json.dumps([name, *sizes[name]]).encode() + b"\n")
    return digest.digest()


def check_sizes(sizes: Mapping[str, tuple[int, int]]) -> None:
    """Raise DeltaError unless every tensor is a whole number of elements of a size that is known."""
    for name, (size, item) in sizes.items():
        if item not in ITEM_SIZES or size < 0 or size % item:
            raise DeltaError(
                f"tensor {name[:80]!r} has {size} bytes in elements of {item}; a delta takes whole elements "
                f"of {', '.join(map(str, ITEM_SIZES))} bytes: publish a full snapshot"
            )


def section_lengths(head: Head, elements: int, item: int) -> list[int]:
    """Bytes of each section's content, in order. Raises DeltaError for a head that cannot be.

    This is what bounds a receiver's memory: a section is never longer than the slice has bytes, and a
    stream of gaps has at most an escape for every 255 elements besides its values.
    """
    if head.kind is Kind.FULL:
        _expect(head == Head(Kind.FULL, item, elements, 0), head)
        return [elements] * item
    _expect(1 <= head.planes <= item and 1 <= head.count <= elements, head)
    values = [head.count] * head.planes
    if head.kind is Kind.DENSE:
        _expect(head.count == elements and head.stream == 0, head)
        return values
    if head.kind is Kind.BITMAP:
        _expect(head.stream == 0, head)
        return [(elements + 7) // 8, *values]
    base = 255 if head.kind is Kind.GAPS8 else 65535
    _expect(head.count <= head.stream <= head.count + elements // base, head)
    return [head.stream] * (1 if head.kind is Kind.GAPS8 else 2) + values


def _expect(holds: bool, head: Head) -> None:
    if not holds:
        raise DeltaError(
            f"a delta's record says {head.kind.name.lower()}, {head.planes} planes, {head.count} values, "
            f"stream {head.stream}: impossible for its tensor; fetch it again, or the full snapshot"
        )
