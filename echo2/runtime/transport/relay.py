"""A worker's chunk server: other workers ask it for chunks it has verified, or is about to have.

    GET /v1/chunks/{digest}?wait_s=&place=   the bytes, as soon as they are here (Range resumes)
    GET /v1/have/{version}                   which chunks of a payload are here
    GET /healthz

It speaks just enough HTTP/1.1 for that, because a plain socket that the kernel fills from the file moves
several times the bytes of an application server. Everything but /healthz needs the run's relay key, which
is made of the run's token. `place`, the chunk's place in the payload, is the order in which a busy uplink
serves. It never writes, and trusts nothing that it is asked. Run beside the agent, in its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import re
from dataclasses import dataclass, field

from echo2.errors import UserError
from echo2.runtime.transport.messages import MAX_WAIT_S, Problem
from echo2.runtime.transport.shaping import Shaper
from echo2.runtime.transport.shelf import ChunkShelf, Place
from echo2.runtime.transport.uplink import UplinkMeter

log = logging.getLogger("echo2.relay")

WORKER_HEADER = "echo2-worker"
"""Who asks; only for the measurement of the uplink."""
HEAD_BYTES = 8 << 10
HEAD_S = 10.0
IDLE_S = 60.0
"""How long a connection may be without a request."""
STALL_S = 30.0
"""How long a receiver may take nothing in the middle of a chunk."""
CONNECTIONS = 512
PIECE_BYTES = 4 << 20
SHAPED_PIECE_BYTES = 64 << 10
READ_BYTES = 1 << 20

_CHUNK = re.compile(r"/v1/chunks/([0-9a-f]{64})(?:\?([^#]*))?")
_HAVE = re.compile(r"/v1/have/(\d{1,9})")
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_REASONS = {200: "OK", 206: "Partial Content", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
            405: "Method Not Allowed", 416: "Range Not Satisfiable", 503: "Service Unavailable"}  # fmt: skip


def relay_key(token: str) -> str:
    """What a relay asks for. Made of the token, so that the token itself never travels between workers."""
    return hmac.new(token.encode(), b"echo2 relay", hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Request:
    """A request without a body."""

    method: str
    target: str
    headers: dict[str, str]


class BadRequest(Exception):  # noqa: N818 - an answer, not a failure
    """What was asked cannot be answered; the text says why."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass(slots=True)
class Relay:
    """One listening server. `start`, then `stop`. `caps`: the shapers that everything sent passes through."""

    shelf: ChunkShelf
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    caps: tuple[Shaper, ...] = ()
    connections: int = CONNECTIONS
    meter: UplinkMeter = field(default_factory=UplinkMeter)
    sent_bytes: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _key: bytes = b""

    async def start(self) -> None:
        """Listen. Raises UserError for a port or host that cannot be listened on."""
        self._key = f"Bearer {relay_key(self.token)}".encode()
        try:
            self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=HEAD_BYTES)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"--relay-port {self.port} on {self.host} cannot be listened on ({reason}); choose another, "
                "0 for any free one, or give --no-relay"
            ) from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything. May be repeated."""
        if self._server is not None:
            self._server.close()
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            self._server = None

    @property
    def connections_open(self) -> int:
        """Connections there are now."""
        return len(self._open)

    # ---- connections -------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) > self.connections:
                await _refuse(
                    writer, BadRequest(503, "too-many", f"{self.connections} connections are open already")
                )
            else:
                await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the other end is gone, silent or no HTTP client
        except asyncio.CancelledError:
            pass  # `stop`: nobody waits for this task but asyncio's own callback, which would log it
        except Exception:
            log.exception("a relay connection failed")
        finally:
            self._open.discard(task)
            with contextlib.suppress(OSError, RuntimeError):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                head = await reader.readuntil(b"\r\n\r\n")
            try:
                await self._answer(_parsed(head), writer)
            except BadRequest as refusal:
                await _refuse(writer, refusal)
                if refusal.status in (400, 401, 405):
                    return

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.method != "GET" or "transfer-encoding" in request.headers:
            raise BadRequest(405, "no-such-route", f"{request.method[:20]}: a relay only answers GET")
        if request.headers.get("content-length", "0") != "0":
            raise BadRequest(400, "malformed", "a request to a relay has no body")
        if request.target == "/healthz":
            return await _reply(writer, 200, b"{}")
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._key):
            raise BadRequest(401, "wrong-token", "the token is missing or wrong; give the one of this run")
        if match := _CHUNK.fullmatch(request.target):
            return await self._chunk(match[1], _query(match[2] or ""), request.headers, writer)
        if match := _HAVE.fullmatch(request.target):
            if (holdings := self.shelf.holdings(int(match[1]))) is None:
                raise BadRequest(404, "no-snapshot", f"version {match[1]} was never expected here")
            return await _reply(writer, 200, holdings.model_dump_json().encode())
        raise BadRequest(404, "no-such-route", f"{request.target[:200]}: no such route")

    # ---- chunks ------------------------------------------------------------------------------------

    async def _chunk(
        self, digest: str, query: dict[str, float], headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        place = self.shelf.where(digest)
        if place is None and (wait_s := query.get("wait_s", 0.0)) > 0:
            place = await self.shelf.arrived(digest, min(wait_s, MAX_WAIT_S))
        opened = None if place is None else _opened(self.shelf, digest, place)
        if opened is None:
            raise BadRequest(404, "not-yet", f"chunk {digest} is not here yet")
        descriptor, place = opened
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            wanted = headers.get("range")
            start, end = _range(wanted, place.size)
            head = {"Content-Length": end - start, "Accept-Ranges": "bytes"}
            if wanted:
                head |= {"Content-Range": f"bytes {start}-{end - 1}/{place.size}"}
            writer.write(_head(206 if wanted else 200, "application/octet-stream", head))
            with self.meter.sending(headers.get(WORKER_HEADER, str(writer.get_extra_info("peername")))):
                if self.caps:
                    await self._shaped(writer, file.fileno(), place.offset + start, end - start, query)
                else:
                    await self._unshaped(writer, file, place.offset + start, end - start)

    async def _unshaped(self, writer: asyncio.StreamWriter, file: object, offset: int, left: int) -> None:
        loop = asyncio.get_running_loop()
        while left > 0:
            async with asyncio.timeout(STALL_S):
                sent = await loop.sendfile(writer.transport, file, offset, min(left, PIECE_BYTES))  # type: ignore[arg-type]
            if not sent:
                raise OSError("the file is shorter than it was")
            self._moved(sent)
            offset, left = offset + sent, left - sent

    async def _shaped(
        self, writer: asyncio.StreamWriter, descriptor: int, offset: int, left: int, query: dict[str, float]
    ) -> None:
        order = query.get("place", 0.0)
        while left > 0:
            # in a thread: a disk may be slow, and the worker's own talk shares this event loop
            data = await asyncio.to_thread(os.pread, descriptor, min(left, READ_BYTES), offset)
            if not data:
                raise OSError("the file is shorter than it was")
            for at in range(0, len(data), SHAPED_PIECE_BYTES):
                piece = data[at : at + SHAPED_PIECE_BYTES]
                for cap in self.caps:
                    await cap.take(len(piece), order)
                writer.write(await self._moved_piece(piece))
                async with asyncio.timeout(STALL_S):
                    await writer.drain()
                self._moved(len(piece))
            offset, left = offset + len(data), left - len(data)

    async def _moved_piece(self, piece: bytes) -> bytes:
        """What is sent for a piece: itself. Benchmarks of bad relays send something else."""
        return piece

    def _moved(self, n_bytes: int) -> None:
        self.sent_bytes += n_bytes
        self.meter.sent(n_bytes)


def _opened(shelf: ChunkShelf, digest: str, place: Place | None) -> tuple[int, Place] | None:
    """A descriptor of the chunk's file: it stays good when the directory is renamed or removed later."""
    for _ in range(3):
        if place is None:
            return None
        with contextlib.suppress(OSError):
            return os.open(place.path, os.O_RDONLY), place
        place = shelf.where(digest)  # renamed between the look and the opening
    return None


# ---- HTTP ------------------------------------------------------------------------------------------------


def _parsed(head: bytes) -> Request:
    lines = head[:-4].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "malformed", f"{lines[0][:100]!r} is no HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(400, "malformed", f"{line[:100]!r} is no header")
        headers[name.strip().lower()] = value.strip()
    return Request(words[0], words[1], headers)


def _query(text: str) -> dict[str, float]:
    """Numbers by name; what is none is left out."""
    found: dict[str, float] = {}
    for part in text.split("&"):
        name, _, value = part.partition("=")
        with contextlib.suppress(ValueError):
            number = float(value)
            if 0 <= number < 1e12:
                found[name] = number
    return found


def _range(wanted: str | None, size: int) -> tuple[int, int]:
    if wanted is None:
        return 0, size
    match = _RANGE.fullmatch(wanted)
    start = int(match[1]) if match else size
    end = min(size, int(match[2]) + 1) if match and match[2] else size
    if not start < end:
        raise BadRequest(416, "bad-range", f"Range is {wanted[:60]!r}; the chunk has {size} bytes")
    return start, end


def _head(status: int, kind: str, headers: dict[str, object]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {kind}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _reply(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(_head(status, "application/json", {"Content-Length": len(body)}) + body)
    async with asyncio.timeout(STALL_S):
        await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, refusal: BadRequest) -> None:
    body = Problem(error=refusal.code, detail=str(refusal)[:2000]).model_dump_json()
    await _reply(writer, refusal.status, body.encode())
