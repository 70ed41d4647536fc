"""A source of a payload's chunks as the gatherer sees it: what it owes, its streams, how it keeps up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.pace import Pace, PaceLimits

Cause = Literal["gone", "slow", "wrong-bytes"]
OK, NOT_YET = 200, 404


class Port(Protocol):
    """One stream to a source. `filled`: how far the buffer of the last chunk was filled when it ended.

    `sending`: the source is in the middle of a chunk; `held_up`: this machine's own link is what is slow.
    """

    @property
    def filled(self) -> int: ...
    @property
    def sending(self) -> bool: ...
    @property
    def held_up(self) -> bool: ...
    async def chunk(self, digest: str, into: bytearray, had: int, wait_s: float, place: int) -> int: ...
    def close(self) -> None: ...


class Lane:
    """One source. `queue`: the chunks it owes, next one first; `dead`: why it is asked no more."""

    def __init__(self, source: m.Source, limits: PaceLimits) -> None:
        self.source, self.queue = source, list[int]()
        self.limits = limits
        self.streams: list[asyncio.Task[None]] = []
        self.ports: list[Port] = []
        self.pace = Pace(0.0, 0, limits, time.monotonic)
        self.changed = asyncio.Event()
        self.dead: Cause | None = None
        self.out = 0
        self.bytes = 0

    @property
    def is_learner(self) -> bool:
        """Whether it is the last resort."""
        return self.source.worker_id == m.LEARNER

    @property
    def held_up(self) -> bool:
        """Whether this machine's own link holds back what it sends."""
        return any(port.held_up for port in self.ports)

    def owe(self, queue: Sequence[int], expected_bps: float, chunk_bytes: int) -> None:
        """From now on it owes these chunks, in this order."""
        self.queue = list(queue)
        self.pace = Pace(expected_bps, chunk_bytes, self.limits, time.monotonic)
        self.changed.set()

    def heard(self, n_bytes: int) -> None:
        """Something came from it."""
        self.bytes += n_bytes
        self.pace.heard(n_bytes)

    @property
    def sending(self) -> bool:
        """Whether it is in the middle of a chunk."""
        return any(port.sending for port in self.ports)

    def close(self) -> None:
        """End its streams."""
        for task in self.streams:
            task.cancel()
        for port in self.ports:
            port.close()


@dataclass(slots=True)
class Flight:
    """A chunk that is being fetched."""

    lane: Lane
    port: Port
    task: asyncio.Task[None]


def laggards(lanes: Sequence[Lane], poll_s: float) -> list[tuple[Lane, str]]:
    """Those that are too slow, and why. Never the learner: there is nobody behind it. To be called often."""
    for lane in lanes:
        lane.pace.tick(lane.out > 0, lane.sending, lane.held_up)
    shares = {id(lane): share for lane in lanes if (share := lane.pace.share) is not None}
    found = []
    for lane in lanes:
        others = [share for key, share in shares.items() if key != id(lane)]
        detail = lane.pace.verdict(lane.sending, poll_s, others)
        if detail and not lane.is_learner:
            found.append((lane, detail))
    return found
