"""The JSON form of facts and decisions, the run log, and replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.policy import decisions, facts, wire
from echo2.policy.generation import TokenLengths
from echo2.sim.log import replay
from echo2.sim.run import simulate
from echo2.testing import equal_workers, small_world

HEAVY = TokenLengths(np.array([100.0, 1500.0]), np.array([300.0, 6000.0]), np.array([0.8, 0.2]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, FINITE)

RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_wire import world
from echo2.sim.run import simulate
simulate(world(), 3, keep_log=True).write(Path({out!r}))
"""


def world() -> Any:
    """A world with most kinds of facts in it: heavy lengths, slow links, uneven workers."""
    workers = equal_workers(5, lengths=HEAVY, speedups=(1.0, 0.4), startup_s=20.0, downlink_bps=5e8)
    return small_world(workers, lengths=HEAVY, S=3, kappa=2, learner_cv=0.2, activation="cost")


@given(st.one_of(*(st.from_type(cls) for cls in (*get_args(facts.Fact), *get_args(decisions.Decision)))))
def test_every_fact_and_decision_survives_the_round_trip(message: wire.Message) -> None:
    """What is written is read back equal, and written again it is the same bytes."""
    line = wire.dumps(message)
    assert wire.loads(line) == message
    assert wire.dumps(wire.loads(line)) == line


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "not JSON"),
        ('{"kind":"Nonsense"}', "Nonsense"),
        ('{"kind":"RunStarted","t_s":0.0,"version":0,"x":1}', "'x'"),
        ('{"kind":"RunStarted","t_s":"0","version":0}', "RunStarted.t_s"),
        ('{"kind":"RunStarted","t_s":NaN,"version":0}', "finite"),
        ('{"kind":"RunStarted","t_s":1e999,"version":0}', "finite"),
        ('{"kind":"RunStarted","t_s":0.0,"version":true}', "RunStarted.version"),
        ('{"kind":"RolloutFinished","t_s":0.0}', "missing"),
        ('{"kind":"TrainStep","t_s":0.0,"version":0,"group_ids":3}', "group_ids"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_by_name(line: str, named: str) -> None:
    """A line of unknown kind, field or type is refused with what is wrong with it."""
    with pytest.raises(wire.WireError, match=named.replace("(", r"\(")):
        wire.loads(line)


def test_a_number_that_is_not_finite_is_refused() -> None:
    """NaN and infinity have no JSON form."""
    with pytest.raises(wire.WireError, match="not finite"):
        wire.dumps(facts.RunStarted(float("nan")))


def test_replay_gives_the_same_decisions(tmp_path: Path) -> None:
    """The facts of a simulated run, fed to a fresh scheduler, give every decision to the byte."""
    result = simulate(world(), 3, keep_log=True)
    result.write(tmp_path)
    report = replay(tmp_path / "log.jsonl")
    assert report.equal and report.facts == result.world.facts
    assert report.decisions == result.world.decisions > 100


def test_decisions_do_not_depend_on_the_process_or_the_hash_seed(tmp_path: Path) -> None:
    """Runs in processes with different hash seeds write the same log to the byte."""
    logs = []
    for hash_seed in ("1", "77"):
        out = tmp_path / hash_seed
        code = RUN.format(tests=str(Path(__file__).parent), out=str(out))
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=120)
        logs.append((out / "log.jsonl").read_bytes())
    assert logs[0] == logs[1]


def test_replay_finds_a_changed_decision(tmp_path: Path) -> None:
    """A decision altered in the log is reported with its line and both versions."""
    simulate(world(), 3, keep_log=True).write(tmp_path)
    path = tmp_path / "log.jsonl"
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"kind":"StartGroup"' in line)
    changed = json.loads(lines[at])
    changed["worker_id"] = "someone-else"
    lines[at] = json.dumps(changed, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n")
    report = replay(path)
    assert not report.equal and f"line {at + 1}" in report.first_difference
    assert "someone-else" in report.first_difference


def test_a_log_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    """A truncated last line is the user's problem, told by line number."""
    simulate(world(), 3, keep_log=True).write(tmp_path)
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="not a line of a run log"):
        replay(path)
