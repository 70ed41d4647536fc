"""One connection for chunks, kept open: a request at a time, the bytes straight into their buffer.

Used by the gatherer for relays and for the learner: a general HTTP client copies every byte several times.
It speaks just enough HTTP/1.1 for that, and trusts nothing that comes: heads are bounded, and no byte beyond
the chunk is ever kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from echo2.errors import UserError
from echo2.runtime.transport.client import Broken, WrongLength
from echo2.runtime.transport.relay import SHAPED_PIECE_BYTES, WORKER_HEADER
from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink

CONNECT_S = 5.0
HEAD_BYTES = 16 << 10
REFUSAL_BYTES = 4 << 20
"""Of an answer that is no chunk: a bitmap of a million chunks fits in."""
READ_BYTES = 1 << 20


class Line:
    """Dials when first used, and again after a failure. Raises Broken for whatever goes wrong."""

    def __init__(
        self,
        url: str,
        key: str,
        worker_id: str = "",
        link: ShapedLink = UNSHAPED,
        heard: Callable[[int], None] = lambda _n: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`key`: what the other end asks for, the token or the relay key. `heard` is called whenever
        something comes: with the bytes of a body, with 0 for a head. Raises UserError for a bad URL."""
        self._host, self._port, self._path = _address(url, "https" if tls else "http")
        name = f"[{self._host}]" if ":" in self._host else self._host
        self._lead = f"Host: {name}:{self._port}\r\nAuthorization: Bearer {key}\r\n"
        self._lead += f"{WORKER_HEADER}: {worker_id or '-'}\r\n"
        self._link, self._heard, self._tls = link, heard, tls
        self.refusal = b""
        self._wire: _Wire | None = None
        self.filled = 0

    def close(self) -> None:
        """Hang up. The next request dials anew."""
        if self._wire is not None:
            self._wire.hang_up()
            self._wire = None

    async def chunk(self, digest: str, into: bytearray, had: int, wait_s: float, place: int) -> int:
        """Fetch a chunk's bytes from `had` on into their place; 200, or the status of a `refusal`.

        `had` bytes at the front are there already. What has come when this is cancelled or raises stays
        good: `filled` says up to where.
        """
        lead = f"Range: bytes={had}-\r\n" if had else ""
        target = f"/v1/chunks/{digest}?wait_s={wait_s:g}&place={place}"
        self.filled = had
        wire = await self._asked(target, lead)
        try:
            status, self.refusal = await self._answer(wire, into, had)
        finally:
            self.filled = wire.at
        return 200 if status in (200, 206) else status

    @property
    def sending(self) -> bool:
        """Whether the other end is in the middle of a chunk."""
        return self._wire is not None and self._wire.in_chunk

    @property
    def held_up(self) -> bool:
        """Whether this machine's own shaped link holds back what would come."""
        return self._wire is not None and self._wire.paused

    async def get(self, target: str) -> tuple[int, bytes]:
        """Status and body of a small answer."""
        wire = await self._asked(target, "")
        return await self._answer(wire, None, 0)

    # ---- inside ------------------------------------------------------------------------------------

    async def _asked(self, target: str, lead: str) -> _Wire:
        await self._link.send(0)
        wire = self._wire
        if wire is None or wire.lost:
            wire = self._wire = await self._dialled()
        wire.write(f"GET {self._path}{target} HTTP/1.1\r\n{self._lead}{lead}\r\n".encode("latin-1"))
        return wire

    async def _dialled(self) -> _Wire:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, wire = await loop.create_connection(
                    lambda: _Wire(self._link, self._heard), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise Broken(f"no connection to {self._host}:{self._port} within {CONNECT_S:g} s") from None
        except OSError as error:
            reason = error.strerror or error
            raise Broken(f"no connection to {self._host}:{self._port}: {reason}") from None
        return wire

    async def _answer(self, wire: _Wire, into: bytearray | None, had: int) -> tuple[int, bytes]:
        try:
            return await wire.answer(into, had)
        except BaseException:
            # whatever may still come belongs to no later request
            wire.hang_up()
            raise


class _Wire(asyncio.BufferedProtocol):
    """The protocol of one connection. `at`: up to where the chunk's buffer is filled."""

    def __init__(self, link: ShapedLink, heard: Callable[[int], None]) -> None:
        self._down, self._heard = link.down, heard
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(HEAD_BYTES)
        self._held = 0  # bytes of a head in `_scratch`
        self._into: memoryview | None = None
        self._body = bytearray()
        self._left = -1  # bytes of the body still to come; -1: in the head
        self._chunk: tuple[memoryview, int] | None = None
        self._done: asyncio.Future[tuple[int, bytes]] | None = None
        self._status = 0
        self.at = 0
        self.lost = self.paused = False

    @property
    def in_chunk(self) -> bool:
        """Whether bytes of a chunk are on their way."""
        return self._into is not None and not self.lost

    # ---- the line's side ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self._transport.write(data)

    def hang_up(self) -> None:
        """Close at once."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    async def answer(self, into: bytearray | None, had: int) -> tuple[int, bytes]:
        """Status, and the body unless it goes into the chunk's buffer. Raises Broken."""
        self._done = asyncio.get_running_loop().create_future()
        self._chunk = None if into is None else (memoryview(into), had)
        self._left, self._held, self.at, self._body = -1, 0, had, bytearray()
        if self.lost:
            raise Broken("the connection was closed")
        try:
            return await self._done
        finally:
            self._chunk = self._into = None

    # ---- asyncio.BufferedProtocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._fail(f"the connection was cut ({error})" if error else "the connection was closed")

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._left < 0 or self._into is None:
            return memoryview(self._scratch)[self._held if self._left < 0 else 0 :]
        most = SHAPED_PIECE_BYTES if self._down is not None else READ_BYTES
        return self._into[self.at : self.at + min(most, self._left)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._done is None or self._done.done():
            return self._fail("bytes came that nobody had asked for")
        if self._left < 0:
            self._in_head(nbytes)
        elif self._into is None:
            self._small(bytes(self._scratch[:nbytes]))
        else:
            self._came(nbytes)
        return None

    # ---- inside ------------------------------------------------------------------------------------

    def _in_head(self, nbytes: int) -> None:
        self._held += nbytes
        end = self._scratch.find(b"\r\n\r\n", 0, self._held)
        if end < 0:
            if self._held >= HEAD_BYTES:
                self._fail("its answer has no end to its head")
            return
        self._heard(0)
        rest = bytes(self._scratch[end + 4 : self._held])
        self._held = 0
        if not self._begin(bytes(self._scratch[:end])):
            return
        if self._into is None:
            self._small(rest)
        elif len(rest) > self._left:
            self._fail("more bytes came than were announced")
        else:
            self._into[self.at : self.at + len(rest)] = rest
            self._came(len(rest))

    def _begin(self, head: bytes) -> bool:
        """Take a head in; whether a body follows that can be taken."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        fields = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:])}
        length = fields.get("content-length", "")
        if len(words) < 2 or not words[1].isdigit() or not length.isdigit() or len(length) > 15:
            self._fail(f"its answer {lines[0][:60]!r} is no answer of a relay")
            return False
        self._status, self._left = int(words[1]), int(length)
        if self._status in (200, 206) and self._chunk is not None:
            buffer, had = self._chunk
            resumed = fields.get("content-range", "").startswith(f"bytes {had}-")
            if self._left != len(buffer) - had or (had and not resumed):
                missing = len(buffer) - had
                self._fail(
                    f"it sends {self._left} bytes of a chunk of which {missing} are missing", WrongLength
                )
                return False
            self._into = buffer
        elif self._left > REFUSAL_BYTES:
            self._fail(f"it answers {self._status} with {self._left} bytes")
            return False
        return True

    def _small(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._left:
            self._fail("more bytes came than were announced")
        elif len(self._body) == self._left:
            self._finish(bytes(self._body))

    def _came(self, nbytes: int) -> None:
        self.at += nbytes
        self._left -= nbytes
        self._heard(nbytes)
        if self._down is not None and nbytes and (delay_s := self._down.delay_s(nbytes)) > 0:
            self._pause(delay_s)
        elif not self._left:
            self._finish(b"")

    def _pause(self, delay_s: float) -> None:
        assert self._transport is not None
        self.paused = True
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self.paused = False
        if self.lost or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if not self._left and self._done is not None and not self._done.done():
            self._finish(b"")

    def _finish(self, body: bytes) -> None:
        self._left = -1
        if self._done is not None and not self._done.done():
            self._done.set_result((self._status, body))

    def _fail(self, why: str, kind: type[Broken] = Broken) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(kind(why))
        if not self.lost:
            self.hang_up()


def _address(url: str, scheme: str) -> tuple[str, int, str]:
    """Host, port and path. Raises UserError for what is no such URL."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme == scheme and parts.hostname and parts.username is None and not parts.query:
            return parts.hostname, parts.port or (443 if scheme == "https" else 80), parts.path.rstrip("/")
    raise UserError(f"{url[:200]!r} is no URL of chunks; it must be like {scheme}://host:9000")
