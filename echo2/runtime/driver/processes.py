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
import time
from collections.abc import Callable
from pathlib import Path

from echo2.config import Pool
from echo2.runtime.driver.environment import is_of_torchrun

STOP_S = 9.0
"""A vLLM engine can need 7 s to stop; a worker ends itself by force after 9 s."""
POLL_S = 0.1
TAIL_BYTES = 8192


class LocalProcesses:
    """The processes by worker id. `exited` is called with (worker id, cause) when one ends by itself."""

    def __init__(
        self, folder: Path, url: str, token: str, exited: Callable[[str, str], None], ca: Path | None = None
    ) -> None:
        """`ca`: the certificate of the learner's own server, which the workers are to trust."""
        self._folder = Path(os.path.abspath(folder))
        self._url, self._token, self._exited, self._ca = url, token, exited, ca
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[str] = set()
        self._again: dict[str, tuple[Pool, list[str]]] = {}
        self._closed = False

    def alive(self, worker_id: str) -> bool:
        """Whether the worker's process runs."""
        process = self._running.get(worker_id)
        return process is not None and process.poll() is None

    def stays(self, worker_id: str) -> bool:
        """Whether the worker's process runs and has not been told to leave."""
        return worker_id not in self._leaving and self.alive(worker_id)

    def returning(self, worker_id: str) -> bool:
        """Whether a new process is started as soon as the one that leaves has gone."""
        return worker_id in self._again

    def start(self, worker_id: str, pool: Pool, extra: list[str]) -> None:
        """Start a worker's process, unless it runs; after the one that leaves or has just died.

        Raises OSError when impossible.
        """
        if self._closed or self.stays(worker_id):
            return
        # Its watcher has yet to see its end: two processes never share a folder, or a watcher.
        if worker_id in self._running:
            self._again[worker_id] = pool, extra
            return
        folder = self._folder / worker_id
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "echo2.cli.main", "worker", "--join", self._url]
        command += ["--pool", pool.name, "--worker-id", worker_id, "--engine", pool.engine]
        command += ["--work-dir", str(folder), "--parent-pid", str(os.getpid())]
        if pool.threads:
            command += ["--threads", str(pool.threads)]
        if self._ca is not None:
            command += ["--ca", str(self._ca)]
        command += _endpoint(worker_id, pool)
        own = {name: value for name, value in os.environ.items() if not is_of_torchrun(name)}
        environment = {**own, "ECHO2_TOKEN": self._token}
        with self._log(worker_id).open("ab") as log:
            self._running[worker_id] = process = subprocess.Popen(
                [*command, *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        watching = self._watch(worker_id, process)
        self._watchers[worker_id] = asyncio.get_running_loop().create_task(watching)

    def leave(self, worker_id: str) -> None:
        """The process has been told to leave; whoever starts the worker again waits for its end."""
        self._again.pop(worker_id, None)
        if worker_id in self._running:
            self._leaving.add(worker_id)

    def kill(self, worker_id: str) -> None:
        """End a process at once, with its session."""
        self.leave(worker_id)
        if (process := self._running.get(worker_id)) is not None:
            _signal(process, signal.SIGKILL)

    def last_words(self, worker_id: str) -> str:
        """The last line of a worker's log; empty where it has none."""
        try:
            with self._log(worker_id).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:500]

    async def stop_all(self, within_s: float = STOP_S) -> None:
        """End all processes: asked to first, killed with their whole session at the deadline."""
        self._close()
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + within_s
        while any(process.poll() is None for process in self._running.values()):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.05)
        self.kill_all()

    def kill_all(self) -> None:
        """End all processes at once. Starts none after that."""
        self._close()
        for process in self._running.values():
            # Also where the leader is gone: an engine's children are in its session.
            _signal(process, signal.SIGKILL)
            process.wait()
        self._running.clear()

    def _close(self) -> None:
        self._closed = True
        self._again.clear()
        for watcher in self._watchers.values():
            watcher.cancel()

    def _log(self, worker_id: str) -> Path:
        return self._folder / worker_id / "worker.log"

    async def _watch(self, worker_id: str, process: subprocess.Popen[bytes]) -> None:
        while (code := process.poll()) is None:
            await asyncio.sleep(POLL_S)
        _signal(process, signal.SIGKILL)
        del self._running[worker_id]
        self._leaving.discard(worker_id)
        words = self.last_words(worker_id) if code > 0 else ""
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        # While a new start waits for this end, `returning` tells the world that the end is no loss.
        self._exited(worker_id, f"its process {how}" + (f": {words}" if words else ""))
        if (again := self._again.pop(worker_id, None)) is not None:
            try:
                self.start(worker_id, *again)
            except OSError as error:
                self._exited(worker_id, f"its process cannot be started: {error.strerror}")


def _endpoint(worker_id: str, pool: Pool) -> list[str]:
    """Where a worker's server is: NAME-i drives the i-th of the pool. Its key is in the environment."""
    if not pool.endpoint or pool.endpoint_weights is None:
        return []
    url = pool.endpoint[int(worker_id.rpartition("-")[2])]
    options = ["--endpoint", url, "--endpoint-weights", str(Path(pool.endpoint_weights) / worker_id)]
    if pool.endpoint_sees is not None:
        options += ["--endpoint-sees", f"{pool.endpoint_sees.rstrip('/')}/{worker_id}"]
    if pool.endpoint_model is not None:
        options += ["--endpoint-model", pool.endpoint_model]
    if pool.endpoint_routes is not None:
        options += ["--endpoint-routes", pool.endpoint_routes]
    return options


def end_leftovers(folder: Path, within_s: float = 3.0) -> list[int]:
    """Kill workers of an earlier life that still work under `folder`; returns their process ids.

    For whoever holds the run's ledger: they are of no use any more, and hold folders that new ones need.
    Blocking. Finds nothing where there is no /proc; they end by themselves within seconds then.
    """
    folder = Path(os.path.abspath(folder))
    found = [pid for pid in _process_ids() if _works_under(pid, folder)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The leader of its session, with an engine's processes in it.
            os.killpg(pid, signal.SIGKILL)
    _wait_gone(found, folder, within_s)
    return found


def _wait_gone(pids: list[int], folder: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while any(_works_under(pid, folder) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def _process_ids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return []


def _works_under(pid: int, folder: Path) -> bool:
    """Whether it is a worker whose folder is in `folder`; a dead one has no command line."""
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        place = words.index("--work-dir") if "echo2.cli.main" in words and "worker" in words else -1
    except (OSError, ValueError):
        return False
    return place >= 0 and Path(words[place + 1]).parent == folder


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
