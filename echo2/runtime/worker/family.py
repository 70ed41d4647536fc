"""The worker as a process: who its parent is, what it has started, and the last resort for both."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

KILLED_S = 1.5
"""Seconds the killed have to be gone."""


def descendants() -> list[Any]:
    """The processes this one has started, and theirs; none without psutil, which vLLM needs and brings."""
    if find_spec("psutil") is None:
        return []
    import psutil  # type: ignore[import-untyped]

    return list(psutil.Process().children(recursive=True))


def kill_descendants(known: Sequence[Any] = ()) -> None:
    """Kill what this process has started and that still runs, and the `known` of earlier.

    One whose own parent has died since is nobody's descendant any more: it is found among the known only.
    """
    family = {process.pid: process for process in [*known, *descendants()]}
    if not family:
        return
    import psutil

    for process in family.values():
        with suppress(psutil.NoSuchProcess):
            process.kill()  # psutil checks the creation time: never another process with a reused id
    psutil.wait_procs(list(family.values()), timeout=KILLED_S)


def end_at_once(code: int, known: Sequence[Any] = ()) -> None:
    """End this process now, with everything it has started and the `known` of earlier. Never returns."""
    try:
        kill_descendants(known)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


class Parent:
    """The process a local worker was started by: without it, the worker is of no use.

    A parent with a launcher in between is watched by its process id instead.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._direct = os.getppid() == pid

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        if self._direct:
            return os.getppid() != self._pid
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
