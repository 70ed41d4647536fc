"""Local worker processes: one at a time for a name, gone at the end, and what they said last."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from live_run import write_config

from echo2.config import Pool, load
from echo2.runtime.driver import processes as p

WORKER = """
import signal, sys, time
signal.signal(signal.SIGTERM, (lambda *_: sys.exit(0)) if "polite" in sys.argv else signal.SIG_IGN)
print("up", flush=True)
if "dies" in sys.argv:
    print("error: no engine here")
    sys.exit(2)
time.sleep(60)
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool whose workers are a script that sleeps; its words come as extra arguments."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        return real([sys.executable, str(script), *command[4:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(p.subprocess, "Popen", popen)
    return load(write_config(tmp_path)).config.pool[0]


def told(path: Path, story: Callable[[p.LocalProcesses], Awaitable[None]]) -> list[tuple[str, str]]:
    """Run a story; what was told of processes that ended by themselves. None is left in any case."""
    ended: list[tuple[str, str]] = []

    async def run() -> None:
        processes = p.LocalProcesses(path / "workers", "http://x", "t", lambda *end: ended.append(end))
        try:
            await story(processes)
        finally:
            processes.kill_all()

    asyncio.run(run())
    return ended


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that must come true."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.02)


def test_an_end_is_told_with_the_last_words(tmp_path: Path, pool: Pool) -> None:
    """A process that fails is told once, with its code and the last line of its log."""

    async def story(processes: p.LocalProcesses) -> None:
        processes.start("w-0", pool, ["dies"])
        assert processes.stays("w-0")
        await until(lambda: not processes.alive("w-0"))
        await asyncio.sleep(3 * p.POLL_S)

    assert told(tmp_path, story) == [("w-0", "its process ended with code 2: error: no engine here")]


def test_a_worker_starts_again_after_the_one_that_leaves(tmp_path: Path, pool: Pool) -> None:
    """Two processes never share a name: the new one comes when the old one has gone."""

    async def story(processes: p.LocalProcesses) -> None:
        processes.start("w-0", pool, [])
        first = processes._running["w-0"]
        processes.leave("w-0")
        processes.start("w-0", pool, [])
        assert processes.returning("w-0") and not processes.stays("w-0")
        os.killpg(first.pid, signal.SIGKILL)
        await until(lambda: processes.stays("w-0"))
        assert not processes.returning("w-0") and processes._running["w-0"].pid != first.pid

    assert told(tmp_path, story) == [("w-0", "its process was killed by signal 9")]


def test_a_worker_starts_again_before_its_end_was_noticed(tmp_path: Path, pool: Pool) -> None:
    """A start right after a death waits until that has been told, once; the new process is looked after."""

    async def story(processes: p.LocalProcesses) -> None:
        processes.start("w-0", pool, [])
        before = processes._running["w-0"]
        os.kill(before.pid, signal.SIGKILL)
        before.wait()
        processes.start("w-0", pool, ["polite"])
        await until(lambda: processes.stays("w-0"))
        await asyncio.sleep(3 * p.POLL_S)
        assert processes.stays("w-0")
        after = processes._running["w-0"]
        await processes.stop_all()
        assert after.poll() is not None

    assert told(tmp_path, story) == [("w-0", "its process was killed by signal 9")]


def test_nothing_outlives_the_end(tmp_path: Path, pool: Pool) -> None:
    """At the end polite processes leave, deaf ones are killed at the deadline, and none is started."""

    async def story(processes: p.LocalProcesses) -> None:
        processes.start("w-0", pool, ["polite"])
        processes.start("w-1", pool, [])
        pids = [process.pid for process in processes._running.values()]
        await until(lambda: all(processes.last_words(name) == "up" for name in ("w-0", "w-1")))
        began = time.monotonic()
        await processes.stop_all(within_s=0.5)
        assert time.monotonic() - began < 5
        processes.start("w-0", pool, [])
        assert not processes.alive("w-0")
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    assert told(tmp_path, story) == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_each_worker_is_told_of_its_own_server(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker i drives the i-th endpoint through a folder of its own; torchrun's variables stay behind."""
    endpoints = {"endpoint": ("http://a:1", "http://a:2"), "endpoint_weights": "/w", "endpoint_sees": "/s/"}
    served = pool.model_copy(update={**endpoints, "engine": "openai", "endpoint_routes": "/r.json"})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    async def story(processes: p.LocalProcesses) -> None:
        processes.start("w-1", served, [])
        await until(lambda: processes.last_words("w-1") == "up")
        proc = Path(f"/proc/{processes._running['w-1'].pid}")
        words = proc.joinpath("cmdline").read_bytes().decode().split("\0")
        at = words.index("--endpoint")
        assert words[at : at + 4] == ["--endpoint", "http://a:2", "--endpoint-weights", "/w/w-1"]
        assert words[at + 4 : at + 8] == ["--endpoint-sees", "/s/w-1", "--endpoint-routes", "/r.json"]
        inherited = {line.split("=")[0] for line in proc.joinpath("environ").read_text().split("\0")}
        assert "ECHO2_TOKEN" in inherited and not inherited & {"RANK", "MASTER_ADDR"}

    assert told(tmp_path, story) == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_workers_of_a_life_before_are_ended(tmp_path: Path) -> None:
    """Whoever resumes a run ends the workers that still hold its folders, and no other process."""
    words = "import sys, time; print(1, flush=True); time.sleep(60)"

    def started(folder: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", words, "echo2.cli.main", "worker", "--work-dir", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None and process.stdout.readline()
        return process

    mine, other = started(tmp_path / "workers" / "w-0"), started(tmp_path / "elsewhere" / "w-0")
    try:
        assert p.end_leftovers(tmp_path / "workers") == [mine.pid]
        assert mine.wait(5) == -signal.SIGKILL and other.poll() is None
        assert p.end_leftovers(tmp_path / "workers") == []
    finally:
        for process in (mine, other):
            process.kill()
            process.communicate()
