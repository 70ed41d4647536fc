"""Runs the command line in this process, for the tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo2.cli.main import run

SMALL = """
name = "small"
[run]
steps = 4
staleness = 2
[batch]
rollouts_per_step = 16
group_size = 4
[learner]
provider = "digitalocean"
uplink_mbps = 10000
downlink_mbps = 10000
step_s = 60
[rollout]
tokens = 800
[model]
snapshot_gb = 1.0
[[pool]]
name = "a"
gpu = "RTX 5090"
count = 3
provider = "salad"
region = "aws:us-east-2"
uplink_mbps = 900
downlink_mbps = 900
startup_s = 10
"""


class CommandLine:
    """A folder with a small configuration, and a way to run commands on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.config = folder / "small.toml"
        self.config.write_text(SMALL, encoding="utf-8")
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of one command line."""
        self._capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def mistake(self, *arguments: object, code: int = 2) -> str:
        """The one line that a wrong command line ends with."""
        found, out, err = self(*arguments)
        assert found == code, (found, out, err)
        assert out == "", out
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
        assert "Traceback" not in err
        return err
