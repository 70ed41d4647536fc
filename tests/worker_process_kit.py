"""`echo2 worker` as a real process, for the tests of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from worker_kit import TOKEN

ROOT = Path(__file__).parent.parent


class Process:
    """A worker process and what it writes to stderr."""

    def __init__(self, inner: asyncio.subprocess.Process) -> None:
        self.inner = inner

    async def ended(self, within_s: float) -> tuple[int, str]:
        """Exit code and stderr, once it has ended; TimeoutError when it has not."""
        async with asyncio.timeout(within_s):
            _, err = await self.inner.communicate()
        return self.inner.returncode or 0, err.decode()


@asynccontextmanager
async def worker(*arguments: object, token: str = TOKEN) -> AsyncIterator[Process]:
    """`echo2 worker ...` in a session of its own, killed at the end whatever happened."""
    environment = {**os.environ, "ECHO2_TOKEN": token, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "echo2.cli.main", "worker", *map(str, arguments)]
    inner = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env=environment, start_new_session=True
    )
    try:
        yield Process(inner)
    finally:
        if inner.returncode is None:
            os.killpg(inner.pid, signal.SIGKILL)
            await inner.wait()
