"""The planner: which publication period, which workers, which broadcast, at what price; or why not.

Called by `echo2 plan` before anything is rented, and by `simulate` and the live runtime to settle what the
configuration leaves open. It uses the scheduler's own rule (`provision`, `serial`), so the run starts as
planned. The search is in `search`, the answers in words are made by `explain`.
"""

from __future__ import annotations

from collections.abc import Sequence

from echo2.errors import InfeasibleError, UserError
from echo2.policy import explain
from echo2.policy.capacity import check_publish_period
from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem, RunPlan
from echo2.policy.plan_view import run_plan
from echo2.policy.search import COARSE, Option, final, overlap_options
from echo2.policy.serial_search import serial_options
from echo2.policy.settings import SchedulerSettings
from echo2.policy.smallest import smallest_feasible

BEST_EFFORT_HINT = "or accept an idle learner with best_effort = true in [run]"


def plan_run(problem: PlanProblem) -> RunPlan:
    """Plan a run. UserError for an impossible question, InfeasibleError with what would make it work."""
    memory = PlanMemory(COARSE)
    options, good = _search(problem, memory)
    smallest = smallest_feasible(problem, memory, bool(good))
    if not good and not (problem.best_effort or problem.staleness_bound == 0):
        raise _infeasible(problem, options, smallest, memory)
    if not good:
        good = options = serial_options(problem, memory)
    best = _cheapest(problem, good, memory)
    words = tuple(explain.answers(problem, best, options, smallest, memory))
    return run_plan(problem, best, options, smallest, words, memory)


def settle_run(problem: PlanProblem) -> tuple[RunPlan, bool]:
    """(the plan that is run, whether it keeps the learner busy) without the planner's studies and words.

    For sweeps: the same decisions as `plan_run` with best effort, in a fraction of the time.
    """
    memory = PlanMemory(COARSE)
    _, good = _search(problem, memory)
    chosen = good or serial_options(problem, memory)
    best = _cheapest(problem, chosen, memory)
    return run_plan(problem, best, good or chosen, None, (), memory, exact_bound=False), bool(good)


def _search(problem: PlanProblem, memory: PlanMemory) -> tuple[list[Option], list[Option]]:
    """(options looked at, those that are feasible)."""
    if not problem.offers:
        raise UserError("the pool is empty: add at least one [[pool]] with count >= 1")
    if problem.publish_period:
        check_publish_period(problem.staleness_bound, problem.publish_period)
    options = overlap_options(problem, memory)
    return options, [option for option in options if option.feasible]


def _cheapest(problem: PlanProblem, options: Sequence[Option], memory: PlanMemory) -> Option:
    best = min(options, key=lambda option: (option.step_cost_usd, option.kappa))
    return final(problem, best, memory)


def settings_for(problem: PlanProblem, plan: RunPlan) -> SchedulerSettings:
    """The scheduler's settings for a planned run."""
    return SchedulerSettings(
        staleness_bound=problem.staleness_bound,
        publish_period=plan.kappa,
        rollouts_per_step=problem.rollouts_per_step,
        group_size=problem.group_size,
        total_steps=problem.total_steps,
        train_s=problem.train_s,
        full_snapshot_bytes=problem.full_snapshot_bytes,
        snapshot_bytes=problem.snapshot_bytes,
        learner_usd_per_h=problem.learner_usd_per_h,
        links=problem.links,
        swap_pause_s=problem.swap_pause_s,
        reading=problem.reading,
        mode=problem.mode,
        activation=problem.activation,
        topologies=plan.topologies,
        margin=plan.margin,
        serial_rate=plan.mu_active if plan.regime == "serial" else 0.0,
        full_every=plan.full_every,
        egress_weight=problem.egress_weight,
        join_bytes=problem.join_bytes,
    )


def _infeasible(
    problem: PlanProblem, options: Sequence[Option], smallest: int | None, memory: PlanMemory
) -> InfeasibleError:
    nearest = min(options, key=lambda option: option.result.activation.shortfall)
    text, remedies = explain.why_infeasible(problem, nearest, smallest, memory)
    return InfeasibleError(
        f"{text} {'; '.join(remedies)}; {BEST_EFFORT_HINT}",
        S=problem.staleness_bound,
        smallest_feasible_S=smallest,
        kappa=nearest.kappa,
        mu_needed=nearest.result.demand.rollouts_per_s,
        mu_available=nearest.result.activation.rate,
        remedies=remedies,
    )
