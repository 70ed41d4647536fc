"""How a command ends: exit codes, Ctrl-C, a reader that is gone, no memory; never with a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_run import CommandLine


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration."""
    return CommandLine(tmp_path, capsys)


def test_a_real_process_ends_the_same_way(echo2: CommandLine) -> None:
    """From the shell: exit code 2, one line on stderr, nothing on stdout, no traceback."""
    command = [sys.executable, "-m", "echo2.cli.main", "plan", str(echo2.config), "--set", "run.steps=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "run.steps = 0" in done.stderr


def test_a_closed_pipe_is_no_error(echo2: CommandLine) -> None:
    """Output cut off by `head` ends quietly."""
    shell = f"{sys.executable} -m echo2.cli.main traces --json | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[\n" and done.stderr == ""


@pytest.mark.parametrize("command", ["plan {}", "plan {} --json", "traces", "traces --json", "plan --help"])
def test_a_reader_that_is_gone(echo2: CommandLine, command: str) -> None:
    """Output that nobody reads any more, table, JSON or help, ends with exit code 0 and no word."""
    shell = (
        f"{sys.executable} -m echo2.cli.main {command.format(echo2.config)} | true; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["typer", "pydantic", "numpy", "pandas", "echo2.policy.planner"])
def test_ctrl_c_while_loading(echo2: CommandLine, module: str) -> None:
    """Ctrl-C while a library is still loading is one line and exit code 130, without a traceback."""
    program = f"""
import os, signal, sys

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, AtImport())
sys.argv = ["echo2", "plan", {str(echo2.config)!r}]
from echo2.cli.main import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_no_memory(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer without enough memory is one line too."""

    def full(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("echo2.scenario.build", full)
    assert "out of memory" in echo2.mistake("plan", echo2.config)
    message = echo2.mistake("sweep", echo2.config, "--out", echo2.folder / "s.csv", "--jobs", 1)
    assert "out of memory" in message and "0 rows kept" in message


def test_no_command(echo2: CommandLine) -> None:
    """`echo2` alone prints its help and one line."""
    code, out, err = echo2()
    assert code == 2 and "sweep" in out and err == "error: no command given; see `echo2 --help`\n"


def test_a_name_that_the_terminal_cannot_show(echo2: CommandLine) -> None:
    """A terminal without the letters of a name gets escapes for them."""
    command = [sys.executable, "-m", "echo2.cli.main", "plan", str(echo2.config), "--set", 'name="日本"']
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Plan of \\u65e5\\u672c")
