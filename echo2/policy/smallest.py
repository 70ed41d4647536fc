"""The smallest staleness bound at which a pool keeps the learner busy.

Called by `planner` and `explain`. Planning at one S is dear where nothing is feasible, for then every
period is tried; so what the closed-form limit of the march rules out is not planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Provision, covered_alone
from echo2.policy.search import (
    BUSY,
    default_margin,
    demand_for,
    kappa_choices,
    keeps_busy,
    overlap_options,
    provisioned,
)
from echo2.policy.steady import most_utilisation

LARGEST_S = 4096
# Above this the answer is coarse anyway, and each prediction takes long: few periods are tried.
FEW_PERIODS_ABOVE = 64
# Values of S that the limit names as the smallest and that are planned before the scan.
GUESSES = 2


def covered_at(problem: PlanProblem, S: int, memory: PlanMemory) -> Provision | None:
    """By the rule alone: the shortest period at which the pool covers the need at S, if there is one."""
    at = replace(problem, staleness_bound=S, publish_period=0)
    soonest_s = at.links.soonest_s(at.offers, at.snapshot_bytes)
    for kappa in kappa_choices(at, S):
        if kappa * at.train_s < soonest_s:
            continue  # snapshots would queue, whoever is chosen
        least = demand_for(at, kappa, default_margin(at, kappa, ()))
        if not covered_alone(at.offers, at.links, least):
            continue
        result = provisioned(at, kappa, memory, thorough=False)
        if result.feasible and not result.queues:
            return result
    return None


def smallest_feasible(problem: PlanProblem, memory: PlanMemory, known_feasible: bool) -> int | None:
    """The smallest S >= 1 at which the pool keeps the learner busy; None if no S does (to 4,096).

    The rule finds where to look (it is monotone in S). From there on S grows in doubling strides until a
    plan is accepted, and halving finds the first: every S named has been planned. Beyond 64 it is the
    smallest to within 3 %.
    """
    begin = _rule_begins(problem, memory)
    if begin is None:
        return None
    given = problem.staleness_bound if known_feasible else LARGEST_S + 1
    accepted = _Accepted(problem, memory)
    for _ in range(GUESSES):
        guess = first_accepted(accepted.possible, begin, given)
        if guess is None or guess >= given or accepted(guess):
            break
    return first_accepted(accepted, begin, given)


def first_accepted(accepted: Callable[[int], bool], begin: int, given: int) -> int | None:
    """The first S from `begin` on that is accepted, in strides of 3 %; `given` and beyond need no asking."""
    coarse = max(1, begin // 32)
    low, at, stride = begin - 1, begin, coarse
    while at < given and not accepted(at):
        if at >= LARGEST_S:
            return None
        low, at, stride = at, min(at + stride, LARGEST_S), 2 * stride
    high = min(at, given)
    while high - low > coarse:
        middle = (low + high) // 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return high


def _rule_begins(problem: PlanProblem, memory: PlanMemory) -> int | None:
    """The smallest S that the rule covers, to within 3 %; None if it covers none."""
    low, high = 0, max(1, problem.staleness_bound)
    while not covered_at(problem, high, memory):
        if high >= LARGEST_S:
            return None
        low, high = high, min(LARGEST_S, 2 * high + 1)
    while high - low > max(1, high // 32):
        middle = (low + high) // 2
        low, high = (low, middle) if covered_at(problem, middle, memory) else (middle, high)
    return high


class _Accepted:
    """Whether a plan at S is accepted: the question that `plan_run` asks, with the same search.

    What is accepted at an S is taken to be accepted at every larger one that the limit allows.
    """

    def __init__(self, problem: PlanProblem, memory: PlanMemory) -> None:
        self._problem = replace(problem, publish_period=0)
        self._memory = memory
        self._soonest_s = problem.links.soonest_s(problem.offers, problem.snapshot_bytes)
        self._refused, self._accepted = 0, LARGEST_S + 1

    def __call__(self, S: int) -> bool:
        if not self.possible(S):
            return False
        if self._accepted > S:
            if self._planned(S):
                self._accepted = S
            else:
                self._refused = S
        return self._accepted <= S

    def possible(self, S: int) -> bool:
        """Whether nothing known rules S out."""
        return self._refused < S and bool(self._periods(S))

    def _periods(self, S: int) -> list[int]:
        """Periods that the limit allows, the one with most to spare first."""
        problem = self._problem
        few = sorted({S // 2, 3 * S // 4})
        periods = few if S > FEW_PERIODS_ABOVE else kappa_choices(replace(problem, staleness_bound=S), S)
        limits = {
            kappa: most_utilisation(S, kappa, problem.train_s, self._soonest_s, problem.lengths.cv)
            for kappa in periods
            if kappa * problem.train_s >= self._soonest_s
        }
        allowed = [kappa for kappa in limits if limits[kappa] >= BUSY]
        return sorted(allowed, key=lambda kappa: (-limits[kappa], kappa))

    def _planned(self, S: int) -> bool:
        at, memory, allowed = replace(self._problem, staleness_bound=S), self._memory, self._periods(S)
        first = [provisioned(at, kappa, memory, thorough=False) for kappa in allowed]
        hopeful = [kappa for kappa, result in zip(allowed, first) if result.feasible and not result.queues]
        if hopeful:
            return any(keeps_busy(at, kappa, memory) for kappa in hopeful)
        periods = (S // 2, 3 * S // 4) if S > FEW_PERIODS_ABOVE else ()
        return any(option.feasible for option in overlap_options(at, memory, 1, periods))
