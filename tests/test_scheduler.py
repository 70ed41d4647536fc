"""The scheduler as a state machine: facts in, decisions out, whatever order the world chooses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.fleet import Status
from echo2.policy.scheduler import Scheduler
from echo2.policy.settings import SchedulerSettings
from echo2.testing import equal_workers, small_world


def make(count: int = 2, **keywords: Any) -> tuple[Scheduler, list[f.WorkerOffer]]:
    """A scheduler and the offers of `count` equal workers with 16 slots."""
    world = small_world(equal_workers(count), **keywords)
    return Scheduler(world.settings), [worker.offer for worker in world.workers]


def begin(scheduler: Scheduler, offers: list[f.WorkerOffer]) -> list[d.Decision]:
    """Offer the workers, start the run and let all of them join at once."""
    out: list[d.Decision] = []
    for offer in offers:
        out += scheduler.observe(f.WorkerOffered(0.0, offer))
    out += scheduler.observe(f.RunStarted(0.0))
    for offer in offers:
        out += scheduler.observe(f.WorkerJoined(0.0, offer.worker_id, 1))
    return out


def of(kind: type, decisions: list[d.Decision]) -> list[Any]:
    """The decisions of one kind."""
    return [decision for decision in decisions if isinstance(decision, kind)]


def finish_group(scheduler: Scheduler, t_s: float, start: d.StartGroup) -> list[d.Decision]:
    """All rollouts of a group end."""
    out = []
    for _ in range(start.rollouts):
        out += scheduler.observe(f.RolloutFinished(t_s, start.worker_id, start.group_id, 100, start.version))
    return out


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


def test_a_silent_worker_is_given_up() -> None:
    """A worker on which no rollout ends for the patience is stopped and its groups go to others."""
    scheduler, offers = make(S=5)
    out = begin(scheduler, offers)
    watch = next(t for t in of(d.SetTimer, out) if t.name.startswith("watch:w000"))
    out = scheduler.observe(f.TimerFired(watch.at_s, watch.name))
    assert [stop.worker_id for stop in of(d.StopWorker, out)] == ["w000"]
    assert "no rollout has ended" in of(d.StopWorker, out)[0].reason
    assert len(of(d.DropGroup, out)) == 4


def publish_first_version(scheduler: Scheduler, offers: list[f.WorkerOffer]) -> list[d.Decision]:
    """Run up to the publication of version 1 and return its decisions."""
    for start in of(d.StartGroup, begin(scheduler, offers)):
        finish_group(scheduler, 1.0, start)
    return scheduler.observe(f.StepFinished(11.0, 1, 10.0, 1e9))


def fire(scheduler: Scheduler, kind: str, out: list[d.Decision]) -> list[d.Decision]:
    """Let the last timer of a kind come due."""
    timer = [t for t in of(d.SetTimer, out) if t.name.startswith(kind)][-1]
    return scheduler.observe(f.TimerFired(timer.at_s, timer.name))


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


class Chaos:
    """A world that makes any pending thing happen in any order, and checks every answer."""

    def __init__(self, scheduler: Scheduler, offers: list[f.WorkerOffer], rng: random.Random) -> None:
        self.scheduler, self.rng = scheduler, rng
        self.settings: SchedulerSettings = scheduler.settings
        self.t_s = 0.0
        self.running: dict[int, list[Any]] = {}
        self.up: dict[str, int] = {}
        self.version: dict[str, int] = {}
        self.sending: dict[str, int] = {}
        self.source: dict[str, str] = {}
        self.incarnation = {offer.worker_id: 0 for offer in offers}
        self.starting: set[str] = set()
        self.timers: dict[str, float] = {}
        self.training: d.TrainStep | None = None
        self.trained: set[int] = set()
        self.prompt_of: dict[int, int] = {}
        self.done = False
        for offer in offers:
            self.tell(f.WorkerOffered(0.0, offer))
        self.tell(f.RunStarted(0.0))

    def tell(self, fact: f.Fact) -> None:
        """Give a fact and carry out the decisions, checking each."""
        for decision in self.scheduler.observe(fact):
            getattr(self, f"on_{type(decision).__name__}")(decision)
        gate, settings = self.scheduler.gate, self.settings
        assert gate.running == sum(g.rollouts for g in self.scheduler.dispatch.groups.values())
        assert gate.admitted <= (settings.staleness_bound + self.scheduler.ledger.version + 1) * (
            settings.rollouts_per_step
        )
        for worker in self.scheduler.fleet:
            assert worker.in_flight == sum(g.remaining for g in worker.groups.values())
            assert worker.in_flight <= worker.offer.slots + settings.group_size

    def on_StartWorker(self, x: d.StartWorker) -> None:  # noqa: N802
        assert x.worker_id not in self.up and x.reason
        self.starting.add(x.worker_id)

    def on_StopWorker(self, x: d.StopWorker) -> None:  # noqa: N802
        self.starting.discard(x.worker_id)
        assert self.done or not any(g[0].worker_id == x.worker_id for g in self.running.values())
        self.leave(x.worker_id, "stopped", tell=not self.done)

    def on_StartGroup(self, x: d.StartGroup) -> None:  # noqa: N802
        assert self.scheduler.fleet[x.worker_id].status is Status.READY
        assert self.version[x.worker_id] == x.version
        assert x.prompt not in self.trained
        self.prompt_of[x.group_id] = x.prompt
        self.running[x.group_id] = [x, x.rollouts]

    def on_CancelGroup(self, x: d.CancelGroup) -> None:  # noqa: N802
        del self.running[x.group_id]

    def on_DropGroup(self, x: d.DropGroup) -> None:  # noqa: N802
        self.running.pop(x.group_id, None)

    def on_TrainStep(self, x: d.TrainStep) -> None:  # noqa: N802
        assert self.training is None and x.version == self.scheduler.ledger.version
        assert max(x.staleness) <= self.settings.staleness_bound and min(x.staleness) >= 0
        assert len(x.group_ids) == self.settings.groups_per_step
        prompts = {self.prompt_of[group_id] for group_id in x.group_ids}
        assert not prompts & self.trained and len(prompts) == len(x.group_ids)
        self.trained |= prompts
        self.training = x

    def on_PublishSnapshot(self, x: d.PublishSnapshot) -> None:  # noqa: N802
        for name in x.plan.order:
            assert name in self.up and name not in self.sending
            self.sending[name] = x.version
            self.source[name] = "learner"

    def on_Reroute(self, x: d.Reroute) -> None:  # noqa: N802
        assert x.worker_ids and x.reason and set(x.without).isdisjoint({"learner"})
        for name in x.worker_ids:
            assert self.sending[name] == x.version and self.source[name] == "learner"

    def on_FetchSnapshot(self, x: d.FetchSnapshot) -> None:  # noqa: N802
        assert x.worker_id in self.up and x.worker_id not in self.sending
        assert x.source_id == "learner" or self.version[x.source_id] == x.version
        self.sending[x.worker_id] = x.version
        self.source[x.worker_id] = x.source_id

    def on_AbortTransfer(self, x: d.AbortTransfer) -> None:  # noqa: N802
        assert self.sending.pop(x.worker_id) == x.version

    def on_SetTimer(self, x: d.SetTimer) -> None:  # noqa: N802
        assert x.at_s >= self.t_s and x.reason
        self.timers[x.name] = x.at_s

    def on_FinishRun(self, x: d.FinishRun) -> None:  # noqa: N802
        self.done = True

    def leave(self, name: str, cause: str, tell: bool = True) -> None:
        """A worker vanishes with all that ran on it."""
        self.up.pop(name, None)
        self.version.pop(name, None)
        self.sending.pop(name, None)
        for group_id in [g for g, (x, _) in self.running.items() if x.worker_id == name]:
            if tell and cause == "stopped":
                del self.running[group_id]
        if tell:
            self.tell(f.WorkerLeft(self.t_s, name, self.incarnation[name], cause))

    def step(self) -> None:
        """One random happening."""
        rng = self.rng
        due = [name for name, at_s in self.timers.items() if at_s <= self.t_s]
        if due:
            name = due[0]
            del self.timers[name]
            self.tell(f.TimerFired(self.t_s, name))
            return
        self.t_s += rng.choice([0.0, 0.1, 1.0, 1.0, 5.0])
        choices = ["finish"] * 12 + ["train"] * 3 + ["live"] * 3 + ["join"] * 2
        choices += ["fail", "ghost", "news", "complain"]
        getattr(self, rng.choice(choices))()

    def finish(self) -> None:
        """A rollout ends."""
        if not self.running:
            return
        group_id = self.rng.choice(sorted(self.running))
        start, left = self.running[group_id]
        self.running[group_id][1] = left - 1
        if left == 1:
            del self.running[group_id]
        self.tell(f.RolloutFinished(self.t_s, start.worker_id, group_id, 10, start.version))

    def ghost(self) -> None:
        """News of what is over: a rollout of a group that ended, a worker or snapshot of a past life."""
        over = sorted(set(self.prompt_of) - set(self.scheduler.dispatch.groups))
        name = self.rng.choice(sorted(self.incarnation))
        if over:
            group_id = self.rng.choice(over)
            version = self.scheduler.ledger.published
            assert self.scheduler.observe(f.RolloutFinished(self.t_s, name, group_id, 10, version)) == []
        if self.incarnation[name]:
            before = self.incarnation[name] - 1
            self.tell(f.WorkerJoined(self.t_s, name, self.incarnation[name], 0))
            self.tell(f.SnapshotLive(self.t_s, name, before, self.scheduler.ledger.published))
            self.tell(f.WorkerLeft(self.t_s, name, before, "preempted"))

    def news(self) -> None:
        """The market and the measurements move; a worker is offered again."""
        name, factor = self.rng.choice(sorted(self.incarnation)), self.rng.choice([0.2, 0.7, 1.5])
        offer = self.scheduler.fleet[name].offer
        self.tell(f.PriceChanged(self.t_s, name, min(9.0, offer.price_usd_per_h * factor)))
        self.tell(f.RateMeasured(self.t_s, name, min(9.0, offer.rollouts_per_s * factor)))
        self.tell(f.LinkMeasured(self.t_s, name, offer.uplink_bps, max(1e8, offer.downlink_bps * factor)))
        self.tell(f.WorkerOffered(self.t_s, replace(offer, price_usd_per_h=offer.price_usd_per_h * factor)))

    def train(self) -> None:
        """The learner finishes its step."""
        if self.training is not None:
            version, self.training = self.training.version + 1, None
            self.tell(f.StepFinished(self.t_s, version, 10.0, 1e9))

    def live(self) -> None:
        """A snapshot arrives."""
        if self.sending:
            name = self.rng.choice(sorted(self.sending))
            version = self.sending.pop(name)
            self.version[name] = version
            self.tell(f.SnapshotLive(self.t_s, name, self.up[name], version))

    def fail(self) -> None:
        """A transfer fails."""
        if self.sending:
            name = self.rng.choice(sorted(self.sending))
            version = self.sending.pop(name)
            failed = f.SnapshotFailed(self.t_s, name, self.up[name], version, self.source[name], "cut off")
            self.tell(failed)

    def complain(self) -> None:
        """A worker complains of another from which it may or may not receive."""
        name, source = (self.rng.choice(sorted(self.incarnation)) for _ in range(2))
        version = self.sending.get(name, self.rng.choice([0, 1, 99]))
        cause = self.rng.choice(["gone", "slow", "wrong-bytes"])
        self.tell(f.RelayFailed(self.t_s, name, version, source, cause))

    def join(self) -> None:
        """A started worker comes up."""
        if self.starting:
            name = self.rng.choice(sorted(self.starting))
            self.starting.discard(name)
            self.incarnation[name] += 1
            self.up[name] = self.incarnation[name]
            self.version[name] = 0
            self.tell(f.WorkerJoined(self.t_s, name, self.up[name], 0))

    def leave_random(self) -> None:
        """A worker is preempted and offered again."""
        if self.up:
            name = self.rng.choice(sorted(self.up))
            self.leave(name, "preempted")


@given(
    seed=st.integers(0, 10_000),
    S=st.integers(0, 4),
    data=st.data(),
    mode=st.sampled_from(["push", "pull"]),
    reading=st.sampled_from(["overlap", "stall"]),
    rule=st.sampled_from(["all", "cost", "random"]),
)
@settings(max_examples=60, deadline=None)
def test_no_order_of_events_breaks_an_invariant(
    seed: int, S: int, data: st.DataObject, mode: str, reading: str, rule: str
) -> None:
    """Whatever happens in whatever order: the gate holds, nothing is trained twice or too old."""
    kappa = data.draw(st.integers(1, S + 1))
    scheduler, offers = make(
        4, S=S, kappa=kappa, steps=8, mode=mode, reading=reading, activation=rule, batch=16, max_attempts=50
    )
    offers = [replace(offer, min_lease_s=3.0) for offer in offers]
    chaos = Chaos(scheduler, offers, random.Random(seed))
    for _ in range(1500):
        if chaos.done:
            break
        if chaos.rng.random() < 0.01:
            chaos.leave_random()
        else:
            chaos.step()
    waiting = [name for name in chaos.timers if name.startswith(("review", "startup"))]
    assert scheduler.ledger.version >= 1 or waiting, "stuck without a deadline"


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


def finish_everything(scheduler: Scheduler, t_s: float) -> None:
    """Running rollouts end, first come first, until the learner has a batch."""
    for _ in range(1000):
        if scheduler.training:
            return
        group = next(iter(scheduler.dispatch.groups.values()))
        end = f.RolloutFinished(t_s, group.worker_id, group.group_id, 100, group.stamp)
        scheduler.observe(end)
    raise AssertionError("no batch after 1,000 rollouts")


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
