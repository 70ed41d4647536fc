"""Sections: zstd where it helps, the content itself where not; opened only if the length is as expected."""

from __future__ import annotations

import threading

import numpy as np
import zstandard

from echo2.runtime.delta.layout import LENGTH, MOST_SLICE_ELEMENTS, Bytes, DeltaError

LEVEL = 1
"""What is left is noise with a skewed distribution; levels above 1 find nothing more in it."""
_SHORTEST = 32
"""Bytes; a zstd frame of less is never smaller."""


class _Coders(threading.local):
    """zstd's objects, which may not be shared between threads."""

    def __init__(self) -> None:
        self.pack = zstandard.ZstdCompressor(level=LEVEL)
        self.unpack = zstandard.ZstdDecompressor(max_window_size=2 * MOST_SLICE_ELEMENTS)


_coders = _Coders()


def packed(content: Bytes) -> list[bytes]:
    """The section of a content: its length and its bytes. The same bytes every time."""
    plain = content.tobytes()
    if len(plain) >= _SHORTEST:
        small = _coders.pack.compress(plain)
        if len(small) < len(plain):
            return [LENGTH.pack(len(small)), small]
    return [LENGTH.pack(len(plain)), plain]


def unpacked(stored: bytes, length: int) -> Bytes:
    """The `length` bytes of a section. Raises DeltaError for anything else.

    zstd takes the memory that a frame's own head asks for, so the head is compared first.
    """
    if len(stored) == length:
        return np.frombuffer(stored, dtype=np.uint8)
    try:
        said = zstandard.get_frame_parameters(stored).content_size
        if said != length:
            raise DeltaError(f"a section of a delta unpacks to {said} bytes, not {length}; {_FIX}")
        content = _coders.unpack.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DeltaError(f"a section of a delta cannot be unpacked ({error}); {_FIX}") from None
    if len(content) != length:
        raise DeltaError(f"a section of a delta unpacked to {len(content)} bytes, not {length}; {_FIX}")
    return np.frombuffer(content, dtype=np.uint8)


_FIX = "fetch it again, or the full snapshot"
