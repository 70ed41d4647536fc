"""The control plane between scheduler and engines, as the live driver has it: hops and one ledger on disk.

An order waits for the ledger to record it, then travels in the answer to the worker's next request for work.
Rollouts that end travel in uploads, one at a time from a worker; an upload is answered when the ledger has
it, and counted when its rewards are on disk too. On a shaped link answers queue behind a snapshot's bytes.
The ledger writes one transaction at a time, and neighbours of one kind together (`runtime.driver.
ledger_queue`). Called by the calibrated world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import simpy

from echo2.runtime.transport.chunk_reply import SHAPED_PIECE_BYTES
from echo2.runtime.transport.gather import STREAMS
from echo2.validate.engine_fit import ANSWER_SHARE, GATHER_S, parts_of

Done = Callable[[], None]
WRITE_SHAPE = 3.0
"""Shape of the gamma distribution of a write's seconds: a disk's syncs spread by about 60 % (ours)."""
ROLLOUT_BYTES, TOKEN_BYTES = 200, 28
UNSHAPED_BPS = 1e13
"""A link that the live run does not shape: its time is measured as a whole."""
SCATTER_S = 1e-3
"""Answers of one moment do not arrive at one moment, or workers in step by chance would stay so for ever."""


@dataclass(frozen=True)
class Delays:
    """Mean seconds of a ledger transaction, and of one way between learner and each worker."""

    write_s: float
    hop_s: dict[str, float]

    def scaled(self, factor: float) -> Delays:
        """All of them times a factor."""
        return Delays(self.write_s * factor, {name: s * factor for name, s in self.hop_s.items()})


def delays_of(round_s: dict[str, float], answer_s: float = 0.0) -> Delays:
    """The parts of each worker's whole delay: three transactions, shared by all workers, and two hops.

    `answer_s`: what an upload takes to be answered, 0 where it is not known.
    """
    least_s = min(round_s.values())
    write_s, _ = parts_of(least_s, answer_s or ANSWER_SHARE * least_s)
    return Delays(write_s, {name: (seconds - 3 * write_s) / 2 for name, seconds in round_s.items()})


class Ledger:
    """Transactions one after another; what gathers meanwhile goes into the next."""

    def __init__(self, env: simpy.Environment, write_s: float, rng: np.random.Generator) -> None:
        self._env, self._write_s, self._rng = env, write_s, rng
        self._pending: list[tuple[str, Done]] = []
        self._busy = False

    def write(self, kind: str, done: Done) -> None:
        """Put a write in the queue; `done` is called when it is on disk."""
        self._pending.append((kind, done))
        if not self._busy:
            self._busy = True
            later(self._env, 0.0, self._turn)

    def _turn(self) -> None:
        writes, self._pending = self._pending, []
        batches = [[done for _, done in batch] for _, batch in groupby(writes, key=lambda write: write[0])]
        self._next(batches)

    def _next(self, batches: list[list[Done]]) -> None:
        if not batches:
            self._busy = bool(self._pending)
            if self._busy:
                self._turn()
            return
        seconds = self._rng.gamma(WRITE_SHAPE, self._write_s / WRITE_SHAPE)
        later(self._env, seconds, self._written, batches)

    def _written(self, batches: list[list[Done]]) -> None:
        for done in batches[0]:
            done()
        self._next(batches[1:])


class LinkQueue:
    """What an answer to a worker stands behind: a shaped link serves the bytes as they come, and each of the
    streams of a snapshot's transfer has a piece in the queue, as long as there are chunks for it.
    """

    def __init__(self, env: simpy.Environment, downlink_bps: float, chance: np.random.Generator) -> None:
        self._env, self._bps, self._chance = env, downlink_bps, chance
        self._version, self._size, self._began_s = -1, 0.0, 0.0

    def begins(self, version: int, size_bytes: float) -> None:
        """The transfer of a snapshot begins; it takes the place of an older one."""
        self._version, self._size, self._began_s = version, size_bytes, self._env.now

    def ends(self, version: int) -> None:
        """All of it is there."""
        if version == self._version:
            self._version = -1

    def wait_s(self) -> float:
        """Seconds until what is in the queue now has passed."""
        if self._version < 0 or self._bps > UNSHAPED_BPS:
            return 0.0
        left = self._size - (self._env.now - self._began_s) * self._bps / 8.0
        pieces = min(float(STREAMS), max(1.0, left / SHAPED_PIECE_BYTES))
        return max(0.0, pieces - self._chance.random()) * SHAPED_PIECE_BYTES * 8.0 / self._bps


@dataclass
class Downlink:
    """A worker's orders. It asks for work, and the answer holds all orders there are: those recorded in one
    transaction begin together, but for a share of them that a busy worker comes to later. What comes while
    an answer travels waits for the next request.

    `wait_s()`: seconds that an answer sent now stands behind a snapshot on the worker's link.
    """

    env: simpy.Environment
    hop_s: float
    wait_s: Callable[[], float]
    apart: float
    chance: np.random.Generator
    _orders: list[Done] = field(default_factory=list)
    _asked: bool = True

    def put(self, order: Done) -> None:
        """An order is on disk; it is called when it has arrived."""
        self._orders.append(order)
        if self._asked:
            self._asked = False
            later(self.env, 0.0, self._answer)  # what one transaction recorded travels together

    def _answer(self) -> None:
        orders, self._orders = self._orders, []
        scatter_s = float(self.chance.exponential(SCATTER_S))
        later(self.env, self.hop_s + scatter_s + self.wait_s(), self._arrives, orders)

    def _arrives(self, orders: list[Done]) -> None:
        late_s = 0.0
        for order in orders:
            later(self.env, late_s, order)
            late_s += 2 * GATHER_S * (self.chance.random() < self.apart)
        later(self.env, self.hop_s, self._asks)

    def _asks(self) -> None:
        self._asked = not self._orders
        if self._orders:
            self._answer()


@dataclass
class Uplink:
    """A worker's uploads. `told` is called with each rollout when it counts; `byte_s` seconds a byte.

    `wait_s()`: seconds that an answer sent now stands behind a snapshot on the worker's link.
    """

    env: simpy.Environment
    ledger: Ledger
    hop_s: float
    byte_s: float
    wait_s: Callable[[], float]
    told: Callable[..., None]
    _outbox: list[tuple[Any, ...]] = field(default_factory=list)
    _sending: bool = False

    def put(self, tokens: float, *rollout: Any) -> None:
        """A rollout has ended."""
        self._outbox.append((tokens, *rollout))
        if not self._sending:
            self._sending = True
            later(self.env, GATHER_S, self._send)

    def _send(self) -> None:
        upload, self._outbox = self._outbox, []
        size = sum(ROLLOUT_BYTES + TOKEN_BYTES * rollout[0] for rollout in upload)
        later(self.env, self.hop_s + size * self.byte_s, self._arrives, upload)

    def _arrives(self, upload: list[tuple[Any, ...]]) -> None:
        self.ledger.write("finish", lambda: self._durable(upload))

    def _durable(self, upload: list[tuple[Any, ...]]) -> None:
        def judged() -> None:
            for rollout in upload:
                self.told(*rollout[1:])

        later(self.env, self.hop_s + self.wait_s(), self._answered)
        self.ledger.write("rewards", judged)

    def _answered(self) -> None:
        self._sending = bool(self._outbox)
        if self._sending:
            self._send()


def later(env: simpy.Environment, seconds: float, call: Callable[..., None], *given: Any) -> None:
    """Call a function after some simulated seconds."""
    timer = env.timeout(max(0.0, seconds))
    timer.callbacks.append(lambda _: call(*given))
