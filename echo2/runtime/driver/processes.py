"""Worker processes on the learner's own host: started and stopped as the scheduler decides.

Called by the live world. Each is `echo2 worker` in a session of its own, with its output in a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from echo2.config import Pool

STOP_S = 8.0


class LocalProcesses:
    """The processes by worker id. `exited` is called with (worker id, cause) when one ends by itself."""

    def __init__(self, folder: Path, url: str, token: str, exited: Callable[[str, str], None]) -> None:
        self._folder, self._url, self._token, self._exited = folder, url, token, exited
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    def alive(self, worker_id: str) -> bool:
        """Whether the worker's process runs."""
        process = self._running.get(worker_id)
        return process is not None and process.poll() is None

    def start(self, worker_id: str, pool: Pool, extra: list[str]) -> None:
        """Start a worker's process, unless it runs. OSError when that is impossible."""
        if self.alive(worker_id):
            return
        folder = self._folder / worker_id
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "echo2.cli.main", "worker", "--join", self._url]
        command += ["--pool", pool.name, "--worker-id", worker_id, "--engine", pool.engine]
        command += ["--work-dir", str(folder), "--parent-pid", str(os.getpid())]
        if pool.threads:
            command += ["--threads", str(pool.threads)]
        environment = {**os.environ, "ECHO2_TOKEN": self._token}
        with (folder / "worker.log").open("ab") as log:
            self._running[worker_id] = subprocess.Popen(
                [*command, *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._watchers[worker_id] = asyncio.get_running_loop().create_task(self._watch(worker_id))

    async def stop_all(self, within_s: float = STOP_S) -> None:
        """End all processes: asked to first, killed with their whole session at the deadline."""
        for watcher in self._watchers.values():
            watcher.cancel()
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + within_s
        while any(process.poll() is None for process in self._running.values()):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.05)
        for process in self._running.values():
            # Also where the leader is gone: an engine's children are in its session.
            _signal(process, signal.SIGKILL)
            process.wait()
        self._running.clear()

    def kill_all(self) -> None:
        """The last resort, at interpreter exit."""
        for process in self._running.values():
            _signal(process, signal.SIGKILL)

    async def _watch(self, worker_id: str) -> None:
        process = self._running[worker_id]
        while (code := process.poll()) is None:
            await asyncio.sleep(0.2)
        _signal(process, signal.SIGKILL)
        cause = (
            f"its process ended with code {code}"
            if code >= 0
            else f"its process was killed by signal {-code}"
        )
        self._exited(worker_id, cause)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
