"""Closes connections that hold a socket without asking anything: silent, slow or endless headers.

uvicorn bounds the time between requests of a connection but not how long the headers of one may take, nor
(with httptools) how long they may be. `guarded` makes the protocol class that does, on either parser.
"""

from __future__ import annotations

import asyncio
from typing import Any


def guarded(header_s: float, header_bytes: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with a deadline (seconds) and a size limit (bytes) for request headers."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        base = HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        base = H11Protocol

    class GuardedProtocol(base):  # type: ignore[misc]
        """One connection. The timer runs from when headers are awaited until they are whole."""

        _timer: asyncio.TimerHandle | None = None
        _seen_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._disarm()
                return
            self._arm()
            self._seen_bytes += len(data)
            if self._seen_bytes > header_bytes:
                self.transport.close()

        def _arm(self) -> None:
            if self._timer is None:
                self._seen_bytes = 0
                self._timer = self.loop.call_later(header_s, self.transport.close)

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return GuardedProtocol
