"""What one client may ask of the server: sizes, counts and times, and the checks that need no message.

Used by the server before anything is parsed. Everything a client sends is bounded here or in `messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from echo2.runtime.transport.coordinator import Refusal


@dataclass(frozen=True)
class Limits:
    """Bytes a body may have by route, and how much at once.

    `requests` and `connections`: at one time. `leases`: worker processes heard of within their lease time.
    `header_s`: from the first byte of a request to the end of its headers, also for a connection that says
    nothing; `body_s` for the body after them. `rollouts_bytes` holds one rollout of the longest allowed.
    """

    hello_bytes: int = 16 << 10
    work_bytes: int = 4 << 10
    rollouts_bytes: int = 32 << 20
    reports_bytes: int = 512 << 10
    leave_bytes: int = 16 << 10
    header_bytes: int = 32 << 10
    header_s: float = 10.0
    body_s: float = 120.0
    requests: int = 4096
    connections: int = 8192
    leases: int = 4096


DRAIN_S = 2.0
DEFAULT_LIMITS = Limits()


async def read_body(stream: AsyncIterator[bytes], length: str | None, limit: int, within_s: float) -> bytes:
    """The whole body, never more than `limit` bytes of it in memory. Raises Refusal 413, 400 or 408.

    `length` is the Content-Length header, which may be absent (chunked) or a lie: what counts is counted.
    """
    if length is not None and not (length.isascii() and length.isdigit()):
        raise Refusal(400, "bad-length", f"Content-Length is {length[:40]!r}; it must be a whole number")
    if length is not None and int(length[:20]) > limit:
        raise _too_large(length[:20], limit)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within_s):
            async for piece in stream:
                size += len(piece)
                if size > limit:
                    raise _too_large(f"more than {limit}", limit)
                pieces.append(piece)
    except TimeoutError:
        raise Refusal(
            408, "slow-body", f"the body did not arrive within {within_s:g} s; send smaller ones"
        ) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def drain(stream: AsyncIterator[bytes], most: int) -> None:
    """Read on and throw away, within reason: a sender that is cut off would never see why it was refused."""
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(DRAIN_S):
            async for piece in stream:
                if (most := most - len(piece)) < 0:
                    return


def _too_large(size: str, limit: int) -> Refusal:
    return Refusal(
        413, "too-large", f"the body has {size} bytes, at most {limit} are taken; send less at once"
    )


@dataclass
class Crowd:
    """How many requests are inside now."""

    most: int
    inside: int = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """A place for the length of the context. Raises Refusal 503 when all are taken."""
        if self.inside >= self.most:
            raise Refusal(503, "busy", f"{self.most} requests are being answered already; try again")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


@dataclass
class LeaseCount:
    """Worker processes heard of within their lease time, so that hellos cannot pile up without bound.

    The leases themselves are the coordinator's; this only counts.
    """

    most: int
    _session: dict[str, str] = field(default_factory=dict)
    _lives: dict[str, tuple[float, float]] = field(default_factory=dict)

    def admit(self, session: str) -> None:
        """Refuse (503) a new session when too many live; one already counted may always say hello again."""
        if session in self._session or len(self._session) < self.most:
            return
        now = time.monotonic()
        self._lives = {lease: life for lease, life in self._lives.items() if life[0] > now}
        self._session = {name: lease for name, lease in self._session.items() if lease in self._lives}
        if len(self._session) >= self.most:
            raise Refusal(503, "too-many-workers", f"{self.most} worker processes hold a lease; try later")

    def hold(self, session: str, lease: str, lease_s: float) -> None:
        """Count a session whose lease has just been given or given again."""
        self._session[session] = lease
        self._lives[lease] = (time.monotonic() + lease_s, lease_s)

    def renew(self, lease: str) -> None:
        """The holder of a lease has been heard of."""
        if lease in self._lives:
            lease_s = self._lives[lease][1]
            self._lives[lease] = (time.monotonic() + lease_s, lease_s)

    def end(self, lease: str) -> None:
        """The holder of a lease has left."""
        if lease in self._lives:
            self._lives[lease] = (0.0, 0.0)
