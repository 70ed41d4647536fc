"""The scheduler's snapshots: who gets them from whom, late and lost ones, deadlines."""

from __future__ import annotations

from scheduler_kit import begin, finish_everything, fire, make, of, publish_first_version

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.scheduler import Scheduler
from echo2.testing import equal_workers, small_world


def test_a_late_snapshot_is_fetched_from_a_holder() -> None:
    """A worker that a broadcast keeps waiting is sent the rest from the best holder instead."""
    scheduler, offers = make(S=5)
    out = publish_first_version(scheduler, offers)
    scheduler.observe(f.SnapshotLive(12.0, "w001", 1, 1))
    out = fire(scheduler, "late:", out)
    assert [abort.worker_id for abort in of(d.AbortTransfer, out)] == ["w000"]
    assert [(x.worker_id, x.version) for x in of(d.FetchSnapshot, out)] == [("w000", 1)]


def test_an_overdue_transfer_is_retried_then_the_worker_is_given_up() -> None:
    """A snapshot that does not arrive from the learner three times costs the worker its place."""
    scheduler, offers = make(1, S=5)
    out = publish_first_version(scheduler, offers)
    out = fire(scheduler, "late:", out)
    stops: list[d.StopWorker] = []
    for _ in range(3):
        assert not stops
        assert of(d.FetchSnapshot, out)[-1].source_id == "learner"
        out = fire(scheduler, "transfer:", out)
        assert [abort.worker_id for abort in of(d.AbortTransfer, out)] == ["w000"]
        stops += of(d.StopWorker, out)
    assert [stop.worker_id for stop in stops] == ["w000"]
    assert "cannot receive" in stops[0].reason


def test_what_a_lost_peer_was_serving_is_fetched_elsewhere() -> None:
    """When the peer a worker fetches from is preempted, it fetches from another holder at once."""
    scheduler, offers = make(3, S=5)
    out = publish_first_version(scheduler, offers)
    scheduler.observe(f.SnapshotLive(12.0, "w001", 1, 1))
    scheduler.observe(f.SnapshotLive(12.0, "w002", 1, 1))
    (fetch,) = of(d.FetchSnapshot, fire(scheduler, "late:", out))
    source = fetch.source_id
    if source == "learner":
        return
    out = scheduler.observe(f.WorkerLeft(scheduler.now, source, 1, "preempted"))
    again = of(d.FetchSnapshot, out)
    assert [x.worker_id for x in again] == ["w000"] and again[0].source_id != source
    failed = f.SnapshotFailed(scheduler.now, "w000", 1, 1, source, "its source is gone")
    assert scheduler.observe(failed) == []


def test_a_version_from_before_a_resume_is_not_believed() -> None:
    """A worker that holds a version the resumed learner has not published gets work after a snapshot only."""
    scheduler, offers = make(1, S=5)
    scheduler.observe(f.WorkerOffered(0.0, offers[0]))
    scheduler.observe(f.RunStarted(0.0, 3))
    out = scheduler.observe(f.WorkerJoined(0.0, "w000", 1, 9))
    assert not of(d.StartGroup, out)
    assert [(x.version, x.parent_version) for x in of(d.FetchSnapshot, out)] == [(3, -1)]
    out = scheduler.observe(f.SnapshotLive(1.0, "w000", 1, 9))
    assert out == [] and scheduler.fleet["w000"].version == -1
    assert of(d.StartGroup, scheduler.observe(f.SnapshotLive(2.0, "w000", 1, 3)))


def test_an_old_arrival_does_not_end_a_newer_transfer() -> None:
    """The snapshot that was given up arrives after all: it is used, and the newer one stays expected."""
    scheduler, offers = make(2, S=5)
    out = publish_first_version(scheduler, offers)
    scheduler.observe(f.SnapshotLive(12.0, "w001", 1, 1))
    finish_everything(scheduler, 13.0)
    scheduler.observe(f.StepFinished(20.0, 2, 10.0, 1e9))
    rest = fire(scheduler, "late:1", out)
    (fetch,) = of(d.FetchSnapshot, fire(scheduler, "transfer:1:w000", rest))
    assert (fetch.worker_id, fetch.version) == ("w000", 2)
    scheduler.observe(f.SnapshotLive(scheduler.now, "w000", 1, 1))
    worker = scheduler.fleet["w000"]
    assert (worker.version, worker.inbound) == (1, 2)


def test_a_fetch_in_place_of_a_broadcast_has_a_deadline() -> None:
    """A late worker that fetches the rest over a better link is given up in the end."""
    world = small_world(equal_workers(2, downlink_bps=1e8), S=9, kappa=9, train_s=100.0)
    scheduler = Scheduler(world.settings)
    begin(scheduler, [worker.offer for worker in world.workers])
    out: list[d.Decision] = []
    for version in range(1, 19):
        if version == 10:
            first = out
            scheduler.observe(f.LinkMeasured(2.0, "w000", 1e9, 1e9))
            scheduler.observe(f.SnapshotLive(2.0, "w001", 1, 9))
        finish_everything(scheduler, 3.0 if version > 9 else 1.0)
        out = scheduler.observe(f.StepFinished(3.0 if version > 9 else 1.0, version, 100.0, 1e9))
    late = fire(scheduler, "late:9", first)
    assert [x.version for x in of(d.FetchSnapshot, late) if x.worker_id == "w000"] == [9]
    timer = [t for t in of(d.SetTimer, late) if t.name == "transfer:9:w000"][-1]
    assert timer.at_s == scheduler.fleet["w000"].deadline_s
    scheduler.observe(f.SnapshotLive(scheduler.now, "w001", 1, 18))
    out = scheduler.observe(f.TimerFired(timer.at_s, timer.name))
    assert [x.worker_id for x in of(d.AbortTransfer, out)] == ["w000"]


def test_equally_far_workers_are_sent_to_together() -> None:
    """Snapshots that take longer than a step to all workers still go along the plan, not one by one."""
    scheduler, offers = make(4, S=0, train_s=0.1)
    begin(scheduler, offers)
    finish_everything(scheduler, 1.0)
    out = scheduler.observe(f.StepFinished(2.0, 1, 0.1, 1e9))
    assert [len(x.plan.order) for x in of(d.PublishSnapshot, out)] == [4]
    assert not of(d.FetchSnapshot, out)


def test_a_late_broadcast_is_finished_though_a_newer_version_is_out() -> None:
    """The rest of the late version is fetched, not the newest from its start: what has arrived counts."""
    scheduler, offers = make(3, S=5)
    out = publish_first_version(scheduler, offers)
    finish_everything(scheduler, 12.0)
    scheduler.observe(f.StepFinished(13.0, 2, 10.0, 1e9))
    fetches = of(d.FetchSnapshot, fire(scheduler, "late:1", out))
    assert [(x.worker_id, x.version) for x in fetches] == [(f"w00{i}", 1) for i in range(3)]


def test_few_late_workers_do_not_keep_all_others_from_the_next_snapshot() -> None:
    """One of twelve without the last snapshot: the next goes to the other eleven once it is late for it."""
    scheduler, offers = make(12, S=5, batch=96)
    out = publish_first_version(scheduler, offers)
    assert [len(x.plan.order) for x in of(d.PublishSnapshot, out)] == [12]
    for offer in offers[1:]:
        scheduler.observe(f.SnapshotLive(12.0, offer.worker_id, 1, 1))
    finish_everything(scheduler, 13.0)
    assert not of(d.PublishSnapshot, scheduler.observe(f.StepFinished(14.0, 2, 10.0, 1e9)))
    later = fire(scheduler, "late:1", out)
    assert [len(x.plan.order) for x in of(d.PublishSnapshot, later)] == [11]
    assert [x.worker_id for x in of(d.FetchSnapshot, later)] == ["w000"]


def test_the_next_snapshot_waits_for_most_of_a_late_one() -> None:
    """While most fetch the rest of a late snapshot, the next is not sent to the few that are free."""
    scheduler, offers = make(12, S=5, batch=96)
    out = publish_first_version(scheduler, offers)
    scheduler.observe(f.SnapshotLive(12.0, "w000", 1, 1))
    finish_everything(scheduler, 13.0)
    scheduler.observe(f.StepFinished(14.0, 2, 10.0, 1e9))
    later = fire(scheduler, "late:1", out)
    assert len(of(d.FetchSnapshot, later)) == 11 and not of(d.PublishSnapshot, later)
    for offer in offers[1:11]:
        last = scheduler.observe(f.SnapshotLive(scheduler.now, offer.worker_id, 1, 1))
    assert [len(x.plan.order) for x in of(d.PublishSnapshot, last)] == [11]
