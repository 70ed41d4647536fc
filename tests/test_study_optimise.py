"""The search for the cheapest run: it finds what a grid finds, keeps its promises, and says why."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from cli_run import SMALL, CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.config import load, parse
from echo2.study import candidate
from echo2.study.candidate import AUTO, Candidate, Plans, applied, rebased
from echo2.study.neighbours import periods, staleness_choices
from echo2.study.objective import Objective, Outcome
from echo2.study.simulated import run_one

# A slow link, and two pools of which the dear one is not needed.
TWO = (
    SMALL.replace("steps = 4", "steps = 6").replace("staleness = 2", "staleness = 3")
    + 'price_usd_per_h = 0.4\n[[pool]]\nname = "dear"\ngpu = "RTX 5090"\ncount = 3\nprovider = "salad"\n'
    'region = "aws:us-west-2"\nuplink_mbps = 300\ndownlink_mbps = 300\nprice_usd_per_h = 1.1\n'
)


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration of two pools."""
    made = CommandLine(tmp_path, capsys)
    made.config.write_text(TWO, encoding="utf-8")
    return made


def test_it_beats_or_equals_a_grid_with_a_tenth_of_its_simulations(echo2: CommandLine) -> None:
    """The winner costs no more than the best of a grid over S, kappa, topology, codec, ten times as long."""
    loaded = load(echo2.config)
    base = candidate.given(loaded.config)
    grid = [
        Candidate(S, kappa, way, ratio, AUTO, base.pools)
        for S in (1, 2, 3)
        for kappa in range(1, S + 1)
        for way in ((), ("star",), ("stripes",), ("chain",), ("regional",))
        for ratio in (1.0, 30.0)
    ]
    costs = []
    for i, point in enumerate(grid):
        config = applied(loaded.config, point, True)
        costs.append(run_one((i, type(loaded)(config, loaded.base_dir, "grid")))[1].usd_per_step)
    most = len(grid) // 10
    code, out, err = echo2("optimise", echo2.config, "--delta-ratio", "1,30", "--simulations", most, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["simulations"] <= most == 6
    assert found["winner"]["usd_per_step"] <= min(costs) * (1 + 1e-9)


def test_the_winners_file_gives_the_winners_cost(echo2: CommandLine) -> None:
    """`echo2 simulate` of the saved TOML, from another folder, gives to the digit what the search said."""
    own = echo2.folder / "mine.csv"
    own.write_text("trace_id,t_s,down_ratio,up_ratio,ok\ns,0,0.5,0.5,1\ns,9,1,1,1\n")
    (echo2.folder / "elsewhere").mkdir()
    out = echo2.folder / "elsewhere" / "best.toml"
    flags = ["--set", "pool.a.link_shape=mine.csv", "--simulations", 3]
    code, printed, err = echo2("optimise", echo2.config, *flags, "--out", out, "--json")
    assert code == 0, err
    winner = json.loads(printed)["winner"]
    simulated = json.loads(echo2("simulate", out, "--json")[1])
    assert simulated["step_cost_usd"] == winner["usd_per_step"]
    saved = tomllib.loads(out.read_text())
    assert saved["run"]["staleness"] == winner["S"] == simulated["plan"]["S"]
    assert saved["run"]["publish_period"] == winner["kappa"]
    assert {pool["name"]: pool["count"] for pool in saved["pool"]} == {
        name: count for name, count in winner["pools"].items() if count
    }


def test_the_winner_is_the_first_and_has_reasons(echo2: CommandLine) -> None:
    """The list is sorted by the objective, the cheap pool is preferred, and the table says why."""
    code, out, err = echo2("optimise", echo2.config, "--simulations", 4, "--json")
    assert code == 0, err
    found = json.loads(out)
    values = [row["value"] for row in found["simulated"]]
    assert values == sorted(values) and found["winner"] == found["simulated"][0]
    assert "staleness" in found["winner"]["front"] or "wall" in found["winner"]["front"]
    assert any(" a: " in reason and "USD" in reason for reason in found["reasons"])
    assert not any("dear" in reason and " of 3 dear" in reason for reason in found["reasons"])
    code, text, _ = echo2("optimise", echo2.config, "--simulations", 2)
    assert code == 0 and "Why the first" in text and "2 simulated runs" in text


def test_seeds_and_processes_change_nothing_but_the_means(echo2: CommandLine) -> None:
    """With two seeds a finalist is their mean; two processes find what one does."""
    words = ["optimise", echo2.config, "--simulations", 3, "--seeds", 2, "--json"]
    outputs = [echo2(*words, "--jobs", jobs)[1] for jobs in (1, 2)]
    assert outputs[0] == outputs[1]
    found = json.loads(outputs[0])
    assert found["simulations"] == 2 and found["winner"]["seeds"] == 2


def test_a_deadline_is_kept(echo2: CommandLine) -> None:
    """Under a deadline the winner finishes in time, and costs no less than without one."""
    words = ["optimise", echo2.config, "--simulations", 4, "--json"]
    free = json.loads(echo2(*words)[1])["winner"]
    deadline = 1.2 * free["wall_h"]
    code, out, err = echo2(*words, "--deadline-h", deadline)
    assert code == 0, err
    found = json.loads(out)["winner"]
    assert found["wall_h"] <= deadline and found["usd_per_step"] >= free["usd_per_step"] - 1e-12


def test_the_wall_hour(echo2: CommandLine) -> None:
    """USD per wall hour is cost per step times steps per hour, and is what is sorted by when asked for."""
    code, out, err = echo2("optimise", echo2.config, "--objective", "wall-hour", "--simulations", 3, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["objective"] == "USD per wall hour"
    for row in found["simulated"]:
        assert row["value"] == pytest.approx(row["usd_per_step"] * row["steps_per_h"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--objective", "beauty"], 2, ["--objective beauty", "step or wall-hour"]),
        (["--deadline-h", "0.01"], 3, ["--deadline-h 0.01: 6 steps of 60 s", "0.1 h"]),
        (["--deadline-h", "0.1001", "--set", "pool.a.count=1", "--set", "pool.dear.count=1"], 3,
         ["--deadline-h 0.1001", "the fastest finalist takes", "in simulation"]),
        (["--deadline-h", "0.15", "--set", "pool.*.speed=0.02"], 3,
         ["--deadline-h 0.15", "the fastest plan takes", "more workers in the pools"]),
        (["--deadline-h", "-1"], 2, ["--deadline-h -1: must be > 0"]),
        (["--deadline-h", "nan"], 2, ["--deadline-h nan: must be > 0"]),
        (["--out", "."], 2, ["--out .: is a folder"]),
        (["--out", "no-such-folder/best.toml"], 2, ["--out no-such-folder/best.toml", "make its folder"]),
        (["--seed", "4294967295", "--seeds", "2"], 2, ["--seeds 2: seeds must be <= 4,294,967,295"]),
        (["--staleness", "two"], 2, ["--staleness two", "whole numbers of 0 to 1,000"]),
        (["--staleness", "-1"], 2, ["--staleness -1"]),
        (["--delta-ratio", "0.5"], 2, ["--delta-ratio 0.5", "1 to 10,000"]),
        (["--delta-ratio", ""], 2, ["--delta-ratio"]),
        (["--simulations", "0"], 2, ["--simulations 0", ">= 1"]),
        (["--seeds", "9", "--simulations", "4"], 2, ["--seeds 9", "--simulations 4"]),
        (["--set", "run.system=colocated"], 2, ["run.system = 'colocated'", '"echo2"']),
        (["--set", "pool.a.gpu=RTX 5099"], 2, ["RTX 5099"]),
    ],
)  # fmt: skip
def test_bad_questions(echo2: CommandLine, arguments: list[str], code: int, words: list[str]) -> None:
    """What cannot be searched is one line with the value and what to do."""
    message = echo2.mistake("optimise", echo2.config, *arguments, code=code)
    assert all(word in message for word in words), message


@given(S=st.integers(0, 40), kappa=st.integers(1, 41))
def test_periods_are_possible(S: int, kappa: int) -> None:
    """Every neighbouring publication period is one that S allows, and another than the one here."""
    found = periods(S, kappa)
    assert all(1 <= k <= max(1, S) and k != kappa for k in found)


@given(most=st.integers(0, 1000))
def test_values_of_s_end_at_the_configurations(most: int) -> None:
    """S is searched up to the configuration's and no further, in few values."""
    found = staleness_choices(most)
    assert found[-1] == most and len(found) <= 12 and list(found) == sorted(set(found))
    assert staleness_choices(most, [5, 3, 5]) == (3, 5)


@settings(max_examples=25)
@given(
    S=st.integers(0, 6), ratio=st.sampled_from([1.0, 7.5, "measured"]), margin=st.sampled_from([AUTO, 1.25]),
    counts=st.tuples(st.integers(0, 3), st.integers(1, 3)), way=st.sampled_from([(), ("star",), ("chain",)]),
)  # fmt: skip
def test_a_candidate_survives_its_file(
    S: int, ratio: float, margin: float, counts: tuple[int, int], way: tuple[str, ...]
) -> None:
    """A candidate applied to a configuration, written and read again, is the same candidate."""
    from echo2.config import dumps

    base = parse(tomllib.loads(TWO), "two")
    pools = (("a", counts[0]), ("dear", counts[1]))
    wanted = Candidate(S, min(S + 1, 2), way, ratio, margin, pools)  # type: ignore[arg-type]
    again = parse(tomllib.loads(dumps(applied(base, wanted))), "again")
    found = candidate.given(again)
    assert found.differs(wanted) == ([] if all(counts) else ["pools"])
    assert dict(found.pools) == {name: count for name, count in pools if count}


def test_each_candidate_is_planned_once(echo2: CommandLine) -> None:
    """Asking again costs no plan; a kappa left open and the same one given are one candidate."""
    plans = Plans(load(echo2.config))
    open_ = Candidate(2, 0, (), 1.0, AUTO, (("a", 3), ("dear", 3)))
    first = plans.plan(open_)
    assert plans.plan(open_) is first and plans.number == 1
    assert plans.plan(first.candidate).candidate == first.candidate and len(plans.all) == 1


def test_a_measured_delta_is_of_the_steps_between_versions(echo2: CommandLine) -> None:
    """With measured deltas the plan is made for the size at its own kappa: larger if further apart."""
    plans = Plans(load(echo2.config))
    sizes = [
        plans.problem(Candidate(3, kappa, (), "measured", AUTO, (("a", 3), ("dear", 3)))).snapshot_bytes
        for kappa in (1, 3)
    ]
    assert sizes[0] < sizes[1]
    made = plans.plan(Candidate(3, 0, (), "measured", AUTO, (("a", 3), ("dear", 3))))
    assert plans.problem(made.candidate).publish_period == made.plan.kappa


def test_unfinished_and_late_runs_do_not_count() -> None:
    """A run that did not end, or not in time, is worth nothing whatever it costs."""
    fine = Outcome(1.0, 30.0, 2.0, 0.9, 1.5, 4, True)
    assert Objective("step", 10).of_outcome(fine) == 1.0
    assert Objective("wall-hour", 10).of_outcome(fine) == 30.0
    assert math.isinf(Objective("step", 10, 1.9).of_outcome(fine))
    assert math.isinf(Objective("step", 10).of_outcome(Outcome(1.0, 30.0, 2.0, 0.9, 1.5, 4, False)))


def test_paths_lead_where_they_led() -> None:
    """Relative paths of a configuration are rewritten for another folder; ids and absolute paths stay."""
    table = tomllib.loads(TWO)
    table["pool"][0] |= {"link_shape": "own/x.csv#s", "availability": "bamboo-p3"}
    table["train"] = {"model": "weights"}
    config = rebased(parse(table, "two"), Path("one"), Path("one/two"))
    assert config.pool[0].link_shape == "../own/x.csv#s" and config.pool[0].availability == "bamboo-p3"
    assert config.train.model == "../weights"
