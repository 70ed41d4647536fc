"""One worker as a process: signals, the parent, the way out. Called by `echo2 worker`.

Whatever happens, the process is gone within 10 seconds of being told to end, and nothing it has started
outlives it: a thread sees to that even when the event loop hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from threading import Thread, Timer
from typing import Any

from echo2.runtime.worker.agent import Agent
from echo2.runtime.worker.build import WorkerSettings, opened
from echo2.runtime.worker.family import Parent, descendants, end_at_once

log = logging.getLogger("echo2.worker")

END_S = 7.0
"""Seconds for an end in order; then it is cut short, which may take `family.KILLED_S` more."""
FINISHED, ORPHANED = 0, 143
WATCH_S = 1.0


class Ending:
    """How a process ends: the first reason counts, and starts the clock."""

    def __init__(self, agent: Agent, loop: asyncio.AbstractEventLoop) -> None:
        self._agent, self._loop = agent, loop
        self.code: int | None = None
        self._family: list[Any] = []

    def signalled(self, number: int) -> None:
        """SIGINT or SIGTERM: end in order; at once when it comes again."""
        if self.code is not None:
            end_at_once(self.code, self._family)
        self._begin(128 + number)
        self._agent.end(f"signal {signal.Signals(number).name}")

    def orphaned(self) -> None:
        """The parent is gone, and the learner with it: there is nobody to send anything to."""
        if self.code is None:
            self._begin(ORPHANED)
            self._loop.call_soon_threadsafe(self._agent.end, "the parent process is gone", 0.0)

    def _begin(self, code: int) -> None:
        self.code = code
        self._family = descendants()
        timer = Timer(END_S, end_at_once, (code, self._family))
        timer.daemon = True
        timer.start()


def work(settings: WorkerSettings, parent_pid: int = 0) -> int:
    """Run a worker to its end and return the exit code. Raises UserError and LearnerGoneError."""
    return asyncio.run(_work(settings, parent_pid))


async def _work(settings: WorkerSettings, parent_pid: int) -> int:
    loop = asyncio.get_running_loop()
    async with opened(settings) as agent:
        ending = Ending(agent, loop)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ending.signalled, number)
        if parent_pid:
            Thread(target=_watch, args=(Parent(parent_pid), ending), daemon=True, name="echo2-parent").start()
        await agent.run()
    return FINISHED if ending.code is None else ending.code


def _watch(parent: Parent, ending: Ending) -> None:
    while not parent.gone:
        time.sleep(WATCH_S)
    ending.orphaned()


def log_to_stderr(verbose: bool) -> None:
    """Short lines with the time, one for each notable event; with `verbose` whatever arrives."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("echo2")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False


def new_session() -> str:
    """The name of this process, never used before."""
    return os.urandom(16).hex()
