"""What the tests of the scheduler share: a small run, its beginning, groups that end, timers that fire."""

from __future__ import annotations

from typing import Any

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.scheduler import Scheduler
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


def publish_first_version(scheduler: Scheduler, offers: list[f.WorkerOffer]) -> list[d.Decision]:
    """Run up to the publication of version 1 and return its decisions."""
    for start in of(d.StartGroup, begin(scheduler, offers)):
        finish_group(scheduler, 1.0, start)
    return scheduler.observe(f.StepFinished(11.0, 1, 10.0, 1e9))


def fire(scheduler: Scheduler, kind: str, out: list[d.Decision]) -> list[d.Decision]:
    """Let the last timer of a kind come due."""
    timer = [t for t in of(d.SetTimer, out) if t.name.startswith(kind)][-1]
    return scheduler.observe(f.TimerFired(timer.at_s, timer.name))


def finish_everything(scheduler: Scheduler, t_s: float) -> None:
    """Running rollouts end, first come first, until the learner has a batch."""
    for _ in range(1000):
        if scheduler.training:
            return
        group = next(iter(scheduler.dispatch.groups.values()))
        end = f.RolloutFinished(t_s, group.worker_id, group.group_id, 100, group.stamp)
        scheduler.observe(end)
    raise AssertionError("no batch after 1,000 rollouts")
