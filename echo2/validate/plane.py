"""The control plane between scheduler and engines, as the live driver has it: hops and one ledger on disk.

An order waits for the ledger to record it, then travels. Rollouts that end travel in uploads, one at a time
from a worker; an upload is answered when the ledger has it, and counted when its rewards are on disk too.
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

Done = Callable[[], None]
WRITE_SHAPE = 3.0
"""Shape of the gamma distribution of a write's seconds: a disk's syncs spread by about 60 % (ours)."""
ROLLOUT_BYTES, TOKEN_BYTES = 200, 28


@dataclass(frozen=True)
class Delays:
    """Mean seconds of a ledger transaction, and of one way between learner and each worker."""

    write_s: float
    hop_s: dict[str, float]

    def scaled(self, factor: float) -> Delays:
        """All of them times a factor."""
        return Delays(self.write_s * factor, {name: s * factor for name, s in self.hop_s.items()})


def delays_of(round_s: dict[str, float]) -> Delays:
    """The parts of each worker's whole delay: three transactions, shared by all workers, and two hops.

    The worker with the least delay is taken to have five equal parts (ours).
    """
    write_s = min(round_s.values()) / 5
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


@dataclass
class Uplink:
    """A worker's uploads. `told` is called with each rollout when it counts; `byte_s` seconds a byte."""

    env: simpy.Environment
    ledger: Ledger
    hop_s: float
    byte_s: float
    told: Callable[..., None]
    _outbox: list[tuple[Any, ...]] = field(default_factory=list)
    _sending: bool = False

    def put(self, tokens: float, *rollout: Any) -> None:
        """A rollout has ended."""
        self._outbox.append((tokens, *rollout))
        if not self._sending:
            self._sending = True
            later(self.env, 0.0, self._send)  # what ends at the same moment travels together

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

        later(self.env, self.hop_s / 2, self._answered)
        self.ledger.write("rewards", judged)

    def _answered(self) -> None:
        self._sending = bool(self._outbox)
        if self._sending:
            self._send()


def later(env: simpy.Environment, seconds: float, call: Callable[..., None], *given: Any) -> None:
    """Call a function after some simulated seconds."""
    timer = env.timeout(max(0.0, seconds))
    timer.callbacks.append(lambda _: call(*given))
