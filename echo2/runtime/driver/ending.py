"""How a live run ends: at Ctrl-C or by itself, within 10 s, with a checkpoint and without orphans.

Called by `run`. A second Ctrl-C ends everything at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, Self

from echo2.errors import UserError
from echo2.runtime.driver.processes import STOP_S
from echo2.runtime.driver.world import LiveWorld
from echo2.runtime.transport.server import Server

STEP_S = 5.0
"""How long an end waits for the step that runs, so that its work is kept."""
ALONE_S = 7.5
"""How long workers are waited for before the server stops beside them: it gives downloads 2 s."""
THREADS_S = 0.3
INTERRUPTED = 130


class Interrupt:
    """`came` is done at the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once."""

    def __init__(self, world: LiveWorld) -> None:
        self._world, self._loop = world, asyncio.get_running_loop()
        self.came: asyncio.Future[None] = self._loop.create_future()
        # nohup has it ignored: then it stays so
        hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        self._numbers = [signal.SIGINT, signal.SIGTERM, *hang_up]

    def __enter__(self) -> Self:
        for number in self._numbers:
            self._loop.add_signal_handler(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            self._loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if not self.came.done():
            self.came.set_result(None)
            return
        self._world.workers.processes.kill_all()
        self._world.desk.close()
        end_at_once(INTERRUPTED, "interrupted again: leaving at once, the last checkpoint stands")


async def leave(world: LiveWorld, server: Server, reason: str, say: Callable[[str], None]) -> None:
    """Tell everyone, let the running step end, write a checkpoint, close everything."""
    began = time.monotonic()
    world.hub.close(reason)
    await world.stop()
    stopping = asyncio.create_task(world.workers.processes.stop_all(STOP_S - (time.monotonic() - began)))
    if world.stepping is not None and world.step_running():
        await asyncio.wait([world.stepping], timeout=STEP_S)
    if (
        world.over.done()
        and isinstance(error := world.over.exception(), Exception)
        and str(error) not in reason
    ):
        say(f"the last step failed: {error}")
    await _checkpoint(world, say)
    await asyncio.wait([stopping], timeout=max(0.0, ALONE_S - (time.monotonic() - began)))
    await server.stop()
    await stopping
    now = world.now()
    for meter in world.records.meters.values():
        meter.stop(now)
    closing = [world.desk.close, world.close, world.records.close]
    # A step that was given up may still come to its commit, whole or not at all.
    for close in closing if world.step_running() else [*closing, world.queue.close]:
        try:
            close()
        except (OSError, UserError) as trouble:  # a full disk: what is durable is so already
            say(f"while closing: {trouble}")


async def _checkpoint(world: LiveWorld, say: Callable[[str], None]) -> None:
    if world.step_running():
        say("the step that runs is given up; the last checkpoint stands")
        return
    try:
        await world.save_checkpoint()
    except UserError as trouble:
        say(f"no checkpoint: {trouble}")


def busy_threads() -> list[str]:
    """Threads of a run that are still at work after its end, which the end of the process would wait for."""
    ours = [t for t in threading.enumerate() if t.name.startswith("echo2-") and not t.daemon]
    deadline = time.monotonic() + THREADS_S
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ours if thread.is_alive()]


def end_at_once(code: int, message: str) -> NoReturn:
    """End this process whatever its threads are at; the terminal gets its cursor back."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")
    try:
        sys.stderr.write(message + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
