"""The commands, run in this process: what they print and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_run import CommandLine

from echo2.config import load

PLAN_KEYS = {
    "smallest_feasible_S", "S", "kappa", "mu_needed", "mu_active", "workers", "learner_utilisation",
    "steps_per_s", "step_cost_usd", "t_bcast_s", "broadcast", "activation", "upper_bound_steps_per_s",
    "answers", "prices", "notes",
}  # fmt: skip
SIMULATE_KEYS = {
    "steps", "wall_s", "steps_per_s", "learner_utilisation", "step_cost_usd", "staleness", "dropped_share",
    "bcast_tail_s", "events", "elapsed_s", "upper_bound_steps_per_s", "plan",
}  # fmt: skip


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration."""
    return CommandLine(tmp_path, capsys)


def test_init_writes_a_plan_that_works(echo2: CommandLine) -> None:
    """What init writes can be planned as it is, and is not overwritten."""
    path = echo2.folder / "new.toml"
    code, out, _ = echo2("init", path)
    assert code == 0 and str(path) in out
    assert "# " in path.read_text()
    code, out, err = echo2("plan", path, "--json")
    assert code == 0 and json.loads(out)["learner_utilisation"] > 0.9, err
    assert "exists already" in echo2.mistake("init", path)
    assert echo2("init", path, "--force")[0] == 0


def test_plan_json_is_alone_and_complete(echo2: CommandLine) -> None:
    """plan --json prints one JSON object with the promised keys and nothing else."""
    code, out, err = echo2("plan", echo2.config, "--json")
    assert code == 0 and err == ""
    plan = json.loads(out)
    assert set(plan) >= PLAN_KEYS
    assert {"topology", "time_s", "bound_s", "ratio", "egress_usd"} <= set(plan["broadcast"])
    assert {"cost_usd_per_h", "bound_usd_per_h", "ratio"} <= set(plan["activation"])
    assert plan["prices"][1]["date"] == "2026-05-24"


def test_plan_fits_100_columns_and_shows_bounds(echo2: CommandLine) -> None:
    """The printed plan fits 100 columns and shows bound, ratio, baseline and the age of prices."""
    code, out, _ = echo2("plan", echo2.config)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 100
    flat = " ".join(out.split())
    for word in ("bound", "ratio", "star:", "all on:", "days old", "2026-05-24", "What binds"):
        assert word in flat, word


def test_plan_out_equals_json(echo2: CommandLine) -> None:
    """plan --out writes what plan --json prints."""
    path = echo2.folder / "plan.json"
    code, out, _ = echo2("plan", echo2.config, "--json", "--out", path)
    assert code == 0 and json.loads(path.read_text()) == json.loads(out)
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["plan.json", "small.toml"]


@pytest.mark.parametrize("command", ["plan", "simulate", "topology"])
def test_dry_run_prints_the_resolved_file(echo2: CommandLine, command: str) -> None:
    """--dry-run prints TOML that loads to the same configuration, overrides in, and runs nothing."""
    code, out, err = echo2(command, echo2.config, "--dry-run", "--set", "pool.a.count=2")
    assert (code, err) == (0, "")
    again = echo2.folder / "again.toml"
    again.write_text(out)
    assert load(again).config == load(echo2.config, ["pool.a.count=2"]).config
    assert load(again).config.pool[0].count == 2


def test_simulate_json_is_alone_and_complete(echo2: CommandLine) -> None:
    """simulate --json prints one JSON object with the promised keys; it never beats its upper bound."""
    code, out, _ = echo2("simulate", echo2.config, "--json", "--seed", 5)
    assert code == 0
    result = json.loads(out)
    assert set(result) >= SIMULATE_KEYS and result["seed"] == 5
    assert result["steps"] == 4 and result["steps_per_s"] <= result["upper_bound_steps_per_s"] * 1.05
    assert result["staleness"]["max"] <= 2


def test_simulate_out_can_be_replayed(echo2: CommandLine) -> None:
    """simulate --out writes a run folder from which the same decisions come again."""
    run = echo2.folder / "run"
    code, out, _ = echo2("simulate", echo2.config, "--out", run, "--set", "seed=3")
    assert code == 0 and max(len(line) for line in out.splitlines() if str(run) not in line) <= 100
    assert sorted(p.name for p in run.iterdir()) == [
        "broadcasts.jsonl",
        "config.toml",
        "log.jsonl",
        "plan.json",
        "summary.json",
        "trace.json",
    ]
    assert load(run / "config.toml").config.seed == 3
    code, out, _ = echo2("replay", run, "--json")
    report = json.loads(out)
    assert code == 0 and report["equal"] and report["facts"] > 50 and report["decisions"] > 10
    assert "exists already" in echo2.mistake("simulate", echo2.config, "--out", run)


def test_replay_finds_a_changed_decision(echo2: CommandLine) -> None:
    """A log with one decision changed is reported with the line, exit code 1."""
    run = echo2.folder / "run"
    echo2("simulate", echo2.config, "--out", run)
    log = run / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"kind":"TrainStep"' in line)
    lines[at] = lines[at].replace('"version":0', '"version":7')
    log.write_text("".join(lines))
    code, out, _ = echo2("replay", run)
    assert code == 1 and f"line {at + 1}" in out


def test_same_seed_same_run(echo2: CommandLine) -> None:
    """Two simulations with one seed write the same log to the byte, another seed a different one."""
    logs = []
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        echo2("simulate", echo2.config, "--out", echo2.folder / name, "--seed", seed)
        logs.append((echo2.folder / name / "log.jsonl").read_bytes())
    assert logs[0] == logs[1] != logs[2]


def test_topology_shows_all_candidates_against_the_bounds(echo2: CommandLine) -> None:
    """topology lists every candidate with its ratio (>= 1) to the sharpest bound, the LP's beside it."""
    code, out, _ = echo2("topology", echo2.config, "--all", "--json")
    result = json.loads(out)
    assert code == 0 and result["receivers"] == 3
    assert {"star", "chain", "tree", "stripes"} <= {plan["topology"] for plan in result["candidates"]}
    assert all(plan["ratio"] >= 0.999 for plan in result["candidates"])
    assert result["bounds_s"]["lp"] >= result["bounds_s"]["fluid"] * 0.999
    code, out, _ = echo2("topology", echo2.config, "--all")
    assert code == 0 and "LP" in out and max(len(line) for line in out.splitlines()) <= 100


def test_traces_are_listed_and_shown(echo2: CommandLine) -> None:
    """traces lists ids with their source; show sums one up and draws it."""
    code, out, _ = echo2("traces", "--json")
    listed = json.loads(out)
    assert code == 0 and {"bamboo-p3", "r1-client_35"} <= {entry["trace_id"] for entry in listed}
    assert all(entry["licence"] and entry["source"] for entry in listed)
    code, out, _ = echo2("traces")
    assert code == 0 and "bamboo-p3" in out and max(len(line) for line in out.splitlines()) <= 100
    picture = echo2.folder / "p.png"
    code, out, _ = echo2("traces", "show", "bamboo-p3", "--out", picture)
    assert code == 0 and picture.read_bytes()[:4] == b"\x89PNG" and "MIT" in out


def test_infeasible_plan_ends_with_3_and_the_remedy(echo2: CommandLine) -> None:
    """A plan that cannot be met ends with exit code 3 and what would make it work, in one line."""
    message = echo2.mistake("plan", echo2.config, "--set", "learner.step_s=1", code=3)
    assert "infeasible" in message and "S" in message and "best_effort" in message


def test_simulate_of_an_infeasible_plan_warns_and_goes_on(echo2: CommandLine) -> None:
    """simulate does the best that can be done where plan refuses, and says so on stderr."""
    code, out, err = echo2("simulate", echo2.config, "--set", "learner.step_s=1", "--json")
    assert code == 0 and json.loads(out)["steps"] == 4
    assert err.startswith("warning: ") and "infeasible" in err and err.count("\n") == 1
