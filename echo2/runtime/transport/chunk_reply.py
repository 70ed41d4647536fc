"""A chunk file as an HTTP answer: streamed, resumable, shaped. Called by `server`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from fastapi import Response
from fastapi.responses import StreamingResponse

from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.shaping import Shaper

PIECE_BYTES = 512 << 10
SHAPED_PIECE_BYTES = 64 << 10
AT_ONCE_BYTES = 256 << 10
"""So little is read on the event loop: just written, it is in memory, and a thread and a stream cost more."""

_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")


def chunk_reply(path: Path, wanted: str | None, uplink: Shaper | None, order: float = 0.0) -> Response:
    """The file, or the part that a Range header asks for. Raises Refusal 404 or 416.

    `order`: the lowest of those that wait for the uplink is served first.
    """
    try:
        stream = path.open("rb")
    except OSError:
        raise Refusal(404, "no-chunk", f"chunk {path.name} is gone; fetch the newest snapshot") from None
    try:
        size = stream.seek(0, 2)
        start, end = _range(wanted, size)
        stream.seek(start)
    except BaseException:
        stream.close()
        raise
    headers = {"Content-Length": str(end - start), "Accept-Ranges": "bytes"}
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    status, kind = 206 if wanted else 200, "application/octet-stream"
    if uplink is None and end - start <= AT_ONCE_BYTES:
        with stream:
            return Response(stream.read(end - start), status, headers, kind)
    return StreamingResponse(_pieces(stream, end - start, uplink, order), status, headers, kind)


async def _pieces(stream: BinaryIO, left: int, uplink: Shaper | None, order: float) -> AsyncIterator[bytes]:
    most = SHAPED_PIECE_BYTES if uplink else PIECE_BYTES
    with stream:
        while left > 0:
            # in a thread: a disk may be slow, and all other workers share this event loop
            piece = await asyncio.to_thread(stream.read, min(left, most))
            if not piece:
                return
            left -= len(piece)
            if uplink is not None:
                await uplink.take(len(piece), order)
            yield piece


def _range(wanted: str | None, size: int) -> tuple[int, int]:
    """(first byte, one past the last)."""
    if wanted is None:
        return 0, size
    match = _RANGE.fullmatch(wanted.strip())
    start = int(match[1]) if match else size
    end = min(size, int(match[2]) + 1) if match and match[2] else size
    if not start < end:
        raise Refusal(
            416, "bad-range", f"Range is {wanted[:60]!r}; ask for one range like bytes=0- within {size} bytes"
        )
    return start, end
