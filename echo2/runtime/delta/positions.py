"""Where values changed, compactly: gaps of one or two bytes, or a bitmap; and back, checked.

A gap is the number of unchanged elements between two changed ones. It is written in base 255 (or 65,535) as
its quotient in units of all ones, then the remainder, so no gap needs another format and a whole stream is
read with one cumulative sum. Gaps of independent changes are geometric: an entropy coder gets within some
percent of the least possible with one-byte units while escapes are no more than half of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from echo2.runtime.delta.layout import Bytes, DeltaError, Kind

BITMAP_SHARE = 1 / 8
"""From this share changed, a bitmap has fewer bytes than gaps."""

Positions = NDArray[np.intp]


def encode(changed: NDArray[np.bool_], count: int) -> tuple[Kind, int, Positions, list[Bytes]]:
    """(kind, units in the stream, positions ascending, sections) of a slice with `count` > 0 changes."""
    at = _where(changed)
    if count >= BITMAP_SHARE * len(changed):
        return Kind.BITMAP, 0, at, [np.packbits(changed, bitorder="little")]
    gaps = np.diff(at, prepend=-1) - 1
    if int((gaps // 255).sum()) <= count:
        stream = _units(gaps, 255).astype(np.uint8)
        return Kind.GAPS8, len(stream), at, [stream]
    wide = _units(gaps, 65535).astype(np.uint16)
    return Kind.GAPS16, len(wide), at, [(wide & 0xFF).astype(np.uint8), (wide >> 8).astype(np.uint8)]


def decode(kind: Kind, sections: list[Bytes], count: int, elements: int) -> Positions:
    """`count` positions, strictly ascending and below `elements`, or DeltaError."""
    if kind is Kind.BITMAP:
        mask = np.unpackbits(sections[0], bitorder="little")
        at = np.flatnonzero(mask)
        good = len(at) == count and at[-1] < elements
    else:
        stream, base = sections[0].astype(np.intp), 255
        if kind is Kind.GAPS16:
            stream, base = stream | (sections[1].astype(np.intp) << 8), 65535
        ends = stream != base
        at = np.cumsum(stream)[ends] + np.arange(np.count_nonzero(ends))
        good = len(at) == count and bool(ends[-1]) and at[-1] < elements
    if not good:
        raise DeltaError(
            f"the positions of a delta's record are not {count} within {elements} elements; fetch it again, "
            "or the full snapshot"
        )
    return at


def _where(changed: NDArray[np.bool_]) -> Positions:
    """`flatnonzero`, eight at a time: two to three times as fast where few are set."""
    if len(changed) % 8:
        return np.flatnonzero(changed)
    eights = changed.view(np.uint64)
    some = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[some].view(np.bool_))
    at: Positions = (some[inside >> 3] << 3) | (inside & 7)
    return at


def _units(gaps: Positions, base: int) -> Positions:
    escapes = gaps // base
    if not escapes.any():
        return gaps
    stream = np.full(len(gaps) + int(escapes.sum()), base, dtype=np.intp)
    stream[np.cumsum(escapes + 1) - 1] = gaps % base
    return stream
