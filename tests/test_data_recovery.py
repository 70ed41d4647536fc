"""Crashes: what was acknowledged survives, nothing is trained twice, and a checkpoint rules what is kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.rollout import Rollout, Segment
from echo2.runtime.data.states import EDGES, LedgerError, Outcome, State, Ticket

SIZE, BOUND = 2, 3


def rollout(ticket: Ticket, version: int) -> Rollout:
    return Rollout(
        ticket.rollout_id,
        ticket.group_id,
        ticket.index,
        ticket.prompt,
        ticket.attempt,
        ticket.worker_id,
        prompt_ids=(1,),
        token_ids=(ticket.group_id % 7, ticket.index),
        logprobs=(-0.5, -0.25),
        segments=(Segment(0, version),),
        finish_reason="stop",
        reward=0.5,
    )


def fill(ledger: Ledger, group: int, version: int, prompt: int | None = None) -> None:
    """A finished group."""
    tickets = [Ticket(group, i, group if prompt is None else prompt, 0, "w") for i in range(SIZE)]
    ledger.dispatch(tickets)
    ledger.finish([rollout(t, version) for t in tickets])


def step(ledger: Ledger, version: int, *groups: int) -> list[Rollout]:
    """A whole train step."""
    batch = ledger.claim(version, groups, BOUND)
    ledger.commit(version, version + 1)
    return batch


def test_a_crash_before_the_commit_leaves_no_trace_of_the_step(tmp_path: Path) -> None:
    """After a crash between claim and commit the same rollouts are handed out again, all of them."""
    ledger = Ledger(tmp_path / "l.db")
    fill(ledger, 0, 0)
    batch = ledger.claim(0, [0], BOUND)
    ledger.close()
    with Ledger(tmp_path / "l.db") as again:
        recovery = again.recover(0)
        assert (recovery.finished_groups, recovery.rolled_back, again.claimed) == ((0,), 0, None)
        assert step(again, 0, 0) == batch


def test_steps_above_the_checkpoint_are_unmade(tmp_path: Path) -> None:
    """Rolled back to version 1 of 3: its batch is trained again, what later versions made is given up."""
    with Ledger(tmp_path / "l.db") as ledger:
        for group, version in ((0, 0), (1, 1), (2, 2), (3, 3), (4, 1)):
            fill(ledger, group, version)
            if version < 3 and group < 3:
                step(ledger, version, group)
        recovery = ledger.recover(1)
        assert (ledger.version, recovery.finished_groups, recovery.rolled_back) == (1, (1, 4), 4)
        assert recovery.prompts_again == ((2, 0), (3, 0))
        assert (recovery.next_prompt, recovery.next_group_id, recovery.requeued) == (5, 5, 4)
        assert {e.state for e in ledger.entries(group_id=0)} == {State.TRAINED}
        assert [r.group_id for r in step(ledger, 1, 1, 4)] == [1, 1, 4, 4]
        assert ledger.recover(2).rolled_back == 0


def test_a_group_that_lost_a_member_is_tried_again_whole(tmp_path: Path) -> None:
    """A running group's finished rollouts go with it, unless its worker outlived the crash."""
    for keep, state in ((False, State.REQUEUED), (True, None)):
        with Ledger(tmp_path / f"{keep}.db") as ledger:
            tickets = [Ticket(0, i, 0, 1, "w") for i in range(SIZE)]
            ledger.dispatch(tickets)
            ledger.finish([rollout(tickets[0], 0)])
            recovery = ledger.recover(0, keep_running=keep)
            assert recovery.prompts_again == (() if keep else ((0, 1),))
            assert recovery.running_groups == ((0,) if keep else ())
            assert state is None or {e.state for e in ledger.entries()} == {state}


def test_a_prompt_already_retried_is_not_tried_a_third_time(tmp_path: Path) -> None:
    """Of a prompt's groups the newest counts: trained or dropped means done."""
    with Ledger(tmp_path / "l.db") as ledger:
        fill(ledger, 0, 0, prompt=0)
        ledger.give_up(0, again=True, cause="too old")
        fill(ledger, 1, 0, prompt=0)
        fill(ledger, 2, 0, prompt=1)
        ledger.give_up(2, again=False, cause="tried often enough")
        fill(ledger, 3, 0, prompt=3)
        recovery = ledger.recover(0)
        assert (recovery.finished_groups, recovery.prompts_again) == ((1, 3), ((2, 0),))


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A checkpoint newer than the ledger, older than its start, or amid a step changes nothing."""
    with Ledger(tmp_path / "l.db", start_version=5) as ledger:
        fill(ledger, 0, 5)
        ledger.claim(5, [0], BOUND)
        ledger.commit(5, 8)
        for version, why in ((9, "5 to 8"), (4, "5 to 8"), (6, "amid the step from 5 to 8")):
            with pytest.raises(LedgerError, match=why):
                ledger.recover(version)
        assert ledger.version == 8


# ---- any history -----------------------------------------------------------------------------------------


class AnyHistory(RuleBasedStateMachine):
    """Random calls and crashes, against a model that keeps what was acknowledged."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "l.db"
        self.ledger = Ledger(self.path)
        self.tickets: dict[str, Ticket] = {}
        self.accepted: dict[str, Rollout] = {}
        self.trained: dict[str, int] = {}
        self.version, self.checkpoint, self.groups = 0, 0, 0
        self.claim: list[str] = []
        self.last: dict[str, State] = {}

    def teardown(self) -> None:
        self.ledger.close()
        self.directory.cleanup()

    @rule()
    def dispatch(self) -> None:
        tickets = [Ticket(self.groups, i, self.groups, 0, "w") for i in range(SIZE)]
        self.groups += 1
        self.ledger.dispatch(tickets)
        self.tickets.update({t.rollout_id: t for t in tickets})

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.tickets)), max_size=4))
        age = data.draw(st.integers(0, BOUND + 1))
        sent = [rollout(self.tickets[i], max(0, self.version - age)) for i in ids]
        for one, outcome in zip(sent, self.ledger.finish(sent)):
            if outcome is Outcome.ACCEPTED:
                assert one.rollout_id not in self.accepted
                self.accepted[one.rollout_id] = one

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), again=st.booleans())
    def give_up(self, data: st.DataObject, again: bool) -> None:
        group = data.draw(st.integers(0, self.groups - 1))
        try:
            self.ledger.give_up(group, again, "test")
        except LedgerError:
            assert any(e.step is not None for e in self.ledger.entries(group_id=group))

    @precondition(lambda self: self.groups and not self.claim)
    @rule(data=st.data())
    def start_step(self, data: st.DataObject) -> None:
        groups = data.draw(st.lists(st.integers(0, self.groups - 1), min_size=1, max_size=3))
        try:
            batch = self.ledger.claim(self.version, groups, BOUND)
        except LedgerError:
            assert self.ledger.claimed is None
            return
        for one in batch:
            assert one == self.accepted[one.rollout_id], "trains exactly what was accepted"
            assert one.rollout_id not in self.trained, "never twice"
            assert 0 <= self.version - one.oldest_version <= BOUND
        self.claim = [one.rollout_id for one in batch]

    @precondition(lambda self: self.claim)
    @rule()
    def end_step(self) -> None:
        self.ledger.commit(self.version, self.version + 1)
        self.trained.update(dict.fromkeys(self.claim, self.version))
        self.version += 1
        self.claim = []

    @precondition(lambda self: self.claim)
    @rule()
    def release(self) -> None:
        self.ledger.release(self.version)
        self.claim = []

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = self.version

    @rule(keep=st.booleans())
    def crash_and_resume(self, keep: bool) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.path)
        recovery = self.ledger.recover(self.checkpoint, keep_running=keep)
        self.trained = {i: v for i, v in self.trained.items() if v < self.checkpoint}
        self.version, self.claim = self.checkpoint, []
        assert recovery.next_group_id >= self.groups
        gone = {i for i, r in self.accepted.items() if r.newest_version > self.version}
        for entry in self.ledger.entries():
            if entry.rollout_id in gone:
                assert entry.state in (State.REQUEUED, State.DROPPED)
        self.last = {}

    @invariant()
    def the_ledger_agrees(self) -> None:
        entries = {e.rollout_id: e for e in self.ledger.entries()}
        assert entries.keys() == self.tickets.keys(), "no rollout appears or vanishes"
        assert {i for i, e in entries.items() if e.state is State.TRAINED} == self.trained.keys()
        assert self.ledger.version == self.version
        stored = {r.rollout_id: r for r in self.ledger.rollouts()}
        assert stored == self.accepted, "nothing accepted is lost"
        for i, entry in entries.items():
            before = self.last.get(i, entry.state)
            assert before is entry.state or (before, entry.state) in EDGES
        self.last = {i: e.state for i, e in entries.items()}


AnyHistory.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyHistory = AnyHistory.TestCase


# ---- kill -9 ---------------------------------------------------------------------------------------------

WRITER = """
import sys
sys.path[:0] = {path!r}
from test_data_recovery import *
ledger = Ledger(Path(sys.argv[1]))
recovery = ledger.recover(int(sys.argv[2]))
group = recovery.next_group_id
while True:
    fill(ledger, group, ledger.version)
    print("accepted", group, flush=True)
    version = ledger.version
    print("claimed", *[r.rollout_id for r in ledger.claim(version, [group], 0)], flush=True)
    ledger.commit(version, version + 1)
    print("committed", version, group, flush=True)
    group += 1
"""


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """A writer killed at random moments, resumed from the last commit it told of: all it told is there."""
    path = tmp_path / "l.db"
    code = WRITER.format(path=[str(Path(__file__).parent), *sys.path])
    rng, accepted, committed, version = random.Random(1), set[int](), dict[int, int](), 0
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(version)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.wait()
        writer.stdout.close()
        for word, *rest in (line.split() for line in lines if line.endswith("\n")):
            if word == "accepted":
                accepted.add(int(rest[0]))
            elif word == "committed":
                assert int(rest[1]) not in committed.values()
                committed[int(rest[0])] = int(rest[1])
                version = int(rest[0]) + 1
        with Ledger(path) as ledger:
            assert {e.group_id for e in ledger.entries() if e.tokens} >= accepted
            ledger.recover(version)
            for at, group in committed.items():
                assert {(e.state, e.step) for e in ledger.entries(group_id=group)} == {(State.TRAINED, at)}
            assert ledger.counts()[State.TRAINED] == len(committed) * SIZE
    assert len(committed) >= 8


def test_a_resumed_rollout_keeps_its_exact_numbers(tmp_path: Path) -> None:
    """Log-probs come back bit for bit after a crash, so a repeated step trains on the same numbers."""
    odd = (-1 / 3, -5e-324)
    with Ledger(tmp_path / "l.db") as ledger:
        tickets = [Ticket(0, 0, 0, 0, "w")]
        ledger.dispatch(tickets)
        ledger.finish([replace(rollout(tickets[0], 0), logprobs=odd)])
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.recover(0)
        assert ledger.claim(0, [0], 0)[0].logprobs == odd
