"""`echo2 figures` draws from the repository, and says what it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cli_run import CommandLine

from echo2.cli.figures import FIGURES, SHARED, sharing
from echo2.validate.recorded import read

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "experiments" / "live")]

import knee  # noqa: E402

from paper_figures import runs  # noqa: E402


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


def test_a_run_that_two_figures_show_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one figure's process has made another one takes, and nothing of it is left afterwards."""
    made: list[int] = []
    with sharing():
        folder = Path(os.environ[SHARED])
        for _ in range(2):
            monkeypatch.setattr(runs, "_made", {})
            assert runs.once(b"a run", lambda: made.append(1) or {"usd": 2.5}) == {"usd": 2.5}
        assert runs.once(b"another", lambda: 3) == 3
    assert made == [1]
    assert SHARED not in os.environ and not folder.exists()


def test_seeds_of_one_setting_share_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds are two simulations of one plan."""
    monkeypatch.setattr(runs, "_made", {})
    one, other = (runs.outcome("datacentre", ("run.steps=3",), seed) for seed in (1, 2))
    assert one.plan is other.plan and one.step_end_s != other.step_end_s


def test_a_live_point_accounts_for_all_the_time() -> None:
    """Of a recorded run, the shares of working and of waiting for each cause add up to one."""
    row = knee.figures(read(ROOT / "experiments" / "fidelity" / "records" / "s3-k1-w3-open-seed0"), 5)
    assert row["utilisation"] + sum(row[f"wait_{cause}"] for cause in knee.CAUSES) == pytest.approx(
        1, abs=0.03
    )
    assert 0 < row["utilisation"] < 1 and row["first_step"] == 6


def test_every_live_point_of_the_knee_is_recorded_once() -> None:
    """The committed table has the points of the script, so that running it begins nothing."""
    wanted = {(S, workers) for (S, _, _), counts in knee.POINTS.items() for workers in counts}
    assert knee.recorded(knee.RECORDS) == wanted
    assert len(knee.RECORDS.read_text(encoding="utf-8").splitlines()) == 1 + len(wanted)
