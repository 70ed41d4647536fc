"""Where a delta's bytes come from: a stream, or files one after another; every read is exact and counted."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import BinaryIO

from echo2.runtime.delta.layout import DeltaError


class Source:
    """Reads forward only. `crc` is the CRC-32 of all that was taken."""

    def __init__(self, pieces: BinaryIO | Sequence[Path]) -> None:
        self.crc = 0
        self.taken = 0
        self._streams = _opened(pieces)
        self._stream: BinaryIO | None = next(self._streams, None)

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes. Raises DeltaError where the delta ends before, or cannot be read."""
        parts: list[bytes] = []
        missing = count
        while missing:
            part = self._some(missing)
            if not part:
                raise DeltaError(
                    f"a delta ends after {self.taken + count - missing} bytes, in the middle; fetch it "
                    "again, or the full snapshot"
                )
            parts.append(part)
            missing -= len(part)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.crc = zlib.crc32(data, self.crc)
        self.taken += count
        return data

    def at_end(self) -> bool:
        """Whether nothing is left. Takes a byte if there is one."""
        return not self._some(1)

    def close(self) -> None:
        """Close the file at hand; a stream that was given stays open."""
        self._streams.close()

    def _some(self, most: int) -> bytes:
        try:
            while self._stream is not None:
                if part := self._stream.read(most):
                    return part
                self._stream = next(self._streams, None)
        except OSError as error:
            raise DeltaError(f"a delta cannot be read ({error}); fetch it again") from error
        return b""


def _opened(pieces: BinaryIO | Sequence[Path]) -> Generator[BinaryIO, None, None]:
    if not isinstance(pieces, Sequence):
        yield pieces
        return
    for path in pieces:
        with path.open("rb") as stream:
            yield stream
