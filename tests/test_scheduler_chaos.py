"""The scheduler in a world where anything pending happens in any order."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_kit import make

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.fleet import Status
from echo2.policy.scheduler import Scheduler
from echo2.policy.settings import SchedulerSettings


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
