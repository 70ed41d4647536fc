"""The worker as a process: who its parent is, what it has started, and the last resort for both."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec


def kill_descendants() -> None:
    """Kill whatever this process has started and that still runs. psutil comes with vLLM, which needs it."""
    if find_spec("psutil") is None:
        return
    import psutil  # type: ignore[import-untyped]

    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=2.0)


def end_at_once(code: int) -> None:
    """End this process now, with everything it has started. Never returns."""
    try:
        kill_descendants()
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
