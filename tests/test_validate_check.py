"""Validation of a recorded run: it foretells what it should, and refuses what it cannot compare."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from validate_kit import keep_run

from echo2.cli.main import run as command_line
from echo2.cli.tables import console
from echo2.cli.validate import show
from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.validate.check import Validation, span, validate
from echo2.validate.compare import FIGURES
from echo2.validate.recorded import Recorded


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 50 steps."""
    return keep_run(tmp_path_factory.mktemp("runs") / "kept")


@pytest.fixture(scope="module")
def result(kept: Path) -> Validation:
    """Its validation."""
    return validate(kept, seeds=3)


def row(result: Validation, metric: str) -> float:
    """The error of a metric."""
    error = next(row.error for row in result.rows if row.metric == metric)
    assert error is not None
    return error


def changed(kept: Path, to: Path, name: str, old: str, new: str) -> Path:
    """A copy of a run in which one file has been edited."""
    to.mkdir()
    for file in kept.iterdir():
        text = file.read_text(encoding="utf-8")
        if file.name == name:
            assert old in text
            text = text.replace(old, new, 1)
        (to / file.name).write_text(text, encoding="utf-8")
    return to


def test_a_run_with_known_delays_is_foretold(result: Validation) -> None:
    """The rest of a run made with known delays is foretold to a few per cent from its first part alone."""
    assert abs(row(result, "steps_per_s")) < 0.05
    assert abs(row(result, "step_cost_usd")) < 0.05
    assert abs(row(result, "train_mean_s")) < 0.05
    assert abs(row(result, "learner_utilisation")) < 0.05
    assert abs(row(result, "tail_p50_s")) < 0.05
    assert abs(row(result, "staleness_mean")) < 0.3


def test_every_metric_has_a_row_and_the_plan_stands_beside(result: Validation) -> None:
    """All metrics are there in their order, and the closed form has a value where it has one to give."""
    assert [row.metric for row in result.rows] == [figure.name for figure in FIGURES]
    planned = {row.metric for row in result.rows if row.planned is not None}
    assert planned == {
        "steps_per_s", "step_p50_s", "train_mean_s", "learner_utilisation", "tail_p50_s", "step_cost_usd"
    }  # fmt: skip


def test_all_inputs_that_must_match_are_listed(result: Validation) -> None:
    """Configuration, settings, workers, engines, seed, model and code are each listed once."""
    assert [matched.name for matched in result.inputs] == [
        "configuration", "seed", "workers", "engines", "scheduler settings", "model", "code version"
    ]  # fmt: skip


def test_a_compact_record_says_the_same(kept: Path, tmp_path: Path, result: Validation) -> None:
    """A record whose log is compressed gives the whole run's numbers, to the last digit."""
    record = tmp_path / "record"
    record.mkdir()
    for name in ("config.toml", "run.json"):
        (record / name).write_bytes((kept / name).read_bytes())
    (record / "log.jsonl.gz").write_bytes(gzip.compress((kept / "log.jsonl").read_bytes()))
    assert validate(record, seeds=3).rows == result.rows


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("config.toml", "staleness = 3", "staleness = 4", "scheduler setting staleness_bound"),
        ("config.toml", "seed = 7", "seed = 8", "seed was 7"),
        ("config.toml", "tokens_per_s = 1500", "tokens_per_s = 1600", "rollouts_per_s"),
        ("config.toml", 'task = "noise"', 'task = "addition"', "train.task was 'noise'"),
        ("config.toml", "count = 3", "count = 4", "worker sim-3"),
        ("log.jsonl", '"kind":"TrainStep"', '"kind":"TrainStepped"', "not a line of a run log"),
        ("log.jsonl", "next prompt", "another prompt", "code version"),
        ("log.jsonl", '"format":1', '"format":99', "not a line of a run log"),
        ("run.json", '"life"', '"lives" 1', "cannot be read"),
    ],
)
def test_what_does_not_match_is_named(
    kept: Path, tmp_path: Path, file: str, old: str, new: str, named: str
) -> None:
    """A difference between the record and this version is refused by its name."""
    with pytest.raises(UserError) as refusal:
        validate(changed(kept, tmp_path / "run", file, old, new))
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_another_model_is_refused(kept: Path, tmp_path: Path) -> None:
    """A model directory with other files than the run's is refused."""
    state = json.loads((kept / "run.json").read_text(encoding="utf-8"))
    state["identity"]["train.model"] = "0" * 64
    text = (kept / "run.json").read_text(encoding="utf-8")
    copy = changed(kept, tmp_path / "run", "run.json", text, json.dumps(state))
    model = Path(__file__).parents[1] / "assets" / "tiny-sort"
    with pytest.raises(UserError, match="model was '000000000000'"):
        validate(copy, model=model)


def test_a_short_run_is_refused_with_the_number_it_takes(tmp_path: Path) -> None:
    """A run too short for both parts is refused, and the refusal says how many steps are enough."""
    with pytest.raises(UserError, match=r"20 steps are too few: 8 to calibrate .* record 31 steps or more"):
        validate(keep_run(tmp_path / "short", steps=20))


def test_the_first_part_begins_when_the_workers_are_up() -> None:
    """The share is taken of the steps after the last worker of the beginning has come up."""
    start = [d.StartWorker(0.0, name, "", 0.0) for name in ("a", "b")]
    steps = [(f.StepFinished(float(v), v, 0.5, 0.0), []) for v in range(1, 61)]
    joined = [(f.WorkerJoined(10.5, name, 1), []) for name in ("a", "b")]
    entries = ((f.RunStarted(0.0), start), *steps[:10], *joined, *steps[10:])
    run = Recorded(Path("run"), None, entries, {}, {}, {}, 1)  # type: ignore[arg-type]
    assert span(run, 0.4) == (30, 60)
    assert span(replace(run, entries=((f.RunStarted(0.0), start), *joined, *steps)), 0.4) == (24, 60)


def test_a_killed_run_is_read_up_to_its_last_whole_line(kept: Path, tmp_path: Path) -> None:
    """A log that was cut off in the middle of a line is validated up to there."""
    text = (kept / "log.jsonl").read_text(encoding="utf-8")
    cut = changed(kept, tmp_path / "run", "log.jsonl", text, text[: int(0.9 * len(text))])
    assert 40 < validate(cut, seeds=1).last < 50


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """A folder without run.json is named for what it is not."""
    with pytest.raises(UserError, match=r"holds no run.json"):
        validate(tmp_path)


def test_people_see_signed_errors_and_the_inputs(
    result: Validation, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has live, simulated and planned values with signed errors, and what had to match."""
    show(console(), result)
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("steps/s"))
    assert len(line.split()) == 6
    assert line.split()[3][0] in "+-"
    assert "Inputs that must match" in said


def test_the_command_prints_json(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`echo2 validate --json` prints everything for machines."""
    assert command_line(["validate", str(kept), "--seeds", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["first"], data["last"], data["seeds"]) == (21, 50, 1)
    assert {row["metric"] for row in data["rows"]} == {figure.name for figure in FIGURES}


def test_a_share_out_of_range_is_refused(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A share to calibrate from that leaves nothing is refused with the range."""
    assert command_line(["validate", str(kept), "--calibrate", "1"]) == 2
    assert "must be 0.1 to 0.9" in capsys.readouterr().err
