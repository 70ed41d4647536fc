"""`echo2 train` under torchrun: two processes train as one does, and end together whoever goes first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import live_run as live
import pytest
import torch
from safetensors.torch import load_file

from echo2.runtime.data.ledger_query import LedgerReader

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
GOES_S = 20.0
"""Deadline of an end: 10 s of the run, and torchrun's own watching."""


class Torchrun(live.Run):
    """A live run of two processes in the background."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*TWO, "-m", "echo2.cli.main", "train", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=live.ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.ranks: list[int] = []

    def begun(self) -> float:
        """Wait for the first step and note the `ranks`; the time then."""
        self.until("step 1/")
        self.ranks = sorted(self.children(), key=lambda pid: "RANK=1" in words_of(pid, "environ"))
        assert len(self.ranks) == 2
        return time.monotonic()

    def gone(self) -> bool:
        """Whether none of the ranks is there any more."""
        return not any("train" in words_of(pid, "cmdline") for pid in self.ranks)

    def children(self) -> list[int]:
        """Process ids of all ranks while torchrun is there."""
        if self.process.poll() is not None:
            return []
        at = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in at.read_text().split() if "train" in words_of(int(pid), "cmdline")]


def words_of(pid: int, what: str) -> list[str]:
    """The command line or the environment of a process; empty where it is gone."""
    try:
        return (Path("/proc") / str(pid) / what).read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


@contextmanager
def running(*arguments: object) -> Iterator[Torchrun]:
    """A live run of two processes that is gone when the block ends."""
    run = Torchrun(*arguments)
    try:
        yield run
    finally:
        for pid in run.ranks or run.children():
            if "train" in words_of(pid, "cmdline"):
                os.kill(pid, signal.SIGKILL)
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


def weights(folder: Path, version: int) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint."""
    return load_file(folder / "checkpoints" / f"version-{version:08d}" / "model.safetensors")


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """With a reference model too, stopped and resumed: the same rollouts give the weights of one process."""
    config = live.write_config(tmp_path, steps=4, S=0, slots=8, seed=5, train__kl_coefficient=0.01)
    done = live.finished("train", config, "--out", tmp_path / "one")
    assert done.returncode == 0, done.stdout + done.stderr
    two, steps = tmp_path / "two", ["--set", "run.steps=2"]
    for more in (steps, ["--resume"]):
        with running(config, "--out", two, *more) as run:
            code, output = run.end()
        assert code == 0, output
    start = load_file(live.REPOSITORY / "assets" / "tiny-sort" / "model.safetensors")
    one, mine = weights(tmp_path / "one", 4), weights(two, 4)
    assert max(float((one[name] - start[name]).abs().max()) for name in one) > 1e-4
    for name, tensor in one.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(live.rows(tmp_path / "one"), live.rows(two), strict=True):
        for name in ("loss", "grad_norm", "entropy", "kl_reference", "reward_mean", "tokens"):
            assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-6), name


def test_ctrl_c_ends_both_with_a_checkpoint(tmp_path: Path) -> None:
    """Interrupted through torchrun, both are gone within the deadline, and what was trained is kept."""
    folder = tmp_path / "run"
    config = live.write_config(tmp_path, steps=400, S=1)
    with running(config, "--out", folder) as run:
        began = run.begun()
        run.kill(signal.SIGINT)
        _, output = run.end()
        assert time.monotonic() - began < GOES_S
        assert "--resume" in output and "no checkpoint" not in output, output
        assert run.gone()
    with LedgerReader(folder / "ledger.sqlite") as ledger:
        assert ledger.version >= 1 and weights(folder, ledger.version)
    assert live.workers_of(folder) == []


def test_a_dying_process_ends_the_run_by_name(tmp_path: Path) -> None:
    """When the second process is killed the first says so, and the run goes on with one process."""
    folder = tmp_path / "run"
    config = live.write_config(tmp_path, steps=400, S=1)
    with running(config, "--out", folder) as run:
        began = run.begun()
        os.kill(run.ranks[1], signal.SIGKILL)
        code, output = run.end()
        assert time.monotonic() - began < GOES_S
    assert code != 0 and "rank 1 of 2 of the learner is gone" in output, output
    assert live.workers_of(folder) == []
    with LedgerReader(folder / "ledger.sqlite") as ledger:
        version = ledger.version
    done = live.finished("train", config, "--out", folder, "--resume", "--set", f"run.steps={version + 1}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nobody_stays_when_the_first_dies(tmp_path: Path) -> None:
    """When the first process is killed the second ends, and so do the workers."""
    folder = tmp_path / "run"
    with running(live.write_config(tmp_path, steps=400, S=1), "--out", folder) as run:
        began = run.begun()
        os.kill(run.ranks[0], signal.SIGKILL)
        code, output = run.end()
        assert code != 0 and "rank 1 of 2: the first process is gone" in output, output
        assert run.gone()
        while live.workers_of(folder):
            assert time.monotonic() - began < GOES_S
            time.sleep(0.1)
