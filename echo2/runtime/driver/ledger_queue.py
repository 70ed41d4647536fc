"""The ledger's write queue: operations in the order they were asked for, neighbours in one transaction.

Called by the live driver from its event loop. A sync to disk costs milliseconds and rollouts come by the
hundreds a second, so whatever has gathered while one transaction was written goes into the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.data.states import Outcome, Ticket


@dataclass(slots=True)
class _Write:
    kind: str
    payload: Any
    done: asyncio.Future[Any]


class LedgerQueue:
    """Writes to one ledger from one event loop. `waiting` is how many are not yet on disk."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._pending: list[_Write] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="echo2-ledger")
        self._writer: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Writes that are not on disk yet."""
        return len(self._pending)

    def dispatch(self, tickets: Sequence[Ticket]) -> asyncio.Future[None]:
        """Record rollouts; done when their worker may be told."""
        return self._add("dispatch", list(tickets))

    def finish(self, rollouts: Sequence[Rollout]) -> asyncio.Future[list[Outcome]]:
        """Accept rollouts; done when they are durable."""
        return self._add("finish", list(rollouts))

    def set_rewards(self, rewards: dict[str, float]) -> asyncio.Future[int]:
        """Set rewards."""
        return self._add("rewards", rewards)

    def give_up(self, group_id: int, again: bool, cause: str) -> asyncio.Future[int]:
        """A group will not be trained."""
        return self._add("give_up", (group_id, again, cause))

    async def settled(self) -> None:
        """Wait until everything asked for so far is written."""
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])

    def close(self) -> None:
        """Wait for the write under way and close the ledger."""
        self._thread.shutdown(wait=True)
        self.ledger.close()

    def _add(self, kind: str, payload: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._pending.append(_Write(kind, payload, done))
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._write())
        return done

    async def _write(self) -> None:
        # One turn of the loop lets what arrives together be written together.
        await asyncio.sleep(0)
        while self._pending:
            writes, self._pending = self._pending, []
            for kind, members in groupby(writes, key=lambda write: write.kind):
                batch = list(members)
                if not await self._attempt(kind, batch) and len(batch) > 1:
                    # Each on its own: an error is its caller's alone. What was undone together is repeatable.
                    for write in batch:
                        await self._attempt(kind, [write])

    async def _attempt(self, kind: str, batch: list[_Write]) -> bool:
        """One transaction. An error is told to the caller of a single write; of several, to nobody yet."""
        try:
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(self._thread, self._apply, kind, batch)
        except Exception as error:
            if len(batch) == 1 and not batch[0].done.done():
                batch[0].done.set_exception(error)
            return False
        for write, result in zip(batch, results):
            if not write.done.done():
                write.done.set_result(result)
        return True

    def _apply(self, kind: str, batch: list[_Write]) -> list[Any]:
        apply: dict[str, Callable[[list[Any]], list[Any]]] = {
            "dispatch": self._dispatch,
            "finish": self._finish,
            "rewards": self._rewards,
            "give_up": self._give_up,
        }
        return apply[kind]([write.payload for write in batch])

    def _dispatch(self, payloads: list[list[Ticket]]) -> list[None]:
        self.ledger.dispatch([ticket for tickets in payloads for ticket in tickets])
        return [None] * len(payloads)

    def _finish(self, payloads: list[list[Rollout]]) -> list[list[Outcome]]:
        outcomes = iter(self.ledger.finish([rollout for rollouts in payloads for rollout in rollouts]))
        return [[next(outcomes) for _ in rollouts] for rollouts in payloads]

    def _rewards(self, payloads: list[dict[str, float]]) -> list[int]:
        self.ledger.set_rewards({name: value for rewards in payloads for name, value in rewards.items()})
        return [len(rewards) for rewards in payloads]

    def _give_up(self, payloads: list[tuple[int, bool, str]]) -> list[int]:
        return [self.ledger.give_up(*payload) for payload in payloads]
