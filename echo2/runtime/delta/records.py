"""One slice of one tensor to its record and back.

Sparse changes are positions and folded differences, many changes are differences alone, and where even
these are as large as the tensor the new values themselves are written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from echo2.runtime.delta import positions
from echo2.runtime.delta.layout import LENGTH, RECORD, Bytes, DeltaError, Head, Kind, Words, section_lengths
from echo2.runtime.delta.sections import packed, unpacked
from echo2.runtime.delta.values import folded, merged, planes, unfolded

DENSE_SHARE = 0.5
"""From this share changed, zeros among the differences cost less than saying where the others are."""
_POOR = 0.6
"""Of the slice's bytes: a record larger than this is compared with the new values written in full."""

UNCHANGED = bytes([Kind.UNCHANGED])


def encode(old: Words, new: Words) -> bytes:
    """The record that makes `new` of `old`; both of one length above 0. The same bytes every time."""
    changed = old != new
    count = int(np.count_nonzero(changed))
    if not count:
        return UNCHANGED
    if count > DENSE_SHARE * len(new):
        parts = planes(folded(old, new))
        record = _written(Head(Kind.DENSE, len(parts), len(new), 0), parts)
    else:
        kind, stream, at, where = positions.encode(changed, count)
        parts = planes(folded(old[at], new[at]))
        record = _written(Head(kind, len(parts), count, stream), [*where, *parts])
    if len(record) > _POOR * new.nbytes:
        full = _written(Head(Kind.FULL, new.itemsize, len(new), 0), planes(new, new.itemsize))
        record = min(record, full, key=len)
    return record


def _written(head: Head, contents: list[Bytes]) -> bytes:
    out = [bytes([head.kind]), RECORD.pack(head.planes, head.count, head.stream)]
    for content in contents:
        out += packed(content)
    return b"".join(out)


def read(take: Callable[[int], bytes], elements: int, item: int) -> tuple[Head, list[bytes]] | None:
    """The next record as it is stored; None for an unchanged slice. Raises DeltaError.

    `take(n)` gives exactly n bytes or raises; no more is asked for than the slice can need.
    """
    number = take(1)[0]
    if number == Kind.UNCHANGED:
        return None
    if number not in Kind._value2member_map_:
        raise DeltaError(
            f"a delta's record is of kind {number}, it must be 0 to {max(Kind)}; fetch it again, or the "
            "full snapshot"
        )
    head = Head(Kind(number), *RECORD.unpack(take(RECORD.size)))
    stored = []
    for length in section_lengths(head, elements, item):
        (size,) = LENGTH.unpack(take(LENGTH.size))
        if not 0 < size <= length:
            raise DeltaError(
                f"a section of a delta has {size} bytes, it must be 1 to {length}; fetch it again, or the "
                "full snapshot"
            )
        stored.append(take(size))
    return head, stored


def decode(head: Head, stored: list[bytes], old: Words, new: Words) -> None:
    """Write the new values into `new`, all of them. Raises DeltaError."""
    lengths = section_lengths(head, len(old), old.itemsize)
    contents = [unpacked(part, length) for part, length in zip(stored, lengths, strict=True)]
    if head.kind is Kind.FULL:
        new[:] = merged(contents, old.itemsize)
    elif head.kind is Kind.DENSE:
        new[:] = unfolded(old, merged(contents, old.itemsize))
    else:
        where, parts = contents[: -head.planes], contents[-head.planes :]
        at = positions.decode(head.kind, where, head.count, len(old))
        np.copyto(new, old)
        new[at] = unfolded(old[at], merged(parts, old.itemsize))
