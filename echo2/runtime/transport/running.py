"""Runs the API on uvicorn inside the event loop that runs already. Started and stopped by the driver."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    gaierror,
    getaddrinfo,
    socket,
)

import uvicorn
from fastapi import FastAPI

from echo2.errors import UserError
from echo2.runtime.transport.door import Door
from echo2.runtime.transport.guard import guarded
from echo2.runtime.transport.limits import DEFAULT_LIMITS, Limits

START_S = 10.0
GRACE_S = 2
"""Seconds that requests under way get when the server stops; a download is cut off then."""
BACKLOG = 2048
KEEP_ALIVE_S = 30


class Server:
    """One listening server. `start`, then `stop`; signals are left to whoever owns the process."""

    def __init__(
        self,
        app: FastAPI,  # of make_app
        host: str = "127.0.0.1",
        port: int = 0,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """`port` 0 picks a free one. Raises UserError when only one of certificate and key is given."""
        if (tls_cert is None) != (tls_key is None):
            raise UserError("TLS needs both a certificate and its key; give both files or neither")
        logging.getLogger("uvicorn.error").addFilter(_cut_off)
        self._door: Door = app.state.door
        self._host, self._port, self._cert, self._key = host, port, tls_cert, tls_key
        self._config = uvicorn.Config(
            app,
            http=guarded(limits.header_s, limits.header_bytes),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=limits.connections,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
        self._server = _InLoop(self._config)
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.port = port

    @property
    def url(self) -> str:
        """Where this machine reaches it; with a wildcard host that is the loopback address."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        scheme = "https" if self._cert else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Listen; returns when requests are answered. Raises UserError for a port or certificate."""
        self._load_tls()
        listening = _listen(self._host, self._port)
        self.port = int(listening.getsockname()[1])
        self._task = asyncio.create_task(self._server.serve([listening]), name="echo2-http")
        async with asyncio.timeout(START_S):
            while not self._server.started:
                if self._task.done():
                    await self._task
                    raise RuntimeError("the HTTP server ended before it had started")
                await asyncio.sleep(0.01)
        self._watch = asyncio.create_task(self._door.answers.watch(), name="echo2-http-lag")

    async def stop(self) -> None:
        """Take no more, give what runs some seconds, close everything. May be repeated."""
        if self._task is None:
            return
        self._door.close()
        if self._watch is not None:
            self._watch.cancel()
        self._server.should_exit = True
        task, self._task = self._task, None
        await task

    def _load_tls(self) -> None:
        try:
            self._config.load()
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"TLS certificate {str(self._cert)!r} or key {str(self._key)!r} cannot be used ({error}); "
                "give both as PEM files that belong together"
            ) from error


def _cut_off(record: logging.LogRecord) -> bool:
    """Whether a line is worth logging: a download cut off by the end of the server is not."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and not record.getMessage().startswith("Cancel ")


class _InLoop(uvicorn.Server):
    """uvicorn without its signal handlers: Ctrl-C is the driver's, which writes a checkpoint first."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _listen(host: str, port: int) -> socket:
    try:
        family, _, _, _, address = getaddrinfo(host or "0.0.0.0", port, type=SOCK_STREAM)[0]
    except (gaierror, OverflowError, UnicodeError) as error:
        raise UserError(
            f"host {host!r}, port {port} is no address ({error}); choose with --host and --port"
        ) from error
    assert family in (AF_INET, AF_INET6)
    # named: asyncio switches delayed sending off only where it knows that it is TCP; an answer took 45 ms
    listening = socket(family, SOCK_STREAM, IPPROTO_TCP)
    try:
        listening.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {port} on {host} is in use; choose another with --port (0 picks a free one)"
            ) from error
        raise UserError(
            f"port {port} on {host} cannot be listened on ({error.strerror}); choose with --host and --port"
        ) from error
    return listening
