"""Starts live runs for the tests: `echo2 train` and `echo2 worker` as real processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echo2.testing.live import live_config

REPOSITORY = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200"}


def write_config(folder: Path, steps: int = 6, S: int = 1, count: int = 1, slots: int = 16,
                 engine: str = "transformers", local: bool = True, model: str = "",
                 relay: bool = False, **changes: object) -> Path:  # fmt: skip
    """A small configuration; its model is the shipped one. `changes` by key, __ for the dot."""
    path = folder / "live.toml"
    wanted = {
        "name": "live-test", "seed": 3, "run.steps": steps, "run.staleness": S, "pool.w.count": count,
        "pool.w.slots": slots, "pool.w.engine": engine, "pool.w.local": local, "pool.w.relay": relay,
        "train.task": "digit_sort", "train.learning_rate": 2e-4, "train.checkpoint_every": 2,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }  # fmt: skip
    path.write_text(live_config(Path(model or REPOSITORY / "assets" / "tiny-sort"), wanted), encoding="utf-8")
    return path


def command(*arguments: object) -> list[str]:
    """The command line of an echo2 command in a process of its own."""
    return [sys.executable, "-m", "echo2.cli.main", *map(str, arguments)]


def finished(
    *arguments: object, timeout_s: float = 120.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with more environment variables."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout_s,
        env={**ENVIRONMENT, **environment}, check=False, start_new_session=True,
    )  # fmt: skip


class Run:
    """A live run in the background."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command("train", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def until(self, text: str, timeout_s: float = 90.0) -> str:
        """Read until a line holds `text`; that line. Fails at the end of the output or the deadline."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            if not line:
                break
            self.lines.append(line.rstrip())
            if text in line:
                return line.rstrip()
        raise AssertionError(f"no line with {text!r}:\n" + "\n".join(self.lines))

    def end(self, timeout_s: float = 90.0) -> tuple[int, str]:
        """Wait for the end: exit code and the whole output."""
        rest, _ = self.process.communicate(timeout=timeout_s)
        self.lines += rest.splitlines()
        return self.process.returncode, "\n".join(self.lines)

    def kill(self, number: signal.Signals) -> None:
        """Signal the learner's process alone."""
        os.kill(self.process.pid, number)


@contextmanager
def running(*arguments: object) -> Iterator[Run]:
    """A live run that is gone when the block ends."""
    run = Run(*arguments)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill(signal.SIGKILL)
            run.process.wait()


def workers_of(folder: Path) -> list[int]:
    """Process ids of everything that works in a run's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "worker" in words and any(word.startswith(str(folder)) for word in words):
            found.append(int(entry.name))
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
