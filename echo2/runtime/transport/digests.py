"""The digest that chunks and tensors go by, in one place. Called wherever bytes are named or checked.

Both ends must agree on it: it belongs to the protocol, as the format of a manifest does. BLAKE3, because
every byte is hashed where it is published and where it arrives: 3 times as fast as SHA-256 here
(`benchmarks/delta_speed.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blake3 import blake3

NAME = "BLAKE3"


def digest_of(data: Any) -> str:
    """64 hex digits of a buffer. Large buffers are hashed outside the interpreter's lock."""
    return blake3(memoryview(data).cast("B")).hexdigest()


def digest_of_all(pieces: Iterable[Any]) -> str:
    """The same over pieces one after another."""
    digest = blake3()
    for piece in pieces:
        digest.update(memoryview(piece).cast("B"))
    return digest.hexdigest()
