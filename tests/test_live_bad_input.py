"""Bad input and ends of a live run, each a clear line and an exit code, with the run resumable."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
from pathlib import Path

import live_run as live
import pytest
from cli_run import CommandLine

TASK = '''
import os
from echo2.runtime.data.task import DataExhausted, Prompt, SingleTurn


class Few(SingleTurn):
    """Six prompts; the reward is what the environment says."""

    name, size, isolated = "few", 6, False

    def prompt(self, ordinal):
        if ordinal >= 6:
            raise DataExhausted("few", ordinal, 6)
        return Prompt(ordinal, "231=")

    def reward(self, prompt, completion):
        return float(os.environ.get("FEW_REWARD", "nan")) * (prompt.ordinal + len(completion))
'''


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a task of its own, registered by entry point."""
    (tmp_path / "few_task.py").write_text(TASK)
    info = tmp_path / "few_task-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: few-task\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[echo2.tasks]\nfew = few_task:Few\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Commands in this process; the workers are processes of their own all the same."""
    return CommandLine(tmp_path, capsys)


def one_line(text: str) -> str:
    """What a command has complained: one line, no traceback."""
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in text, text
    return lines[0]


def refused(line: CommandLine, *arguments: object) -> str:
    """The one line that a run ends with at exit code 2."""
    code, out, err = line("train", *arguments)
    assert code == 2, out + err
    return one_line(err)


def test_a_reward_that_is_no_number_and_data_that_end(
    tmp_path: Path, few: None, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN stops the run naming task and prompt; mended, it resumes, trains what there is, and ends well."""
    folder = tmp_path / "run"
    train = (live.write_config(tmp_path, engine="simulated"), "--out", folder, "--set", 'train.task="few"')
    assert re.search(r"task few: the reward of prompt \d is nan", refused(line, *train))
    assert live.workers_of(folder) == []
    assert "seed = 4 is not the 3 that" in refused(line, *train, "--resume", "--set", "seed=4")
    monkeypatch.setenv("FEW_REWARD", "0.1")
    code, out, err = line("train", *train, "--resume")
    assert code == 0, out + err
    assert "the data is exhausted: all 6 prompts have been generated" in out
    assert [row["version"] for row in live.rows(folder)] == [1]


def test_a_port_in_use_leaves_a_run_that_can_begin_elsewhere(tmp_path: Path, line: CommandLine) -> None:
    """The error names host and port; the run then begins by --resume on another port."""
    folder, config = tmp_path / "run", live.write_config(tmp_path, steps=1, engine="simulated")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = refused(line, config, "--out", folder, "--set", f"train.port={port}")
    assert f"train.port = {port}: port {port} on 127.0.0.1 is in use" in words
    code, out, err = line("train", config, "--out", folder, "--resume")
    assert code == 0 and "step 1/1" in out, out + err


def test_a_model_that_is_damaged_costs_nothing(tmp_path: Path, line: CommandLine) -> None:
    """With a damaged tokenizer, or damaged weights, the run does not begin: no folder is made."""
    model, folder = tmp_path / "model", tmp_path / "run"
    shutil.copytree(live.REPOSITORY / "assets" / "tiny-sort", model)
    config = live.write_config(tmp_path, model=str(model))
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert "no model can be loaded" in refused(line, config, "--out", folder)
    weights.write_bytes(whole)
    (model / "tokenizer.json").write_text("{}")
    assert "no tokenizer can be loaded" in refused(line, config, "--out", folder)
    (model / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(line, config, "--out", folder)
    assert not folder.exists()


def test_prompts_that_do_not_fit_end_the_run(tmp_path: Path, line: CommandLine) -> None:
    """Where no prompt fits, the run ends with the limit to raise instead of asking for ever."""
    config = live.write_config(tmp_path, engine="simulated")
    words = refused(line, config, "--out", tmp_path / "run", "--set", "train.max_prompt_tokens=2")
    assert "prompts could not be asked" in words and "raise train.max_prompt_tokens" in words


def test_a_finite_task_without_a_prompt_that_fits_is_no_success(
    tmp_path: Path, few: None, line: CommandLine
) -> None:
    """Data that end before anything could be asked are an error, not a complete run of no steps."""
    config = live.write_config(tmp_path, engine="simulated")
    sets = ("--set", 'train.task="few"', "--set", "train.max_prompt_tokens=2")
    words = refused(line, config, "--out", tmp_path / "run", *sets)
    assert "the data is exhausted" in words and "6 prompts could not be asked" in words


def test_a_run_that_nobody_joins_ends(tmp_path: Path, line: CommandLine) -> None:
    """Without workers the run ends after patience_s, and says who waits for whom."""
    config = live.write_config(tmp_path, local=False)
    words = refused(line, config, "--out", tmp_path / "run", "--set", "train.patience_s=10")
    assert "nothing has happened for 10 s: the learner waits for workers, 0 workers are up" in words
    assert "0 of 1 are there" in words and "--resume" in words


def test_workers_that_cannot_start_say_why(
    tmp_path: Path, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool whose every start fails is not started over and over; the cause is shown, and ends the run."""
    config = live.write_config(tmp_path, engine="simulated", count=2)
    # What every Python loads at its start, the workers too.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'worker' in sys.orig_argv:\n"
        "    os.write(2, b'error: no such library\\n')\n"
        "    os._exit(2)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(live.REPOSITORY)]))
    code, out, err = line("train", config, "--out", tmp_path / "run", "--set", "train.patience_s=10")
    assert code == 2, out + err
    cause = "its process ended with code 2: error: no such library"
    assert out.count("is lost: ") == 2, out
    assert f"worker w-0 is lost: {cause}" in out and cause in one_line(err)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_a_full_disk_costs_steps_not_the_run(tmp_path: Path, line: CommandLine) -> None:
    """No byte can be written from the third step on: one line, exit code 2; with space it goes on to the end.

    Resumed once more, the complete run says so and stays as it is.
    """
    folder = tmp_path / "run"
    config = live.write_config(tmp_path, steps=2000, engine="simulated")
    with live.running(config, "--out", folder) as run:
        run.until("step 3/2000")
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        code, output = run.end()
    assert code == 2, output
    one_line(output)
    assert live.workers_of(folder) == []
    last = max(row["version"] for row in live.rows(folder))
    goal = f"run.steps={last + 2}"
    code, out, err = line("train", config, "--out", folder, "--resume", "--set", goal)
    assert code == 0, out + err
    assert [row["version"] for row in live.rows(folder)] == list(range(1, last + 3))
    summary = json.loads((folder / "summary.json").read_text())
    code, out, err = line("train", config, "--out", folder, "--resume", "--set", goal)
    assert code == 0 and "the run is complete at version" in out, out + err
    assert json.loads((folder / "summary.json").read_text()) == summary


def test_interrupted_twice_it_is_gone_at_once(tmp_path: Path) -> None:
    """A second Ctrl-C ends the learner and its workers without waiting for anything."""
    folder = tmp_path / "run"
    with live.running(live.write_config(tmp_path, steps=2000, engine="simulated"), "--out", folder) as run:
        run.until("step 2/2000")
        run.kill(signal.SIGINT)
        run.kill(signal.SIGINT)
        code, output = run.end(timeout_s=5)
    assert code == 130, output
    assert live.workers_of(folder) == []
