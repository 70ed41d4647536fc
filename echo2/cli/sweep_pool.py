"""The processes of a sweep: each is given one point at a time, and is stopped at once on Ctrl-C.

Not `multiprocessing.Pool`, which waits for ever for a process that the system has killed.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

from echo2.errors import UserError

Work = Callable[[Any], Any]


def results(work: Work, tasks: Sequence[Any], jobs: int) -> Generator[Any, None, None]:
    """`work(task)` of every task as it is done, by `jobs` processes (1: by this one).

    Processes are started afresh, so what comes out can't depend on their number. One that ends by itself
    (killed for want of memory, as a rule) is a UserError, MemoryError in one is MemoryError here.
    """
    if jobs <= 1:
        yield from map(work, tasks)
        return
    left = iter(tasks)
    running = _started(work, min(jobs, len(tasks)))
    try:
        for connection in running:
            connection.send([next(left)])
        waiting = set(running)
        while waiting:
            for connection in [c for c in wait(list(waiting)) if isinstance(c, Connection)]:
                yield _received(connection, running[connection])
                task = list(islice(left, 1))
                if task:
                    connection.send(task)
                else:
                    waiting.remove(connection)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _started(work: Work, jobs: int) -> dict[Connection, Any]:
    """Processes by the connection to them. They inherit that Ctrl-C is ignored: it is for the parent alone,
    which keeps what is done, and none of them is hit while it loads."""
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, Any] = {}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(jobs):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(work, theirs), daemon=True)
            process.start()
            theirs.close()
            running[mine] = process
    finally:
        signal.signal(signal.SIGINT, before)
    return running


def _serve(work: Work, connection: Connection) -> None:
    """In the process: work until the parent stops this process, or is gone itself."""
    with suppress(EOFError, ConnectionError):
        while True:
            (task,) = connection.recv()
            try:
                result = work(task)
            except MemoryError as error:
                result = error
            connection.send(result)


def _received(connection: Connection, process: Any) -> Any:
    try:
        result = connection.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise UserError(
            f"a process of the sweep ended by itself (exit code {process.exitcode}); it may have been killed "
            "for want of memory: give fewer --jobs"
        ) from None
    if isinstance(result, MemoryError):
        raise result
    return result
