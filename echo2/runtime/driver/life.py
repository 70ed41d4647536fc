"""One life of a live run on its event loop: its clock, its tasks and timers, facts in and decisions out.

What the parts of the live world (`workers`, `groups`, `snapshots`) share, and all they know of each other's
world. `tell` gives a fact to the scheduler, logs it with its answers and carries them out; facts that arise
meanwhile wait their turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.scheduler import Scheduler
from echo2.runtime.driver.hub import Hub
from echo2.runtime.driver.records import Records
from echo2.sim.log import RunLog


class Life:
    """`hub` is set, and `carry` has a function for each kind of decision, before the first fact.

    `over` is done at the run's end; `leaving` is set when nothing new is to begin. `progress_s` is when
    something last went forward. Times are seconds since this life of the run began.
    """

    hub: Hub

    def __init__(self, scheduler: Scheduler, records: Records, log: RunLog) -> None:
        self.scheduler, self.records = scheduler, records
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.progress_s = 0.0
        self.leaving = False
        self.carry: dict[type, Callable[[Any], None]] = {}
        self._began = time.monotonic()
        self._log = log
        self._inbox: deque[f.Fact] = deque()
        self._carrying = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        """Seconds since this life of the run began."""
        return time.monotonic() - self._began

    # ---- facts and decisions ---------------------------------------------------------------------

    def tell(self, fact: f.Fact) -> None:
        """Give a fact to the scheduler and carry out its decisions.

        Once the run is left, only a step that ends is told, for the log; nothing is begun any more.
        """
        if self.leaving and not isinstance(fact, f.StepFinished):
            return
        self._inbox.append(fact)
        if self._carrying:
            return
        self._carrying = True
        try:
            while self._inbox and not self.over.done():
                fact = self._inbox.popleft()
                answers = self.scheduler.observe(fact)
                self._write_log(fact, answers)
                for answer in () if self.leaving else answers:
                    self.carry[type(answer)](answer)
        except Exception as error:
            self.fail(error)
        finally:
            self._carrying = False

    def fail(self, error: BaseException) -> None:
        """The run cannot go on."""
        if not self.over.done():
            self.over.set_exception(error)

    def _write_log(self, fact: f.Fact, answers: list[d.Decision]) -> None:
        try:
            self._log.write(fact, answers)
        except OSError as error:
            raise UserError(
                f"the run's log cannot be written ({error.strerror}); free some space and go on with --resume"
            ) from error

    # ---- tasks and timers ------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside everything else; an error in it ends the run."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def set_timer(self, decision: d.SetTimer) -> None:
        """Tell the scheduler at the time it asks for; one timer a name."""
        if (old := self._timers.pop(decision.name, None)) is not None:
            old.cancel()
        delay = max(0.0, decision.at_s - self.now())
        loop = asyncio.get_running_loop()
        self._timers[decision.name] = loop.call_later(delay, self._timer_fired, decision.name)

    async def end_tasks(self, spared: asyncio.Task[None] | None) -> None:
        """End all timers and all tasks but `spared`; returns when the tasks have ended."""
        for timer in self._timers.values():
            timer.cancel()
        ending = [task for task in self._tasks if task is not spared]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _timer_fired(self, name: str) -> None:
        self._timers.pop(name, None)
        self.tell(f.TimerFired(self.now(), name))
