"""A run's log says whether it is whole: the end mark, and what replay says without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo2.sim.log import RunLog, lines, replay
from echo2.sim.run import SimResult, simulate
from echo2.testing import equal_workers, small_world


@pytest.fixture(scope="module")
def run() -> SimResult:
    """A short run with its facts and decisions."""
    return simulate(small_world(equal_workers(2), S=2, steps=3), keep_log=True)


def test_a_whole_log_is_equal(run: SimResult, tmp_path: Path) -> None:
    """The log of a run that has ended replays as equal, and counts every fact."""
    run.write(tmp_path)
    report = replay(tmp_path / "log.jsonl")
    assert report.equal and not report.cut
    assert (report.facts, report.decisions) == (run.world.facts, run.world.decisions)


def test_a_log_cut_between_events_is_not_equal(run: SimResult, tmp_path: Path) -> None:
    """Cut after any line, the log is reported as cut off with nothing different up to there."""
    whole = list(lines(run.world.inputs.settings, run.world.entries))
    for length in (1, 2, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"{length}.jsonl"
        path.write_text("\n".join(whole[:length]) + "\n", encoding="utf-8")
        report = replay(path)
        assert not report.equal and report.cut
        assert report.first_difference == f"the log is cut off after {report.facts:,} facts: equal so far"


def test_a_log_with_lines_missing_in_the_middle_is_not_equal(run: SimResult, tmp_path: Path) -> None:
    """The end mark counts: one after fewer facts than it says does not make the log whole."""
    whole = list(lines(run.world.inputs.settings, run.world.entries))
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([whole[0], whole[-1]]) + "\n", encoding="utf-8")
    report = replay(path)
    assert not report.equal and report.cut and report.facts == 0


def test_a_live_log_is_whole_once_closed(run: SimResult, tmp_path: Path) -> None:
    """Written line by line it is at any time what has happened; closed it is the log of the whole run."""
    path = tmp_path / "log.jsonl"
    log = RunLog(path, run.world.inputs.settings)
    for fact, answers in run.world.entries:
        log.write(fact, answers)
    assert replay(path).cut
    log.close()
    assert replay(path).equal
    assert path.read_text("utf-8").splitlines() == list(lines(run.world.inputs.settings, run.world.entries))
