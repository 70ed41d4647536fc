"""Outputs that cannot be written: one line with path and remedy, and nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cli_run import CommandLine


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration."""
    return CommandLine(tmp_path, capsys)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full(echo2: CommandLine) -> None:
    """A full disk is one line with the path and what to do."""
    message = echo2.mistake("plan", echo2.config, "--out", "/dev/full", "--json")
    assert "/dev/full" in message and "No space left" in message and "free some space" in message


def test_disk_full_in_a_run_leaves_nothing(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills while a run is written leaves no folder and no part of one."""
    from echo2.sim.run import SimResult

    def full(self: SimResult, folder: Path) -> None:
        (folder / "log.jsonl").write_text("half")
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(SimResult, "write", full)
    message = echo2.mistake("simulate", echo2.config, "--out", echo2.folder / "run")
    assert "No space left" in message and str(echo2.folder / "run") in message
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["small.toml"]


@pytest.mark.parametrize(
    ("command", "name"), [("plan", "p.json"), ("simulate", "run"), ("sweep", "s.csv"), ("topology", "t.json")]
)
def test_unwritable_output(echo2: CommandLine, command: str, name: str) -> None:
    """An output under something that is not a folder is one line, before any work is lost."""
    (echo2.folder / "file").write_text("")
    path = echo2.folder / "file" / name
    message = echo2.mistake(command, echo2.config, "--out", path)
    assert "file" in message and ("cannot be written" in message or "Not a directory" in message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(echo2: CommandLine) -> None:
    """A folder without permission is one line too."""
    echo2.folder.chmod(0o555)
    try:
        assert "Permission denied" in echo2.mistake("plan", echo2.config, "--out", echo2.folder / "p.json")
    finally:
        echo2.folder.chmod(0o755)


def test_output_in_a_folder_that_is_not_there(echo2: CommandLine) -> None:
    """It is the folder that is missing, not room on the disk."""
    message = echo2.mistake("plan", echo2.config, "--out", echo2.folder / "none" / "p.json")
    assert "does not exist" in message and "space" not in message


def test_a_picture_is_a_png(echo2: CommandLine) -> None:
    """A picture under another ending would be a PNG with a wrong name."""
    message = echo2.mistake("traces", "show", "bamboo-p3", "--out", echo2.folder / "p.pdf")
    assert "must end in .png" in message and not (echo2.folder / "p.pdf").exists()


def test_a_report_is_whole_or_absent(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills while a report is written leaves neither files nor folders."""
    run, out = echo2.folder / "run", echo2.folder / "report"
    assert echo2("simulate", echo2.config, "--out", run)[0] == 0
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name.startswith("report.html"):
            raise OSError(28, "No space left on device", str(self))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    message = echo2.mistake("report", run, "--out", out)
    assert "No space left" in message and not out.exists()


def test_simulate_names_the_folder_that_was_asked_for(
    echo2: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills inside a run is told with the folder of --out, not the hidden one beside it."""
    opened = Path.open

    def full(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name.startswith("log.jsonl"):
            raise OSError(28, "No space left on device", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    message = echo2.mistake("simulate", echo2.config, "--out", echo2.folder / "run")
    assert f"{echo2.folder / 'run'}/log.jsonl: cannot write" in message and ".part" not in message
