"""How much of a simulated run is its start-up, so that a short run is not mistaken for a slow one.

Called by `echo2 simulate` and `echo2 sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo2.policy.plan_types import RunPlan
    from echo2.sim.run import SimResult

# A step is at full rate when it takes at most this many times what the plan says.
FULL_RATE = 1.1


@dataclass(frozen=True)
class StartUp:
    """Steps before the first one at full rate, the seconds they took, learner utilisation after them.

    `steps` is all steps and `learner_utilisation` None where none was at full rate.
    """

    steps: int
    seconds: float
    learner_utilisation: float | None


def startup(result: SimResult, made: RunPlan) -> StartUp:
    """The start-up of a simulated run, against the plan's steps/s."""
    ends, train_s = result.world.metrics.step_end_s, result.world.metrics.train_s
    limit_s = FULL_RATE / max(made.steps_per_s, 1e-12)
    began_s = 0.0
    for steps, end_s in enumerate(ends):
        if end_s - began_s <= limit_s:
            wall_s = max(result.world.wall_s - began_s, 1e-12)
            return StartUp(steps, began_s, min(1.0, sum(train_s[steps:]) / wall_s))
        began_s = end_s
    return StartUp(len(ends), result.world.wall_s, None)


def phrase(start: StartUp) -> str:
    """In words, for the row of the learner's utilisation; empty where the run began at full rate."""
    if not start.steps:
        return ""
    took = f"start-up {start.steps} step{'s' * (start.steps > 1)}, {start.seconds / 60:.0f} min"
    if start.learner_utilisation is None:
        return f"{took}: never at the planned rate"
    return f"{took}; {start.learner_utilisation:.1%} after it"
