"""The scheduler as a state machine: facts in, decisions out; batches, the gate, and the order of versions."""

from __future__ import annotations

import pytest
from scheduler_kit import begin, finish_everything, finish_group, make, of

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.scheduler import Scheduler
from echo2.testing import equal_workers, small_world


def test_a_run_starts_the_workers_and_fills_them() -> None:
    """Offered workers are started with a reason, and each gets groups up to its slots when it joins."""
    scheduler, offers = make(S=5)
    out = begin(scheduler, offers)
    assert [x.worker_id for x in of(d.StartWorker, out)] == ["w000", "w001"]
    assert all(x.reason for x in of(d.StartWorker, out))
    assert len(of(d.StartGroup, out)) == 2 * 16 // 4


def test_a_full_batch_is_trained_at_once() -> None:
    """The learner gets a step as soon as a batch of complete groups is there, and not before."""
    scheduler, offers = make(S=5)
    starts = of(d.StartGroup, begin(scheduler, offers))
    for start in starts[:-1]:
        assert not of(d.TrainStep, finish_group(scheduler, 1.0, start))
    (train,) = of(d.TrainStep, finish_group(scheduler, 2.0, starts[-1]))
    assert sorted(train.group_ids) == sorted(start.group_id for start in starts)
    assert train.staleness == (0,) * 8


def test_strictly_on_policy_admits_exactly_one_batch_per_version() -> None:
    """With S = 0 exactly B rollouts start, and the next ones only after the new weights are live."""
    scheduler, offers = make(S=0)
    starts = of(d.StartGroup, begin(scheduler, offers))
    assert sum(start.rollouts for start in starts) == 32
    for start in starts:
        out = finish_group(scheduler, 1.0, start)
        assert not of(d.StartGroup, out)
    out = scheduler.observe(f.StepFinished(11.0, 1, 10.0, 1e9))
    assert of(d.PublishSnapshot, out) and not of(d.StartGroup, out)
    out = scheduler.observe(f.SnapshotLive(12.0, "w000", 1, 1))
    assert sum(start.rollouts for start in of(d.StartGroup, out)) == 16
    assert all(start.version == 1 for start in of(d.StartGroup, out))


def test_a_scarce_gate_is_shared_by_speed() -> None:
    """With S = 0 a worker three times as fast gets three times the rollouts, so both end together."""
    world = small_world(equal_workers(2, slots=64, speedups=(1.0, 3.0)), S=0)
    scheduler = Scheduler(world.settings)
    starts = of(d.StartGroup, begin(scheduler, [worker.offer for worker in world.workers]))
    share = [sum(s.rollouts for s in starts if s.worker_id == name) for name in ("w000", "w001")]
    assert share == [8, 24]


def test_time_must_not_go_back() -> None:
    """A fact older than the last one is refused with both times."""
    scheduler, _ = make()
    scheduler.observe(f.RunStarted(5.0))
    with pytest.raises(ValueError, match=r"5\.0 to 4\.0"):
        scheduler.observe(f.TimerFired(4.0, "x"))


def test_versions_must_not_jump() -> None:
    """A step that does not follow the last version is refused: one version authority."""
    scheduler, offers = make()
    begin(scheduler, offers)
    with pytest.raises(ValueError, match="never goes back"):
        scheduler.observe(f.StepFinished(1.0, 3, 1.0, 1e9))


def test_a_doomed_group_is_cancelled() -> None:
    """A group that would be older than S even in the next step is cancelled and tried again."""
    scheduler, offers = make(S=1, batch=8)
    starts = of(d.StartGroup, begin(scheduler, offers))
    slow, rest = starts[0], starts[1:]
    t_s, version, out = 1.0, 0, []
    queue = list(rest)
    cancelled: list[d.CancelGroup] = []
    while version < 2:
        t_s += 1.0
        start = queue.pop(0)
        out = finish_group(scheduler, t_s, start)
        queue += of(d.StartGroup, out)
        if of(d.TrainStep, out):
            version += 1
            out = scheduler.observe(f.StepFinished(t_s, version, 1.0, 1e9))
            queue += of(d.StartGroup, out)
            cancelled += of(d.CancelGroup, out)
            for offer in offers:
                live = f.SnapshotLive(t_s, offer.worker_id, 1, version)
                queue += of(d.StartGroup, scheduler.observe(live))
    assert [cancel.group_id for cancel in cancelled] == [slow.group_id]
    assert any(start.prompt == slow.prompt and start.attempt == 1 for start in queue)


def test_a_run_resumed_at_its_end_is_over() -> None:
    """A checkpoint of the last version leaves nothing to wait for."""
    scheduler, offers = make(S=5, steps=8)
    for offer in offers:
        scheduler.observe(f.WorkerOffered(0.0, offer))
    assert of(d.FinishRun, scheduler.observe(f.RunStarted(1.0, 8))) and scheduler.finished


def test_a_run_begins_once() -> None:
    """A second `RunStarted` is refused: it would forget what has been trained since."""
    scheduler, offers = make()
    begin(scheduler, offers)
    with pytest.raises(ValueError, match="begun already"):
        scheduler.observe(f.RunStarted(1.0))


def test_a_rollout_of_the_future_is_refused() -> None:
    """A rollout of a version never published is refused before anything is counted."""
    scheduler, offers = make(S=5)
    start = of(d.StartGroup, begin(scheduler, offers))[0]
    with pytest.raises(ValueError, match="newest published"):
        scheduler.observe(f.RolloutFinished(1.0, start.worker_id, start.group_id, 100, 7))
    assert scheduler.fleet[start.worker_id].in_flight == 16


def test_measurements_of_nothing_do_not_break_the_run() -> None:
    """A rate of 0 makes a worker the last choice, a link rate of 0 leaves the last one standing."""
    scheduler, offers = make(S=5)
    begin(scheduler, offers)
    scheduler.observe(f.RateMeasured(1.0, "w000", 0.0))
    scheduler.observe(f.LinkMeasured(1.0, "w000", 0.0, 0.0))
    assert scheduler.fleet["w000"].offer.downlink_bps == offers[0].downlink_bps
    finish_everything(scheduler, 2.0)
    assert of(d.PublishSnapshot, scheduler.observe(f.StepFinished(12.0, 1, 10.0, 1e9)))
