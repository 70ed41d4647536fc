"""Work done by several threads, results in the order of the work, with a bound on what is under way.

numpy and zstd let go of the interpreter's lock, so threads are enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

AHEAD_PER_THREAD = 3


def in_order(jobs: Iterable[Callable[[], Result]], threads: int) -> Iterator[Result]:
    """The results of jobs in their order; at most `AHEAD_PER_THREAD` x threads are started and not taken.

    A job's error is raised in its place. Closing the iterator drops what has not begun.
    """
    if threads == 1:
        for job in jobs:
            yield job()
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="delta")
    waiting: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) >= AHEAD_PER_THREAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
