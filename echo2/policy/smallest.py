"""The smallest staleness bound at which a pool keeps the learner busy.

Called by `planner` and `explain`.
"""

from __future__ import annotations

from dataclasses import replace

from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Provision, covered_alone
from echo2.policy.search import default_margin, demand_for, kappa_choices, overlap_options, provisioned

LARGEST_S = 4096
# Above this the answer is coarse anyway, and each prediction takes long: few periods are tried.
FEW_PERIODS_ABOVE = 64


def covered_at(problem: PlanProblem, S: int, memory: PlanMemory) -> Provision | None:
    """By the rule alone: the shortest period at which the pool covers the need at S, if there is one."""
    at = replace(problem, staleness_bound=S, publish_period=0)
    for kappa in kappa_choices(at, S):
        least = demand_for(at, kappa, default_margin(at, kappa, ()))
        if not covered_alone(at.offers, at.links, least):
            continue
        result = provisioned(at, kappa, memory, thorough=False)
        if result.feasible and not result.queues:
            return result
    return None


def _good_at(problem: PlanProblem, S: int, memory: PlanMemory) -> bool:
    """Whether a plan at S is accepted: the question that `plan_run` asks, with the same search."""
    at = replace(problem, staleness_bound=S, publish_period=0)
    periods = (S // 2, 3 * S // 4) if S > FEW_PERIODS_ABOVE else ()
    return any(option.feasible for option in overlap_options(at, memory, 1, periods))


def smallest_feasible(problem: PlanProblem, memory: PlanMemory, known_feasible: bool) -> int | None:
    """The smallest S >= 1 at which the pool keeps the learner busy; None if no S does (to 4,096).

    The rule finds where to look (it is monotone in S). From there on S grows in doubling strides until a
    plan is accepted, and halving finds the first: every S named has been planned. Beyond 64 it is the
    smallest to within 3 %.
    """
    high = max(1, problem.staleness_bound)
    low = 0
    while not covered_at(problem, high, memory):
        if high >= LARGEST_S:
            return None
        low, high = high, min(LARGEST_S, 2 * high + 1)
    while high - low > max(1, high // 32):
        middle = (low + high) // 2
        low, high = (low, middle) if covered_at(problem, middle, memory) else (middle, high)
    given = problem.staleness_bound if known_feasible else LARGEST_S + 1
    coarse = max(1, high // 32)
    low, at, stride = high - 1, high, coarse
    while at < given and not _good_at(problem, at, memory):
        if at >= LARGEST_S:
            return None
        low, at, stride = at, min(at + stride, LARGEST_S), 2 * stride
    high = min(at, given)
    while high - low > coarse:
        middle = (low + high) // 2
        low, high = (low, middle) if _good_at(problem, middle, memory) else (middle, high)
    return high
