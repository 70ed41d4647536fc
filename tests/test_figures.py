"""`echo2 figures` draws from the repository, and says what it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_run import CommandLine

from echo2.cli.figures import FIGURES

ROOT = Path(__file__).parent.parent


def test_every_script_is_a_figure_of_the_command() -> None:
    """Whatever draws in paper_figures/ can be asked for by name, and nothing else is offered."""
    scripts = {
        path.stem for path in (ROOT / "paper_figures").glob("*.py") if "finish(" in path.read_text("utf-8")
    }
    assert scripts - {"output"} == set(FIGURES)


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, capsys)


def test_one_figure_is_drawn_with_its_caption(tmp_path: Path, echo2: CommandLine) -> None:
    """PNG, PDF and a caption are written where they were asked for."""
    code, _, said = echo2("figures", "architecture", "--out", tmp_path / "out")
    assert code == 0, said
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "architecture.png",
        "architecture.pdf",
        "architecture.txt",
    }
    assert (tmp_path / "out" / "architecture.png").read_bytes().startswith(b"\x89PNG")


def test_where_a_figure_cannot_be_written_one_plain_line_says_so(echo2: CommandLine) -> None:
    """The script's own message is passed on, without the name of a Python class."""
    (echo2.folder / "file").write_text("")
    _, _, err = echo2("figures", "architecture", "--out", echo2.folder / "file")
    assert "could not be drawn: /" in err and "file: cannot write" in err and err.count("\n") == 1


@pytest.mark.parametrize(("name", "said"), [("knee", "not known"), ("chrun", "did you mean 'churn'")])
def test_an_unknown_figure_is_named(tmp_path: Path, echo2: CommandLine, name: str, said: str) -> None:
    """A typo gets the nearest name and no file."""
    assert said in echo2.mistake("figures", name, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
