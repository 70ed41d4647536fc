"""What `echo2 optimise` makes small, of plans and of simulations alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from echo2.errors import InfeasibleError, UserError
from echo2.policy.plan_types import PlanProblem
from echo2.study.candidate import Planned

MOST_H = 1e6
OBJECTIVES = {"step": "USD per step", "wall-hour": "USD per wall hour"}
# A plan without the start-up may miss the deadline by this much and still be worth a simulation.
NEARLY = 1.02


@dataclass(frozen=True)
class Outcome:
    """A simulated candidate, means over its seeds. `complete`: all its runs came to their end."""

    usd_per_step: float
    steps_per_h: float
    wall_h: float
    utilisation: float
    staleness_mean: float
    workers: int
    complete: bool
    seeds: int = 1

    @property
    def usd_per_h(self) -> float:
        """USD per wall hour."""
        return self.usd_per_step * self.steps_per_h


@dataclass(frozen=True)
class Objective:
    """`name` is step or wall-hour; `deadline_h` (infinity: none) is for the whole run of `steps`."""

    name: str
    steps: int
    deadline_h: float = math.inf

    @property
    def unit(self) -> str:
        """Of its values."""
        return OBJECTIVES[self.name]

    def of_plan(self, planned: Planned) -> float:
        """By plan; infinite for a plan that misses the deadline, or idles where the hour is what counts."""
        plan = planned.plan
        if plan.steps_per_s <= 0 or self.steps / plan.steps_per_s > 3600 * self.deadline_h * NEARLY:
            return math.inf
        if self.name == "step":
            return plan.step_cost_usd
        # The cheapest hour is one in which nothing works: only plans that keep the learner busy count.
        return 3600 * plan.step_cost_usd * plan.steps_per_s if planned.busy else math.inf

    def of_outcome(self, outcome: Outcome) -> float:
        """As simulated; infinite for a run that did not finish, or not in time."""
        if not outcome.complete or outcome.wall_h > self.deadline_h:
            return math.inf
        return outcome.usd_per_step if self.name == "step" else outcome.usd_per_h


def objective(name: str, deadline_h: float | None, problem: PlanProblem) -> Objective:
    """The objective of these options. An unknown one or an impossible deadline: UserError."""
    if name not in OBJECTIVES:
        raise UserError(f"--objective {name}: must be {' or '.join(OBJECTIVES)}")
    if deadline_h is not None and not 0 < deadline_h <= MOST_H:
        raise UserError(f"--deadline-h {deadline_h:g}: must be > 0 and <= {MOST_H:,.0f}; or leave it out")
    made = Objective(name, problem.total_steps, math.inf if deadline_h is None else deadline_h)
    least_h = problem.total_steps * problem.train_s / 3600
    if made.deadline_h < least_h:
        raise InfeasibleError(
            f"--deadline-h {made.deadline_h:g}: {problem.total_steps} steps of {problem.train_s:.4g} s take "
            f"the learner {least_h:.4g} h alone; give at least that, fewer run.steps, or a faster learner",
            least_h=least_h,
        )
    return made


def check_reachable(goal: Objective, plans: Sequence[Planned]) -> None:
    """Refuse a deadline that no plan meets, with the fastest plan's time."""
    if plans and all(math.isinf(goal.of_plan(planned)) for planned in plans):
        if math.isinf(goal.deadline_h):
            raise InfeasibleError(
                "no plan keeps the learner busy, so the cheapest hour is not defined; give --objective step, "
                "more workers, or a larger run.staleness"
            )
        fastest = max(planned.plan.steps_per_s for planned in plans)
        raise InfeasibleError(
            f"--deadline-h {goal.deadline_h:g}: the fastest plan takes {goal.steps / fastest / 3600:.4g} h "
            f"for {goal.steps} steps; give more, fewer run.steps, or more workers in the pools"
        )
