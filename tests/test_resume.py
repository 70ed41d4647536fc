"""The scheduler of a run that was stopped: what was complete is trained, nothing twice, nothing skipped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy import wire
from echo2.policy.scheduler import Scheduler
from echo2.testing import equal_workers, small_world


def resumed(
    S: int = 1, version: int = 3, complete: int = 1, again: tuple[tuple[int, int], ...] = (), prompts: int = 0
) -> tuple[Scheduler, list[d.Decision]]:
    """A scheduler that goes on at `version` with `complete` recovered groups, and what it decides first."""
    world = small_world(equal_workers(2), S=S, batch=16, prompts=prompts)
    scheduler = Scheduler(world.settings)
    for worker in world.workers:
        scheduler.observe(f.WorkerOffered(0.0, worker.offer))
        scheduler.observe(f.WorkerJoined(0.0, worker.offer.worker_id, 1, version))
    for i in range(complete):
        scheduler.observe(f.GroupRecovered(0.0, 50 + i, "gone-0", 30 + i, 0, 400, version))
    out = scheduler.observe(f.RunStarted(0.0, version, 40, 60, again))
    return scheduler, out


def started(out: list[d.Decision]) -> list[d.StartGroup]:
    """The groups that are started."""
    return [x for x in out if isinstance(x, d.StartGroup)]


def test_prompts_and_groups_go_on_where_they_were() -> None:
    """What is to be generated again comes first and in order; fresh prompts and group ids go on."""
    _, out = resumed(again=((31, 2), (35, 0)))
    groups = started(out)
    assert [(x.prompt, x.attempt) for x in groups[:3]] == [(31, 2), (35, 0), (40, 0)]
    assert [x.group_id for x in groups[:3]] == [60, 61, 62]


def test_a_recovered_batch_is_trained_at_once() -> None:
    """Complete groups of the run before make a step without a new rollout, and count at the gate."""
    scheduler, out = resumed(complete=5)
    size = scheduler.settings.groups_per_step
    step = next(x for x in out if isinstance(x, d.TrainStep))
    assert step.version == 3 and step.group_ids == tuple(range(50, 50 + size))
    assert scheduler.gate.buffered == (5 - size) * scheduler.settings.group_size
    assert scheduler.gate.admitted <= scheduler.gate.limit(3)


@given(st.integers(0, 3), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_the_gate_holds_after_a_resume(S: int, complete: int) -> None:
    """However much was recovered, no more is admitted than the bound allows, and none is too old."""
    scheduler, out = resumed(S=S, complete=min(complete, (S + 1) * 4))
    gate = scheduler.gate
    assert gate.admitted <= max(gate.limit(3), 3 * gate.batch + complete * scheduler.settings.group_size)
    for step in (x for x in out if isinstance(x, d.TrainStep)):
        assert max(step.staleness) <= S


def test_a_prompt_that_is_still_to_come_cannot_be_tried_again() -> None:
    """A resume that would generate a prompt twice is refused."""
    with pytest.raises(ValueError, match="prompt 40 cannot be tried again"):
        resumed(again=((40, 0),))


def test_groups_are_recovered_before_the_run_begins() -> None:
    """A group that turns up later is a mistake of the driver."""
    scheduler, _ = resumed()
    with pytest.raises(ValueError, match="before the run begins"):
        scheduler.observe(f.GroupRecovered(1.0, 99, "w000", 3, 0, 10, 3))


def test_a_failed_group_is_tried_again_and_given_up_in_the_end() -> None:
    """Each failure is an attempt; the worker is told to forget the group; the last one drops the prompt."""
    scheduler, out = resumed(complete=0)
    group, tries = started(out)[0], 0
    while True:
        out = scheduler.observe(f.GroupFailed(1.0, group.worker_id, group.group_id, "too long"))
        assert [x.group_id for x in out if isinstance(x, d.CancelGroup)] == [group.group_id]
        tries += 1
        if not next(x for x in out if isinstance(x, d.DropGroup)).requeued:
            break
        group = next(x for x in started(out) if x.prompt == group.prompt)
        assert group.attempt == tries
    assert tries == scheduler.settings.max_attempts
    assert all(worker.in_flight >= 0 for worker in scheduler.fleet)


def test_a_failure_of_a_group_that_is_gone_changes_nothing() -> None:
    """A late or foreign failure is ignored."""
    scheduler, out = resumed(complete=0)
    other = next(name for name in ("w000", "w001") if name != started(out)[0].worker_id)
    assert scheduler.observe(f.GroupFailed(1.0, other, started(out)[0].group_id, "?")) == []
    assert scheduler.observe(f.GroupFailed(1.0, "w000", 9999, "?")) == []


def test_a_run_ends_when_its_data_does() -> None:
    """All prompts are generated once, whole batches are trained, and the end says why."""
    scheduler, out = resumed(S=3, complete=0, prompts=46)
    seen = [x.prompt for x in started(out)]
    finish: list[d.FinishRun] = []
    now = 0.0
    while not finish:
        now += 1.0
        if scheduler.training:
            out = scheduler.observe(f.StepFinished(now, scheduler.ledger.version + 1, 1.0, 1e6))
        else:
            group = next(iter(scheduler.dispatch.groups.values()))
            end = f.RolloutFinished(now, group.worker_id, group.group_id, 10, group.stamp)
            out = scheduler.observe(end)
        seen += [x.prompt for x in started(out)]
        finish = [x for x in out if isinstance(x, d.FinishRun)]
    assert sorted(seen) == list(range(40, 46))
    assert (
        "exhausted" in finish[0].reason
        and scheduler.ledger.version == 3 + 6 // scheduler.settings.groups_per_step
    )


def test_new_facts_survive_the_round_trip() -> None:
    """Their JSON form gives the same facts, nested pairs included."""
    for fact in (
        f.RunStarted(0.5, 3, 40, 60, ((31, 2), (35, 0))),
        f.GroupRecovered(0.0, 1, "w", 2, 3, 4, 5),
        f.GroupFailed(1.0, "w", 2, "x"),
    ):
        assert wire.loads(wire.dumps(fact)) == fact
