"""The report: one page with the run's numbers that needs nothing else and survives bad input."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_kit import HOSTILE, OPTIONAL, Outline, copy_of, small_run

from echo2.errors import UserError
from echo2.report import write_report
from echo2.report.figures import FIGURES
from echo2.report.page import TITLES, render
from echo2.report.record import RunRecord, read_run
from echo2.sim.run import SimResult


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SimResult]:
    """A run directory with its report, and the simulation it came from."""
    directory = tmp_path_factory.mktemp("run")
    simulated = small_run(directory)
    write_report(directory)
    return directory, simulated


@pytest.fixture(scope="module")
def run_dir(result: tuple[Path, SimResult]) -> Path:
    """The run directory."""
    return result[0]


@pytest.fixture(scope="module")
def record(run_dir: Path) -> RunRecord:
    """The run as the report reads it."""
    return read_run(run_dir)


@pytest.fixture(scope="module")
def page(run_dir: Path) -> str:
    """The page."""
    return (run_dir / "report.html").read_text(encoding="utf-8")


def test_every_section_and_headline_number_is_on_the_page(page: str, record: RunRecord) -> None:
    """Every section is there, and the summary's numbers appear as text beside plan and bound."""
    outline = Outline(page)
    assert set(TITLES) <= set(outline.ids)
    summary, plan = record.summary, record.plan
    assert plan is not None
    for shown in (
        f"{100 * summary['learner_utilisation']:.1f} %",
        f"{100 * plan['learner_utilisation']:.1f} %",
        f"{3600 * summary['steps_per_s']:,.0f}",
        f"{3600 * summary['upper_bound_steps_per_s']:,.0f}",
        f"{summary['step_cost_usd']:#.3g}",
        f"{summary['staleness']['mean']:.2f}",
        f"{summary['rollouts']['trained']:,}",
        f"{100 * summary['dropped_share']:.2f} %",
        plan["workers"][0]["reason"],
        *plan["answers"],
        *record.notes,
        "2026-05-24",
    ):
        assert shown in outline.text, shown
    for worker in summary["workers"]:
        assert f"{worker['rollouts']:,}" in outline.text


def test_every_headline_says_in_which_world_it_holds(page: str) -> None:
    """Each value of a headline card carries a label planned, simulated or set."""
    cards = re.findall(r'<div class="card">(.*?)</dl></div>', page, flags=re.S)
    assert len(cards) == 7
    for card in cards:
        values = re.findall(r'<(?:dd|p class="big")>(.*?)</(?:dd|p)>', card)
        assert values and all(re.search(r">(planned|simulated|set)</span>", value) for value in values)


def test_page_needs_nothing_from_outside(page: str) -> None:
    """No src, href or style of the page points outside it."""
    outline = Outline(page)
    outside = [ref[:60] for ref in outline.refs if not ref.startswith(("data:image/png;base64,", "#"))]
    assert not outside
    assert "link" not in outline.tags and "iframe" not in outline.tags
    style = "".join(re.findall(r"<style>(.*?)</style>", page, flags=re.S))
    assert "url(" not in style and "@import" not in style
    script = "".join(re.findall(r"<script>(.*?)</script>", page, flags=re.S))
    assert "fetch(" not in script and "http" not in script


def test_page_is_balanced_html_without_duplicate_ids(page: str) -> None:
    """Every element is closed in order and no id occurs twice."""
    outline = Outline(page)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert page.startswith("<!DOCTYPE html>")


def test_hostile_names_are_text(page: str) -> None:
    """A pool called <script> is shown as such and adds no script to the page."""
    assert HOSTILE not in page
    assert HOSTILE in Outline(page).text
    assert page.count("<script") == 3, "the script and two blocks of data"
    assert f"left: {HOSTILE}" in Outline(page).text, "the cause of a loss is in the table of workers"


def test_page_lets_no_other_script_run(page: str) -> None:
    """The content security policy names the hash of the page's script and allows nothing else."""
    script = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert len(script) == 1 and policy is not None
    only = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{only}'" in policy.group(1) and "default-src 'none'" in policy.group(1)
    assert not re.search(r"innerHTML|insertAdjacentHTML|outerHTML|eval\(|document\.write", script[0])


def test_idle_causes_add_up_to_the_summary(record: RunRecord) -> None:
    """Idle seconds by cause, read from the log, equal what the scheduler counted."""
    assert record.log is not None
    counted = {k: v * record.summary["wall_s"] for k, v in record.summary["bubble_by_cause"].items()}
    assert sum(counted.values()) > 1.0
    found = record.log.idle_by_cause()
    for cause, seconds in counted.items():
        assert found.get(cause, 0.0) == pytest.approx(seconds, abs=1e-6)


def test_training_and_idle_time_fill_the_run(record: RunRecord) -> None:
    """The learner's spans neither overlap nor leave gaps from start to end."""
    assert record.log is not None
    spans = sorted([(t, s) for t, s, _ in record.log.train] + [(t, s) for t, s, _ in record.log.idle])
    at = 0.0
    for start, seconds in spans:
        assert start == pytest.approx(at, abs=1e-6)
        at = start + seconds
    assert at == pytest.approx(record.summary["wall_s"])


def test_dissemination_is_what_the_world_measured(result: tuple[Path, SimResult], record: RunRecord) -> None:
    """Arrivals per version are those the world saw, late joiners apart, and none beats the bound."""
    measured = result[1].world.metrics.arrivals_s
    assert record.log is not None and record.log.versions
    for number, version in record.log.versions.items():
        arrivals = measured.get(number, [])
        planned = len(version.arrivals_s)
        assert planned <= len(arrivals) <= planned + version.caught_up
        assert set(version.arrivals_s) <= set(arrivals)
        if version.tail_s is not None and not version.targets:
            assert version.tail_s >= version.bound_s * (1 - 1e-9)


def test_workers_up_follow_joins_and_losses(record: RunRecord) -> None:
    """The four preempted workers are missing from the count until others, or they again, are up."""
    assert record.log is not None
    counts = [count for _, count in record.log.workers_up]
    lost_at = counts.index(max(counts)) + 1
    assert record.summary["preemptions"] == 4
    assert counts[lost_at] == max(counts) - 4
    assert max(counts[lost_at:]) > counts[lost_at]


def test_every_start_and_end_of_a_worker_shows_its_reason(page: str, record: RunRecord) -> None:
    """All starts, losses and stops are told with their reasons, also of a worker that came back."""
    assert record.log is not None
    text = Outline(page).text
    stories = [worker.story for worker in record.log.workers.values() if worker.story]
    assert any([what for _, what, _ in story].count("started") == 2 for story in stories)
    for story in stories:
        assert all(f": {what}: {why}" in text for _, what, why in story)


def test_figures_are_on_disk_and_in_the_page(run_dir: Path, page: str) -> None:
    """Every figure is written as PNG and embedded in a light and a dark form."""
    for spec in FIGURES:
        assert (run_dir / "figures" / f"{spec.name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("data:image/png;base64,") == 2 * len(FIGURES)


def test_report_is_the_same_bytes_each_time(run_dir: Path, tmp_path: Path) -> None:
    """The same run gives the same page and pictures, also written elsewhere."""
    files = write_report(run_dir, tmp_path / "out")
    assert files.html.read_bytes() == (run_dir / "report.html").read_bytes()
    for path in files.figures:
        assert path.read_bytes() == (run_dir / "figures" / path.name).read_bytes()


def test_summary_alone_is_enough(run_dir: Path, tmp_path: Path) -> None:
    """Without the optional files the page is whole and names what it lacks."""
    bare = copy_of(run_dir, tmp_path / "bare", OPTIONAL)
    text = write_report(bare).html.read_text(encoding="utf-8")
    outline = Outline(text)
    assert outline.open == []
    assert {"plan.json", "log.jsonl", "config.toml"} <= set(re.findall(r"no ([a-z]+\.[a-z]+)", outline.text))
    assert set(TITLES) - set(outline.ids) == {"baselines"}


@pytest.mark.parametrize("name", OPTIONAL)
def test_each_optional_file_may_be_missing(run_dir: Path, tmp_path: Path, name: str) -> None:
    """Any one of the optional files may be missing."""
    part = copy_of(run_dir, tmp_path / "part", (name,))
    assert Outline(render(read_run(part), {})).open == []


def test_cut_off_log_is_read_as_far_as_it_goes(run_dir: Path, tmp_path: Path) -> None:
    """A log that ends in the middle of a line, as of a killed run, is used and the page says so."""
    cut = copy_of(run_dir, tmp_path / "cut")
    whole = (cut / "log.jsonl").read_text(encoding="utf-8")
    (cut / "log.jsonl").write_text(whole[: len(whole) // 2], encoding="utf-8")
    assert "the run was cut off there" in Outline(render(read_run(cut), {})).text


def test_unfinished_run_says_what_it_waits_for(run_dir: Path, tmp_path: Path) -> None:
    """A run that hit its deadline is headed by what the learner was waiting for."""
    late = copy_of(run_dir, tmp_path / "late")
    summary = json.loads((late / "summary.json").read_text(encoding="utf-8"))
    summary |= {"complete": False, "waiting_for": "workers"}
    (late / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert "did not finish: at its deadline the learner was waiting for workers" in render(read_run(late), {})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", "{", "not JSON"),
        ("summary.json", "[]", "expected a dict"),
        ("summary.json", "{}", "not a run of this version"),
        ("plan.json", '{"S": 1}', "not a run of this version"),
        ("config.toml", "name =", "not TOML"),
        ("log.jsonl", "nonsense\n", "log.jsonl:1"),
        ("log.jsonl", '{"no": "kind"}\n', "log.jsonl:1"),
        ("log.jsonl", '{"kind": "RunStarted", "t_s": Infinity}\n', "t_s = inf"),
        ("log.jsonl", '{"kind": "StopWorker", "t_s": 0, "worker_id": "w", "bound": "x"}\n', "log.jsonl:1"),
    ],
)
def test_broken_files_are_the_users_error(
    run_dir: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    """A broken file ends in one line that names it, and no page is left."""
    broken = copy_of(run_dir, tmp_path / "broken")
    (broken / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(said)):
        write_report(broken)
    assert not (broken / "report.html").exists()


def test_no_run_and_unwritable_out_are_the_users_error(run_dir: Path, tmp_path: Path) -> None:
    """A directory that is not there or empty, and an output that cannot be made, are refused in a line."""
    with pytest.raises(UserError, match="no such run directory"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=re.escape("summary.json")):
        read_run(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write"):
        write_report(run_dir, tmp_path / "file" / "out")


def test_importing_the_report_does_not_load_matplotlib() -> None:
    """Matplotlib is loaded when a figure is drawn."""
    code = "import sys, echo2.report, echo2.report.style; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_dearest_bar_of_the_step_cost_has_room_for_its_number(record: RunRecord) -> None:
    """Every bar ends inside the axes, and its number has the digits that the table gives it."""
    from echo2.report import style
    from echo2.report.costs import step_costs
    from echo2.report.figures import draw_costs
    from echo2.report.markup import num

    with style.drawing():
        axes = draw_costs(record).axes[0]
    rows = step_costs(record)
    assert [text.get_text().strip() for text in axes.texts] == [num(row.total) for row in rows]
    assert axes.get_xlim()[1] > 1.05 * max(row.total for row in rows)
