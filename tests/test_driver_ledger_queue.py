"""The ledger's write queue: order, merging, and whose an error is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from driver_kit import rollout, ticket

from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.states import LedgerError, Outcome, State
from echo2.runtime.driver.ledger_queue import LedgerQueue


class Counting(Ledger):
    """A ledger that notes its transactions, and can have a full disk."""

    full = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, "run-1")
        self.calls: list[tuple[str, int]] = []

    def dispatch(self, tickets: Any) -> None:
        self.calls.append(("dispatch", len(tickets)))
        if self.full:
            raise LedgerError("the disk is full")
        super().dispatch(tickets)

    def finish(self, rollouts: Any) -> list[Outcome]:
        self.calls.append(("finish", len(rollouts)))
        return super().finish(rollouts)


def told(path: Path, story: Callable[[LedgerQueue, Counting], Awaitable[None]]) -> Counting:
    """Run a story on a new queue, to its end."""
    ledger = Counting(path / "ledger.sqlite")

    async def run() -> None:
        queue = LedgerQueue(ledger)
        try:
            await story(queue, ledger)
        finally:
            await queue.settled()
            queue.close()

    asyncio.run(run())
    return ledger


def test_neighbours_share_a_transaction_and_order_is_kept(tmp_path: Path) -> None:
    """What is asked for together is written together, but never before what was asked for earlier."""

    async def story(queue: LedgerQueue, ledger: Counting) -> None:
        first = [queue.dispatch([ticket(group)]) for group in range(3)]
        done = queue.finish([rollout(0), rollout(0)])
        given_up = queue.give_up(0, True, "test")
        late = queue.dispatch([ticket(3)])
        assert queue.waiting == 6
        await asyncio.gather(*first, late)
        assert await done == [Outcome.ACCEPTED, Outcome.DUPLICATE] and await given_up == 1
        assert queue.waiting == 0
        assert [entry.state for entry in ledger.entries(group_id=0)] == [State.REQUEUED]

    ledger = told(tmp_path, story)
    assert ledger.calls == [("dispatch", 3), ("finish", 2), ("dispatch", 1)]


def test_each_caller_gets_its_own_results(tmp_path: Path) -> None:
    """Uploads written in one transaction are answered apart, each in its own order."""

    async def story(queue: LedgerQueue, ledger: Counting) -> None:
        queue.dispatch([ticket(0, 0), ticket(0, 1), ticket(1, 0)])
        one, two = queue.finish([rollout(0, 1), rollout(9)]), queue.finish([rollout(1)])
        assert await one == [Outcome.ACCEPTED, Outcome.UNKNOWN] and await two == [Outcome.ACCEPTED]

    told(tmp_path, story)


def test_an_error_reaches_its_caller_only(tmp_path: Path) -> None:
    """A bad write among good ones fails alone, though they were tried in one transaction."""

    async def story(queue: LedgerQueue, ledger: Counting) -> None:
        await queue.dispatch([ticket(0), ticket(1)])
        await queue.finish([rollout(0), rollout(1)])
        good, bad = queue.set_rewards({"0:0": 1.0}), queue.set_rewards({"1:0": math.nan})
        assert await good == 1
        with pytest.raises(LedgerError, match="'1:0'"):
            await bad
        assert await queue.set_rewards({"1:0": 0.0}) == 1

    told(tmp_path, story)


def test_a_full_disk_is_told_and_the_queue_goes_on(tmp_path: Path) -> None:
    """Every write that the disk refuses raises LedgerError; what comes after space was freed is written."""

    async def story(queue: LedgerQueue, ledger: Counting) -> None:
        ledger.full = True
        found = await asyncio.gather(
            *(queue.dispatch([ticket(group)]) for group in range(2)), return_exceptions=True
        )
        assert [type(error) for error in found] == [LedgerError, LedgerError]
        ledger.full = False
        await queue.dispatch([ticket(0)])
        assert await queue.finish([rollout(0)]) == [Outcome.ACCEPTED]

    told(tmp_path, story)


def test_after_the_end_a_write_fails_instead_of_waiting(tmp_path: Path) -> None:
    """A write asked for after close raises; it neither hangs nor opens the ledger again."""

    async def story() -> None:
        queue = LedgerQueue(Ledger(tmp_path / "ledger.sqlite"))
        queue.close()
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(queue.dispatch([ticket(0)]), 5.0)

    asyncio.run(story())


def test_a_caller_that_gives_up_stops_nobody(tmp_path: Path) -> None:
    """A cancelled wait leaves the write, and those after it, as they would have been."""

    async def story(queue: LedgerQueue, ledger: Counting) -> None:
        queue.dispatch([ticket(0)]).cancel()
        assert await queue.finish([rollout(0)]) == [Outcome.ACCEPTED]

    told(tmp_path, story)
