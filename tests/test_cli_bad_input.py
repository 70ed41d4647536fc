"""Bad input on the command line: one line, no traceback, nothing half-written, and the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_run import SMALL, CommandLine

PLACES = [
    ("unknown key", ["run.stalness=3"], ["'stalness'", "did you mean 'staleness'"]),
    ("wrong unit", ["learner.uplink_mbps=10 Gbit/s"], ["'10 Gbit/s'", "Mbit/s (10^6 bit/s)"]),
    ("bit/s for Mbit/s", ["pool.a.uplink_mbps=9e8"], ["<= 1,000,000", "Mbit/s"]),
    ("negative rate", ["pool.a.uplink_mbps=-3"], ["-3", ">= 0.001"]),
    ("zero rate", ["pool.a.downlink_mbps=0"], [">= 0.001", "Mbit/s"]),
    ("zero decode rate", ["pool.a.tokens_per_s=0", "pool.a.slots=2"], [">= 0.01"]),
    ("empty pool", ["pool=[]"], ["[[pool]]"]),
    ("no workers", ["pool.a.count=0"], [">= 1"]),
    ("S < 0", ["run.staleness=-1"], ["-1", ">= 0"]),
    ("kappa > S + 1", ["run.publish_period=4"], ["S + 1 = 3", "never published"]),
    ("group does not divide", ["batch.group_size=5"], ["divide", "16"]),
    ("unknown region", ["pool.a.region=aws:us-east-9"], ["aws:us-east-9", "aws:us-east-1"]),
    ("unknown GPU", ["pool.a.gpu=RTX 5099"], ["RTX 5099", "RTX 5090", "or give tokens_per_s and slots"]),
    ("price of nearly 0", ["pool.a.price_usd_per_h=0.01"], ["0.01", "0.02", "not a bargain"]),
    ("learner price of nearly 0", ["learner.price_usd_per_gpu_h=0.01"], ["0.01", ">= 0.02", "USD"]),
    ("GPU too small", ["rollout.tokens=90000", "rollout.max_tokens=90000"], ["KV cache", "max_tokens <="]),
]


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration."""
    return CommandLine(tmp_path, capsys)


@pytest.mark.parametrize(("sets", "words"), [place[1:] for place in PLACES], ids=[p[0] for p in PLACES])
def test_bad_value(echo2: CommandLine, sets: list[str], words: list[str]) -> None:
    """Each bad value ends plan and simulate with exit code 2 and one line naming value and fix."""
    options = [part for text in sets for part in ("--set", text)]
    message = echo2.mistake("plan", echo2.config, *options)
    # The option is blamed, or the file where the value that must change is the file's.
    assert message.startswith("error: --set ") != ("small.toml" in message)
    for word in words:
        assert word in message, message
    out = echo2.folder / "run"
    assert echo2.mistake("simulate", echo2.config, *options, "--out", out) == message
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["small.toml"]


def test_bad_value_in_the_file(echo2: CommandLine) -> None:
    """A bad value in the file itself is named with the file."""
    echo2.config.write_text(SMALL.replace("count = 3", "count = 3\nregoin = 1"))
    message = echo2.mistake("plan", echo2.config)
    assert f"{echo2.config}: unknown key 'regoin' in section [pool.a]; did you mean 'region'?" in message


def test_missing_file(echo2: CommandLine) -> None:
    """A configuration that is not there is answered with how to make one."""
    assert "echo2 init" in echo2.mistake("plan", echo2.folder / "none.toml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "Missing argument"),
        (["plna"], "plna"),
        (["plan", "x.toml", "--sead", "3"], "--sead"),
        (["simulate", "x.toml", "--seed", "-3"], "-3"),
        (["simulate", "x.toml", "--seed", "three"], "three"),
        (["traces", "show", "bamboo-p4"], "bamboo-p3"),
        (["traces", "--kind", "links"], "link"),
        (["replay", "nowhere"], "nowhere"),
    ],
)
def test_bad_command_line(echo2: CommandLine, arguments: list[str], words: str) -> None:
    """A wrong command, option or argument is one line and exit code 2 as well."""
    assert words in echo2.mistake(*arguments)


def test_trace_shorter_than_the_run_is_reported(echo2: CommandLine) -> None:
    """A trace shorter than the run repeats, and plan and simulate say so."""
    options = ["--set", "pool.a.availability=bamboo-p3", "--set", "run.steps=2000"]
    code, out, _ = echo2("plan", echo2.config, *options)
    assert code == 0 and "shorter than the run" in " ".join(out.split())


def test_own_trace_with_a_bad_row(echo2: CommandLine) -> None:
    """A bad row of the user's own trace is refused with key, file, row and value."""
    (echo2.folder / "mine.csv").write_text("trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\nx,0,-5,5,10,1\n")
    message = echo2.mistake("plan", echo2.config, "--set", "pool.a.link_shape=mine.csv")
    assert "pool.a.link_shape" in message and "mine.csv row 1" in message and "-5" in message


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["pool.a.market=on_demand"], ["pool.a.market = 'on_demand'", "'salad'", "set market = "]),
        (
            ["pool.a.provider=nowhere"],
            ["pool.a.provider = 'nowhere'", "known at ", "salad", "price_usd_per_h"],
        ),
        (["pool.a.gpu=RTX 3060", "pool.a.price_usd_per_h=1"], ["pool.a.gpu", "tokens_per_s and slots"]),
        (["model.name=mine", "model.snapshot_gb=1"], ["model.name = 'mine'", "tokens_per_s and slots"]),
        (["policy.margin=inf"], ['policy.margin = inf: must be "auto" or a number >= 1 and <= 10']),
        (["run.staleness=4.0"], ["run.staleness = 4.0"]),
        (["pool.a.count=200000"], ["pool.a.count = 200000", "<= 4096"]),
        (["run.steps=99999999999999999999"], ["<= 1,000,000"]),
        (["seed=99999999999999999999"], ["seed = 99999999999999999999"]),
        (["batch.rollouts_per_step=8000000"], ["<= 65,536"]),
        (["a.b=3"], ["--set a.b=3: unknown key 'a'"]),
        (["policy.margin=1e300"], ["policy.margin = 1e+300", "<= 10"]),
        (["learner.step_s=0.001"], ["learner.step_s = 0.001", ">= 0.01", "seconds"]),
        (["policy.review_s=1e-9"], ["policy.review_s", ">= 1"]),
        (["learner.gpus=5000"], ["learner.gpus = 5000", "<= 4096"]),
        (
            ["learner.provider=aws"],
            ["learner.provider = 'aws'", "digitalocean", "or give learner.price_usd_per_gpu_h"],
        ),
        (
            ["run.system=colocated", "learner.gpu=my chip", "learner.price_usd_per_gpu_h=1"],
            ["learner.gpu = 'my chip'"],
        ),
        (
            ["run.system=datacentre-async", "learner.step_s=0.01", "batch.rollouts_per_step=65536"],
            ["run.system", "4,096", "learner.step_s"],
        ),
    ],
)
def test_the_key_that_is_wrong_is_named(echo2: CommandLine, sets: list[str], words: list[str]) -> None:
    """The message blames the key that must be changed, and its fix is one that the file can express."""
    message = echo2.mistake("plan", echo2.config, *(part for text in sets for part in ("--set", text)))
    assert all(word in message for word in words), message


def test_too_many_workers_in_all(echo2: CommandLine) -> None:
    """Pools that are each small enough may be too many together."""
    second = SMALL[SMALL.index("[[pool]]") :].replace('"a"', '"b"')
    echo2.config.write_text(SMALL + second)
    message = echo2.mistake("plan", echo2.config, "--set", "pool.*.count=4000")
    assert "8,000 workers in all" in message and "4,096" in message


def test_a_log_that_was_cut_or_is_none(echo2: CommandLine) -> None:
    """Replay notices a log cut between two events, and one that is not text."""
    run = echo2.folder / "run"
    assert echo2("simulate", echo2.config, "--out", run)[0] == 0
    lines = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    (run / "log.jsonl").write_bytes(b"".join(lines[:-1]))
    code, out, _ = echo2("replay", run)
    assert code == 1 and "cut off" in out
    (run / "log.jsonl").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in echo2.mistake("replay", run)


def test_gpus_and_model_given_by_hand(echo2: CommandLine) -> None:
    """GPUs and a model outside of the tables work when their rates, prices and sizes are given."""
    sets = [
        "model.name=mine", "model.snapshot_gb=2", "learner.gpu=My Chip", "learner.price_usd_per_gpu_h=2",
        "pool.a.gpu=Other Chip", "pool.a.tokens_per_s=900", "pool.a.slots=16", "pool.a.price_usd_per_h=0.3",
    ]  # fmt: skip
    options = [part for text in sets for part in ("--set", text)]
    code, out, err = echo2("plan", echo2.config, *options, "--json")
    assert code == 0, err
    assert json.loads(out)["workers"][0]["gpu"] == "Other Chip"
    assert echo2("simulate", echo2.config, *options)[0] == 0
    message = echo2.mistake("plan", echo2.config, *options[:-2])
    assert "pool.a.gpu = 'Other Chip'" in message and "give its price, pool.a.price_usd_per_h" in message


def test_a_matrix_of_ones_own_is_found_beside_the_configuration(echo2: CommandLine) -> None:
    """A path in network.epoch counts from the configuration's folder, like those of all traces."""
    message = echo2.mistake("plan", echo2.config, "--set", "network.epoch=mine.csv")
    assert str(echo2.folder / "mine.csv") in message


def test_an_unfinished_run_says_how_far_it_came(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that ends at its deadline warns with the steps done and what it waited for."""
    monkeypatch.setattr("echo2.sim.world.World.run", lambda world, deadline_s: False)
    code, _, err = echo2("simulate", echo2.config)
    assert code == 0 and err.startswith("warning: the run did not finish: 0 of 4 steps; then it waited for ")


def test_the_start_up_is_told_apart(echo2: CommandLine) -> None:
    """Utilisation of a short run stands beside that after its start-up, in the table and in the JSON."""
    arguments = ["simulate", echo2.config, "--set", "pool.a.startup_s=600", "--set", "run.steps=6"]
    result = json.loads(echo2(*arguments, "--json")[1])
    start = result["startup"]
    assert start["steps"] >= 1 and start["seconds"] >= 600
    assert start["learner_utilisation"] > result["learner_utilisation"] + 0.2
    flat = " ".join(echo2(*arguments)[1].split())
    assert (
        f"start-up {start['steps']} step" in flat and f"{start['learner_utilisation']:.1%} after it" in flat
    )


def test_a_name_is_shown_as_it_is(echo2: CommandLine) -> None:
    """Brackets in a name are text, not markup of the tables."""
    code, out, err = echo2("plan", echo2.config, "--set", 'name="[/] [red]x[/red]"')
    assert code == 0 and "Plan of [/] [red]x[/red]" in out, err


def test_the_hint_to_replay_can_be_pasted(echo2: CommandLine) -> None:
    """The command that simulate names at the end is quoted where its folder has a blank."""
    folder = echo2.folder / "my run"
    out = echo2("simulate", echo2.config, "--out", folder)[1]
    assert out.endswith(f"echo2 replay '{folder}'\n")


def test_a_run_too_short_to_need_a_snapshot_is_pointed_out(echo2: CommandLine) -> None:
    """A run of S + 1 steps, which no snapshot can slow down, has a warning; a longer one has none."""
    code, _, err = echo2("simulate", echo2.config, "--set", "run.steps=3")
    assert code == 0 and err.startswith("warning: run.steps = 3: the first S + 1 = 3 steps may train on")
    assert echo2("simulate", echo2.config)[2] == ""
