"""What values changed to: differences of bit patterns, folded to small numbers, split into byte planes.

One optimiser step moves a weight by a few units in the last place. The difference of the patterns modulo
2^bits, with its sign folded into the lowest bit, is then 1, 2 or little more, whatever carries it caused in
the pattern itself (an XOR would show these). Every pattern comes back exactly, NaN and -0.0 too.
"""

from __future__ import annotations

import numpy as np

from echo2.runtime.delta.layout import Bytes, Words


def folded(old: Words, new: Words) -> Words:
    """new - old modulo 2^bits, as 2d for d >= 0 and -2d - 1 for d < 0."""
    step = new - old
    signed = step.view(f"i{step.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * step.itemsize - 1))).view(step.dtype)


def unfolded(old: Words, small: Words) -> Words:
    """The new patterns: inverse of `folded`."""
    one = small.dtype.type(1)
    # 0 - (z & 1) is all ones for an odd one: the negative numbers
    step: Words = (small >> one) ^ (small.dtype.type(0) - (small & one))
    return old + step


def planes(words: Words, most: int | None = None) -> list[Bytes]:
    """The bytes of each significance, lowest first, `most` of them or up to the last that is not all zero."""
    if most is None:
        most = max(1, (int(words.max(initial=0)).bit_length() + 7) // 8)
    table = words.view(np.uint8).reshape(-1, words.itemsize)
    return [np.ascontiguousarray(table[:, at]) for at in range(most)]


def merged(parts: list[Bytes], itemsize: int) -> Words:
    """Words from their lowest planes; the others are zero."""
    if itemsize == 1:
        return parts[0]
    table = np.zeros((len(parts[0]), itemsize), dtype=np.uint8)
    for at, part in enumerate(parts):
        table[:, at] = part
    return table.reshape(-1).view(f"u{itemsize}")
