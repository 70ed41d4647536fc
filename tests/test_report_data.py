"""The data inside the report's page: all of the run, compact, and the same after unpacking."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_kit import Outline, copy_of, embedded, small_run

from echo2.report.course import Course
from echo2.report.decisions import DecisionTable
from echo2.report.page import render
from echo2.report.payload import column, pack, unpack, values_of
from echo2.report.record import RunRecord, read_run
from echo2.sim.log import DECISIONS


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory."""
    directory = tmp_path_factory.mktemp("run")
    small_run(directory)
    return directory


@pytest.fixture(scope="module")
def record(run_dir: Path) -> RunRecord:
    """The run as the report reads it."""
    return read_run(run_dir)


@pytest.fixture(scope="module")
def page(record: RunRecord) -> str:
    """The page, without pictures."""
    return render(record, {})


def test_every_decision_of_the_log_is_in_the_page(page: str, run_dir: Path) -> None:
    """Time, kind, reason and bound of every decision, in order, as the log has them."""
    logged = [json.loads(line) for line in (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    made = [line for line in logged if line["kind"] in DECISIONS]
    data = embedded(page, "decision-data")
    tables = {
        kind["kind"]: [
            list(row)
            for row in zip(values_of(kind["t"]), values_of(kind["reason"]), values_of(kind["bound"]))
        ]
        for kind in data["kinds"]
    }
    at = dict.fromkeys(tables, 0)
    order = values_of(data["order"])
    assert order == [line["kind"] for line in made] and len(order) > 500
    for kind, line in zip(order, made):
        t_ms, reason, bound = tables[kind][at[kind]]
        at[kind] += 1
        assert (t_ms, reason) == (round(1000 * line["t_s"]), line.get("reason", ""))
        assert bound == (pytest.approx(line["bound"], rel=1e-5) if "bound" in line else None)


def test_timeline_in_the_page_is_the_runs(page: str, record: RunRecord) -> None:
    """Steps, waits, staleness and versions in the page's data are those read from the log."""
    data, log = embedded(page, "run-data"), record.log
    assert log is not None and data["S"] == record.S and data["end"] == round(1000 * log.end_s)
    assert values_of(data["train"]["v"]) == [version for _, _, version in log.train]
    waited = zip(values_of(data["idle"]["c"]), values_of(data["idle"]["s"]))
    assert sum(ms for _, ms in waited) == pytest.approx(1000 * sum(log.idle_by_cause().values()), abs=60)
    assert max(values_of(data["ages"]["high"])) == record.summary["staleness"]["max"]
    assert values_of(data["versions"]["version"]) == list(log.versions)
    up = {name for name, worker in log.workers.items() if worker.up}
    assert up <= set(data["workers"]["id"])


def test_generation_in_the_page_is_the_rollouts_of_the_run(record: RunRecord) -> None:
    """Rollout-seconds over all workers add up to those of the run, and none exceeds its slots."""
    log = record.log
    assert log is not None
    whole = sum(log.running.means()) * log.running.width_s
    parts = sum(sum(w.running.means()) * w.running.width_s for w in log.workers.values())
    assert whole == pytest.approx(parts, rel=0.01) and whole > 0
    for worker in log.workers.values():
        assert max(worker.running.means(), default=0.0) <= worker.offer["slots"] + 1e-6


@given(st.lists(st.tuples(st.floats(0.0, 900.0), st.integers(-5, 5)), max_size=40))
def test_course_keeps_the_integral(steps: list[tuple[float, int]]) -> None:
    """Whatever the steps, bins times their width is the area under them, in no more bins than allowed."""
    course, area, now, value = Course(16), 0.0, 0.0, 0
    for after_s, change in steps:
        area += value * after_s
        now += after_s
        value += change
        course.step(now, change)
    means = course.means()
    widths = [min(course.width_s, now - i * course.width_s) for i in range(len(means))]
    assert len(means) <= 16
    assert sum(m * max(w, 0.0) for m, w in zip(means, widths)) == pytest.approx(area, abs=1e-6 * (1 + now))


CELLS = st.one_of(
    st.lists(st.integers(-(2**40), 2**40)),
    st.lists(st.text(max_size=5)),
    st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9))),
)


@given(CELLS)
def test_columns_survive_the_page(values: list[Any]) -> None:
    """Whole numbers and texts come back as they were, other numbers with six digits."""
    back = values_of(unpack(pack({"c": column(values)}))["c"])
    assert len(back) == len(values)
    for before, now in zip(values, back):
        assert now == (pytest.approx(before, rel=1e-5) if isinstance(before, float) else before)


def test_decisions_are_kept_whole_and_in_order() -> None:
    """Of a kind with many decisions all are kept, between those of other kinds."""
    decisions = DecisionTable()
    for i in range(3000):
        message = {"kind": "StopWorker", "t_s": float(i), "worker_id": f"w{i}", "reason": "x", "bound": 0.0}
        decisions.add(message)
    decisions.add({"kind": "SetTimer", "t_s": 1e9, "name": "n", "at_s": 1.0, "reason": "y"})
    rows = list(decisions.rows())
    assert decisions.totals() == {"SetTimer": 1, "StopWorker": 3000}
    assert rows[2999] == (2999.0, "StopWorker", {"worker": "w2999"}, "x", 0.0)
    assert rows[-1][1:3] == ("SetTimer", {"name": "n", "at s": 1.0})


def test_live_run_stands_beside_its_plan_and_simulations(run_dir: Path, tmp_path: Path) -> None:
    """With a side-by-side.json the headline holds the plan's and both simulations' numbers, each labelled."""
    live = copy_of(run_dir, tmp_path / "live", ("plan.json",))
    (live / "run.json").write_text("{}", encoding="utf-8")
    numbers = {"steps_per_s": 12.0 / 3600, "learner_utilisation": 0.4321, "step_cost_usd": 0.876}
    both = {"simulated": {**numbers, "plan": numbers}, "calibrated": numbers}
    (live / "side-by-side.json").write_text(json.dumps(both), encoding="utf-8")
    text = Outline(render(read_run(live), {})).text
    assert text.count("43.2 % planned") == 1 and text.count("43.2 % simulated") == 2
    assert text.count("0.876 simulated") == 2 and "simulation with what was measured" in text


def test_lives_of_a_live_run_are_laid_end_to_end(run_dir: Path, tmp_path: Path) -> None:
    """The log of a second life follows the first, and a folder with run.json is called live."""
    twice = copy_of(run_dir, tmp_path / "twice", ("plan.json",))
    shutil.copy(twice / "log.jsonl", twice / "log-2.jsonl")
    (twice / "run.json").write_text('{"life": 2}', encoding="utf-8")
    summary = json.loads((twice / "summary.json").read_text(encoding="utf-8"))
    for only_simulated in ("upper_bound_steps_per_s", "upper_bound_term"):
        del summary[only_simulated]
    summary["workers"] = [
        {key: value for key, value in worker.items() if key not in ("site", "busy_share")}
        for worker in summary["workers"]
    ]
    (twice / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    once, both = read_run(run_dir), read_run(twice)
    assert once.log is not None and both.log is not None
    assert both.world == "live" and both.log.lives_s == [0.0, once.log.end_s]
    assert both.log.end_s == pytest.approx(2 * once.log.end_s)
    assert len(both.log.train) == 2 * len(once.log.train)
    assert both.log.train[len(once.log.train)][0] >= once.log.end_s
    text = Outline(render(both, {})).text
    assert "2 lives of the run" in text and "1 / mean training time" in text
