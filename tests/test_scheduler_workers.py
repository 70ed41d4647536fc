"""The scheduler's workers: joins, losses, replacements, and who is started and stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_kit import begin, finish_group, make, of

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.fleet import Status
from echo2.policy.scheduler import Scheduler
from echo2.testing import equal_workers, small_world


def test_a_lost_worker_gives_its_prompts_back_to_the_front() -> None:
    """When a worker is preempted its groups are dropped, and others generate those prompts next."""
    scheduler, offers = make(S=5)
    starts = of(d.StartGroup, begin(scheduler, offers))
    lost = [start.prompt for start in starts if start.worker_id == "w001"]
    out = scheduler.observe(f.WorkerLeft(5.0, "w001", 1, "preempted"))
    assert sorted(drop.prompt for drop in of(d.DropGroup, out)) == sorted(lost)
    assert all(drop.requeued for drop in of(d.DropGroup, out))
    mine = next(start for start in starts if start.worker_id == "w000")
    again = of(d.StartGroup, finish_group(scheduler, 6.0, mine))
    assert again[0].prompt in lost


def test_a_duplicate_join_is_not_a_second_worker() -> None:
    """A join with an incarnation already known changes nothing; a newer one replaces the old worker."""
    scheduler, offers = make(S=5)
    begin(scheduler, offers)
    assert scheduler.observe(f.WorkerJoined(1.0, "w000", 1)) == []
    out = scheduler.observe(f.WorkerJoined(2.0, "w000", 2))
    assert len(of(d.DropGroup, out)) == 4
    assert scheduler.fleet["w000"].in_flight == 16


def test_results_of_an_earlier_incarnation_are_ignored() -> None:
    """A rollout of a group that was taken back is counted as late and changes nothing."""
    scheduler, offers = make(S=5)
    start = of(d.StartGroup, begin(scheduler, offers))[0]
    scheduler.observe(f.WorkerLeft(1.0, start.worker_id, 1, "failed"))
    late = f.RolloutFinished(2.0, start.worker_id, start.group_id, 100, 0)
    assert scheduler.observe(late) == []
    assert scheduler.late_rollouts == 1


def test_a_silent_worker_is_given_up() -> None:
    """A worker on which no rollout ends for the patience is stopped and its groups go to others."""
    scheduler, offers = make(S=5)
    out = begin(scheduler, offers)
    watch = next(t for t in of(d.SetTimer, out) if t.name.startswith("watch:w000"))
    out = scheduler.observe(f.TimerFired(watch.at_s, watch.name))
    assert [stop.worker_id for stop in of(d.StopWorker, out)] == ["w000"]
    assert "no rollout has ended" in of(d.StopWorker, out)[0].reason
    assert len(of(d.DropGroup, out)) == 4


def test_a_worker_that_does_not_come_up_is_replaced() -> None:
    """A start-up that exceeds its deadline ends the worker's lease and others are asked."""
    world = small_world(equal_workers(6, price_usd_per_h=1.0), S=5, activation="cost")
    scheduler = Scheduler(world.settings)
    out: list[d.Decision] = []
    for worker in world.workers:
        scheduler.observe(f.WorkerOffered(0.0, worker.offer))
    out = scheduler.observe(f.RunStarted(0.0))
    started = [start.worker_id for start in of(d.StartWorker, out)]
    assert 0 < len(started) < 6
    timer = next(t for t in of(d.SetTimer, out) if t.name == f"startup:{started[0]}")
    out = scheduler.observe(f.TimerFired(timer.at_s, timer.name))
    assert [stop.worker_id for stop in of(d.StopWorker, out)] == [started[0]]
    assert of(d.StartWorker, out)[0].worker_id not in started


def test_a_replaced_worker_works_until_its_successor_does() -> None:
    """When a much cheaper worker appears, the dear one is stopped only after the cheap one is live."""
    world = small_world(equal_workers(2, tokens_per_s=6000.0, price_usd_per_h=4.0), S=5, activation="cost")
    scheduler = Scheduler(replace(world.settings, review_s=1.0))
    dear, cheap = (worker.offer for worker in world.workers)
    starts = of(d.StartGroup, begin(scheduler, [dear]))
    out = scheduler.observe(f.WorkerOffered(5.0, replace(cheap, price_usd_per_h=0.5)))
    assert [x.worker_id for x in of(d.StartWorker, out)] == [cheap.worker_id]
    while not of(d.TrainStep, out):
        start = starts.pop(0)
        out = finish_group(scheduler, 7.0, start)
        starts += of(d.StartGroup, out)
    out = scheduler.observe(f.StepFinished(17.0, 1, 10.0, 1e9))
    out += scheduler.observe(f.WorkerJoined(18.0, cheap.worker_id, 1))
    assert not of(d.StopWorker, out) and scheduler.fleet[dear.worker_id].status is Status.READY
    scheduler.observe(f.SnapshotLive(19.0, cheap.worker_id, 1, 1))
    assert scheduler.fleet[dear.worker_id].status is Status.DRAINING


def test_a_worker_told_to_stop_gets_no_work_when_it_joins_after_all() -> None:
    """A join that crosses the stop on its way changes nothing: `WorkerLeft` is still owed."""
    scheduler, offers = make(S=5)
    for offer in offers:
        scheduler.observe(f.WorkerOffered(0.0, offer))
    out = scheduler.observe(f.RunStarted(0.0))
    timer = next(t for t in of(d.SetTimer, out) if t.name == "startup:w000")
    assert of(d.StopWorker, scheduler.observe(f.TimerFired(timer.at_s, timer.name)))
    assert scheduler.observe(f.WorkerJoined(timer.at_s + 1.0, "w000", 1)) == []
    assert scheduler.fleet["w000"].status is Status.STOPPING


def test_a_leaving_worker_that_starts_anew_is_stopped() -> None:
    """A draining worker that comes up again has nothing to finish any more and is let go."""
    scheduler, offers = make(S=5)
    begin(scheduler, offers)
    scheduler._leave.drain(1.0, [(scheduler.fleet["w000"], "too dear")], [])
    out = scheduler.observe(f.WorkerJoined(2.0, "w000", 2))
    assert [(x.worker_id, x.reason) for x in of(d.StopWorker, out)] == [("w000", "too dear")]


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_workers_that_are_up_before_the_run_begins_take_part(mode: str) -> None:
    """Joined before `RunStarted`, they are sent the resumed version and are given work."""
    scheduler, offers = make(2, S=2, mode=mode)
    for offer in offers:
        scheduler.observe(f.WorkerOffered(0.0, offer))
        scheduler.observe(f.WorkerJoined(0.0, offer.worker_id, 1, 4 if offer is offers[0] else 2))
    out = scheduler.observe(f.RunStarted(1.0, 4))
    assert {start.worker_id for start in of(d.StartGroup, out)} == {"w000", "w001"}
    assert len(of(d.PublishSnapshot, out)) + len(of(d.FetchSnapshot, out)) == 1
    assert scheduler.fleet["w001"].inbound == 4


def test_offers_one_by_one_are_all_used() -> None:
    """A pool that appears after the start, worker by worker, is used as far as it is needed."""
    scheduler, offers = make(4, S=5, activation="cost")
    out = scheduler.observe(f.RunStarted(0.0))
    for i, offer in enumerate(offers):
        out += scheduler.observe(f.WorkerOffered(float(i), offer))
    assert len(of(d.StartWorker, out)) == 4


def test_a_first_pool_that_is_too_small_is_filled_up() -> None:
    """What a plan needs and the first offers do not cover is started when it is offered."""
    scheduler, offers = make(4, S=0, activation="cost", serial_rate=4.0)
    for offer in offers[:2]:
        scheduler.observe(f.WorkerOffered(0.0, offer))
    scheduler.observe(f.RunStarted(0.0))
    out = scheduler.observe(f.WorkerOffered(9.0, offers[2]))
    assert [x.worker_id for x in of(d.StartWorker, out)] == ["w002"]


@pytest.mark.parametrize("rule", ["all", "fastest", "random"])
def test_the_plain_rules_stop_nobody(rule: str) -> None:
    """A loss is made good by the rule's own order; workers that are not needed stay all the same."""
    world = small_world(equal_workers(6, tokens_per_s=2000.0), S=5, activation=rule)
    scheduler = Scheduler(world.settings)
    offers = [worker.offer for worker in world.workers]
    for offer in offers:
        scheduler.observe(f.WorkerOffered(0.0, offer))
    first = [x.worker_id for x in of(d.StartWorker, scheduler.observe(f.RunStarted(0.0)))]
    for name in first:
        scheduler.observe(f.WorkerJoined(0.0, name, 1))
    out = scheduler.observe(f.WorkerLeft(5.0, first[0], 1, "preempted"))
    assert len(of(d.StartWorker, out)) == 1 and not of(d.StopWorker, out)
    assert not scheduler.fleet.in_status(Status.DRAINING)
