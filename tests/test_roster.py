"""The roster's patience with workers that fail."""

from __future__ import annotations

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.scheduler import Scheduler
from echo2.testing import equal_workers, small_world


def waits(failures: int) -> list[float]:
    """Seconds from each failure of the only worker until it is asked again."""
    world = small_world(equal_workers(1), S=2, steps=1000)
    scheduler = Scheduler(world.settings)
    offer = world.workers[0].offer
    scheduler.observe(f.WorkerOffered(0.0, offer))
    out = scheduler.observe(f.RunStarted(0.0))
    found, now = [], 0.0
    for incarnation in range(1, failures + 1):
        assert [x.worker_id for x in out if isinstance(x, d.StartWorker)] == [offer.worker_id]
        scheduler.observe(f.WorkerJoined(now, offer.worker_id, incarnation))
        out = scheduler.observe(
            f.WorkerLeft(now, offer.worker_id, incarnation, "its process ended with code 1")
        )
        timer = next(x for x in out if isinstance(x, d.SetTimer) and x.name == "review")
        found.append(timer.at_s - now)
        now = timer.at_s
        out = scheduler.observe(f.TimerFired(now, "review"))
    return found


def test_a_worker_that_fails_is_asked_again_ever_more_rarely() -> None:
    """The first crash costs a minute, each further one twice as long, up to a quarter of an hour."""
    assert waits(6) == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
