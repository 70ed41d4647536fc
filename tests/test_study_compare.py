"""Comparing two configurations: the test behind the verdict, what can be chosen, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_run import CommandLine
from scipy import stats

from echo2.study.compare import MEASURES, compare, p_value
from echo2.study.results import Group, Run

CONFIG = {"run.steps": 10}


def group(usd: list[float], first_seed: int = 0) -> Group:
    """Runs with these costs, one a seed."""
    runs = []
    for i, cost in enumerate(usd):
        measures = {"step_cost_usd": cost, "steps_per_s": 1.0, "learner_utilisation": 0.5}
        runs.append(Run("here", "simulated", first_seed + i, "v", CONFIG, measures))
    return Group(CONFIG, tuple(runs))


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration and a sweep of it, s.csv."""
    made = CommandLine(tmp_path, capsys)
    grid = ["--grid", "run.staleness=1,2", "--grid", "learner.step_s=60,120"]
    code, _, err = made("sweep", made.config, *grid, "--seeds", 3, "--out", tmp_path / "s.csv", "--jobs", 1)
    assert code == 0, err
    return made


def test_the_test_is_the_paired_t_test() -> None:
    """p is that of scipy's paired test over the common seeds, and a common shift is found in great noise."""
    noise = np.random.default_rng(3).normal(10.0, 3.0, 6)
    a, b = list(noise), list(noise + np.array([0.11, 0.1, 0.09, 0.1, 0.12, 0.1]))
    gap = compare(group(a), group(b), ("A", "B"))[0]
    assert gap.p == pytest.approx(stats.ttest_rel(b, a).pvalue)
    assert gap.better == "A" and gap.difference.low < 0.103 < gap.difference.high


def test_noise_is_not_a_winner() -> None:
    """Where the difference changes its sign from seed to seed nobody is better."""
    gap = compare(group([1.0, 1.2, 0.9, 1.1]), group([1.1, 1.1, 1.0, 1.0]), ("A", "B"))[0]
    assert gap.better == "" and "no more than noise (n = 4)" in gap.verdict


def test_few_false_alarms() -> None:
    """Of 400 pairs that differ by noise alone about one in twenty is called different."""
    rng = np.random.default_rng(0)
    alarms = sum(p_value(list(rng.normal(0.0, 1.0, 5))) < 0.05 for _ in range(400))
    assert 8 <= alarms <= 34  # 20 expected, 3 standard deviations


def test_one_seed_decides_nothing() -> None:
    """A single common seed shows a gap and says that its noise is unknown."""
    gap = compare(group([1.0]), group([2.0]), ("A", "B"))[0]
    assert gap.better == "" and gap.relative == 1.0 and "noise unknown" in gap.verdict


def test_only_common_seeds_count() -> None:
    """Seeds that one side alone has are left out."""
    gap = compare(group([1.0, 2.0, 3.0]), group([2.5, 3.5, 9.0], first_seed=1), ("A", "B"))[0]
    assert gap.difference.n == 2 and gap.difference.mean == pytest.approx(0.5)


def test_no_noise_at_all() -> None:
    """Equal runs are equal; a difference without any spread is no noise."""
    assert p_value([0.0, 0.0]) == 1.0 and p_value([0.5, 0.5]) == 0.0


def test_what_is_the_same_is_called_so() -> None:
    """A configuration against itself is the same, which is more than that no gap was found."""
    gaps = compare(group([1.0, 2.0, 3.0]), group([1.0, 2.0, 3.0]), ("a", "b"))
    assert {gap.verdict for gap in gaps} == {"the same (n = 3)"}


def test_more_is_better_where_it_is() -> None:
    """Less is better of USD, more of steps and utilisation."""
    assert [m.more_is_better for m in MEASURES] == [False, True, True]


def test_rows_of_a_sweep(echo2: CommandLine) -> None:
    """Two rows are found by their keys, compared over their seeds, and what differs is listed."""
    sweep = echo2.folder / "s.csv"
    a, b = f"{sweep}:run.staleness=2,learner.step_s=60", f"{sweep}:S=2,learner.step_s=120"
    code, out, err = echo2("compare", a, b, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["differs"] == {"learner.step_s": [60, 120]} and found["seeds"] == [0, 1, 2]
    table = pd.read_csv(sweep)
    mine = table[(table["S"] == 2) & (table["learner.step_s"] == 60)]
    assert found["gaps"][0]["a"] == pytest.approx(mine["step_cost_usd"].mean())
    assert found["gaps"][1]["better"] == "A" and found["gaps"][1]["p"] < 0.05
    _, text, _ = echo2("compare", a, b)
    assert "paired t-test" in text and "A is better (n = 3)" in text and "learner.step_s" in text


def test_run_directories(echo2: CommandLine) -> None:
    """A run directory is one run; a folder of them is one configuration with several seeds."""
    for step_s in (60, 90):
        for seed in (0, 1):
            out = echo2.folder / f"runs{step_s}" / str(seed)
            out.parent.mkdir(exist_ok=True)
            other = ["--set", f"learner.step_s={step_s}", "--seed", seed]
            code, _, err = echo2("simulate", echo2.config, *other, "--out", out)
            assert code == 0, err
    code, out, err = echo2("compare", echo2.folder / "runs60", echo2.folder / "runs90", "--json")
    assert code == 0 and json.loads(out)["seeds"] == [0, 1], err
    _, text, _ = echo2("compare", echo2.folder / "runs60" / "1", echo2.folder / "runs90" / "1")
    assert "noise unknown" in text and "--seeds" in text
    message = echo2.mistake("compare", echo2.folder / "runs60" / "0", echo2.folder / "runs90" / "1")
    assert "no common seed (seeds 0 against seeds 1)" in message
    code, _, err = echo2("compare", f"{echo2.folder}/s.csv:run.staleness=2,learner.step_s=60",
                         echo2.folder / "runs90")  # fmt: skip
    assert code == 0, err


def test_a_live_run_is_not_a_simulated_one(echo2: CommandLine) -> None:
    """Live against simulated is what `validate` is for, and compare says so."""
    out = echo2.folder / "run"
    echo2("simulate", echo2.config, "--out", out)
    summary = json.loads((out / "summary.json").read_text())
    live = echo2.folder / "live"
    live.mkdir()
    (live / "summary.json").write_text(json.dumps({**summary, "world": "live"}))
    (live / "config.toml").write_text((out / "config.toml").read_text())
    message = echo2.mistake("compare", out, live)
    assert "world differs (simulated and live)" in message and "echo2 validate" in message


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("s.csv", "s.csv:S=2", ["s.csv: 4 configurations, must be one", "run.staleness=1, 2"]),
        ("s.csv:S=7", "s.csv", ["no finished run has S = 7; it has 1, 2"]),
        ("s.csv:run.stalness=1", "s.csv", ["run.stalness", "nearest: run.staleness"]),
        ("s.csv:S", "s.csv", ["'S' must be KEY=VALUE", "s.csv:run.staleness=4"]),
        ("none", "s.csv", ["none: there is no such file or folder", "echo2 sweep", "run directory"]),
        ("", "s.csv", ["'': must be a sweep's table or a run directory"]),
        ("s.csv:S=[1", "s.csv", ["s.csv:S=[1: ", "not a value of TOML"]),
        (".", "s.csv", ["holds no summary.json", "echo2 simulate"]),
        (
            "s.csv:S=1,learner.step_s=60",
            "batch.csv:S=1,learner.step_s=60",
            ["batch.group_size differs (4 and 8)"],
        ),
    ],
)
def test_what_cannot_be_compared(
    echo2: CommandLine, monkeypatch: pytest.MonkeyPatch, a: str, b: str, words: list[str]
) -> None:
    """A side that is not there, is ambiguous or of another workload is one line with the key."""
    monkeypatch.chdir(echo2.folder)
    table = pd.read_csv("s.csv")
    other = [text.replace('"group_size": 4', '"group_size": 8') for text in table["config"]]
    table.assign(config=other).to_csv("batch.csv", index=False)
    message = echo2.mistake("compare", a, b)
    assert all(word in message for word in words), message


def test_a_difference_can_be_accepted(echo2: CommandLine) -> None:
    """--despite accepts a key that differs, and knows which there are."""
    table = pd.read_csv(echo2.folder / "s.csv")
    table.assign(version="older").to_csv(echo2.folder / "old.csv", index=False)
    sides = [f"{echo2.folder / name}:S=1,learner.step_s=60" for name in ("s.csv", "old.csv")]
    assert "version differs" in echo2.mistake("compare", *sides)
    code, out, _ = echo2("compare", *sides, "--despite", "version")
    assert code == 0 and "same configuration" in out
    assert "must be one of world, version" in echo2.mistake("compare", *sides, "--despite", "seed")
