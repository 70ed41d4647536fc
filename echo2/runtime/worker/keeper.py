"""Keeps the one engine of a worker: starts and stops it, each within a deadline.

Called by the agent. An engine whose start was given up is stopped as soon as its start has returned, and
the next start waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass

from echo2.runtime.rollout.engine import Engine, EngineError, SwapMode
from echo2.runtime.worker.engines import EngineMaker, EngineOrder
from echo2.runtime.worker.family import kill_descendants

log = logging.getLogger("echo2.worker")

START_S = 600.0
STOP_S = 20.0


@dataclass(slots=True)
class Held:
    """A running engine: what it was started with, and `weights`, the identity of what it generates with.

    `swap` is the mode of the next update. A `dead` one only waits to be stopped.
    """

    engine: Engine
    order: EngineOrder
    run_id: str
    weights: str
    swap: SwapMode
    dead: bool = False

    def fits(self, run_id: str, slots: int, context_tokens: int) -> bool:
        """Whether it can go on under a new `Start`."""
        mine = (self.run_id, self.order.slots, self.order.context_tokens)
        return not self.dead and mine == (run_id, slots, context_tokens)


class Keeper:
    """At most one engine. `held` is None in standby."""

    def __init__(self, make: EngineMaker, start_s: float = START_S, stop_s: float = STOP_S) -> None:
        self._make, self._start_s, self._stop_s = make, start_s, stop_s
        self._leftovers: set[asyncio.Task[None]] = set()
        self.held: Held | None = None

    async def start(self, order: EngineOrder, run_id: str, weights: str) -> Held:
        """Start an engine; cancelling gives it up. Raises UserError, EngineError (also when overdue)."""
        await self.settle()
        engine = await asyncio.to_thread(self._make, order)
        starting = asyncio.create_task(engine.start(), name="echo2-engine-start")
        try:
            await asyncio.wait_for(asyncio.shield(starting), self._start_s)
        except TimeoutError:
            kill_descendants()  # a start that waits for them for ever comes to an end
            self._give_up(engine, starting)
            raise EngineError(f"the engine did not start within {self._start_s:g} s") from None
        except BaseException:
            self._give_up(engine, starting)
            raise
        self.held = Held(engine, order, run_id, weights, order.swap)
        return self.held

    async def stop(self) -> None:
        """Stop the engine, if one runs; what has not ended after `stop_s` is killed."""
        held, self.held = self.held, None
        if held is not None:
            # Shielded: half a stop would leave processes behind.
            await asyncio.shield(self._leave_to(self._end(held.engine)))

    async def settle(self) -> None:
        """Wait until engines given up in mid-start or mid-stop are gone too."""
        if self._leftovers:
            await asyncio.wait(self._leftovers, timeout=self._stop_s)

    async def _end(self, engine: Engine) -> None:
        try:
            async with asyncio.timeout(self._stop_s):
                await engine.stop()
        except TimeoutError:
            log.warning("the engine did not stop within %g s: killing its processes", self._stop_s)
            kill_descendants()
        except Exception as error:
            log.warning("the engine failed while stopping (%s): killing its processes", error)
            kill_descendants()

    def _give_up(self, engine: Engine, starting: asyncio.Task[None]) -> None:
        async def end() -> None:
            await asyncio.wait({starting})
            if not starting.cancelled():
                starting.exception()  # seen, so that asyncio does not complain
            await self._end(engine)

        self._leave_to(end())

    def _leave_to(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="echo2-engine-end")
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)
        return task
