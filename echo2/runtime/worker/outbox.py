"""Finished rollouts on their way to the learner. Filled by the running groups, emptied by the upload loop.

Nothing leaves it before the learner has given a verdict. It is bounded by bytes: when it is full, `put` and
`room` wait, so that generation pauses instead of rollouts being dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice

from echo2.runtime.transport.messages import MAX_ROLLOUTS, Upload, Verdict, WireRollout

LIMIT_BYTES = 256 << 20
BATCH_BYTES = 2 << 20
TOKEN_BYTES = 28
"""JSON bytes of one token: an id of up to 6 digits, a float64 log-prob of up to 20, two commas."""
ROLLOUT_BYTES = 200

Key = tuple[int, int, int]
"""Incarnation, group, index."""


@dataclass(frozen=True, slots=True)
class _Held:
    rollout: WireRollout
    size: int


class Outbox:
    """Rollouts without a verdict, oldest first. Of one event loop."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES, batch_bytes: int = BATCH_BYTES) -> None:
        self._limit, self._batch_bytes = limit_bytes, batch_bytes
        self._held: dict[Key, _Held] = {}
        self._bytes = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._roomy = asyncio.Event()
        self._roomy.set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """What it holds, as JSON, estimated."""
        return self._bytes

    async def room(self) -> None:
        """Wait until it is not full."""
        await self._roomy.wait()

    async def emptied(self) -> None:
        """Wait until every rollout has its verdict."""
        await self._emptied.wait()

    async def put(self, incarnation: int, rollout: WireRollout) -> None:
        """Add a rollout, when there is room. One larger than the whole outbox goes in alone."""
        size = size_of(rollout)
        while self._held and self._bytes + size > self._limit:
            self._roomy.clear()
            await self._roomy.wait()
        self._held[incarnation, rollout.group_id, rollout.index] = _Held(rollout, size)
        self._bytes += size
        self._signal()

    async def batch(self, most: int = MAX_ROLLOUTS) -> Upload:
        """The oldest rollouts of one incarnation, at least one; they stay here until `settle`."""
        while not self._held:
            await self._filled.wait()
        (incarnation, _, _), first = next(iter(self._held.items()))
        chosen, size = [first.rollout], first.size
        for (owner, _, _), held in islice(self._held.items(), 1, most):
            size += held.size
            if owner != incarnation or size > self._batch_bytes:
                break
            chosen.append(held.rollout)
        return Upload(incarnation=incarnation, rollouts=tuple(chosen))

    def settle(self, incarnation: int, verdicts: tuple[Verdict, ...]) -> None:
        """Forget the rollouts these verdicts are about."""
        for verdict in verdicts:
            self._drop((incarnation, verdict.group_id, verdict.index))

    def forget_group(self, group_id: int) -> None:
        """Drop what is left of a group that the learner no longer wants."""
        for key in [key for key in self._held if key[1] == group_id]:
            self._drop(key)

    def clear(self) -> int:
        """Drop everything; returns how many rollouts."""
        count = len(self._held)
        for key in list(self._held):
            self._drop(key)
        return count

    def _drop(self, key: Key) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= held.size
            self._signal()

    def _signal(self) -> None:
        for event, on in (
            (self._filled, bool(self._held)),
            (self._emptied, not self._held),
            (self._roomy, self._bytes < self._limit),
        ):
            event.set() if on else event.clear()


def size_of(rollout: WireRollout) -> int:
    """JSON bytes of a rollout, estimated from above."""
    return ROLLOUT_BYTES + TOKEN_BYTES * len(rollout.token_ids)
