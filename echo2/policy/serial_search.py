"""How many workers a learner gets that cannot be kept busy: the number that gives least USD per step.

Called by `planner`. Each number is provisioned by the scheduler's own rule and predicted; predictions are
dear, so the search goes from coarse to fine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Provision
from echo2.policy.search import SEARCHED, Option, demand_for, kappa_choices, priced
from echo2.policy.serial import provision_serial, serial_rates

# Of a number of workers this part is not told apart: the price of a step is flat around the best.
RESOLUTION = 32


def serial_options(problem: PlanProblem, memory: PlanMemory) -> list[Option]:
    """As many workers, in price order, as give least USD per step, at the shortest and the longest period."""
    choices = kappa_choices(problem, problem.staleness_bound)
    options: list[Option] = []
    for kappa in sorted({choices[0], choices[-1]}):
        begin = options[0].result.activation.needed if options else 0.0
        options.append(_serial_option(problem, kappa, begin, memory))
    return options


def _serial_option(problem: PlanProblem, kappa: int, begin: float, memory: PlanMemory) -> Option:
    """The best found from the rate `begin` on; 0: from the one that a rough estimate gives."""
    demand, usd = demand_for(problem, kappa), problem.learner_usd_per_h
    topologies = problem.topologies or SEARCHED
    rates = serial_rates(problem.offers, problem.activation)
    known: dict[int, Option] = {}

    def provided(rate: float) -> Provision:
        rule = problem.activation
        return provision_serial(problem.offers, problem.links, demand, usd, rule, topologies, memory, rate)

    def cost(at: int) -> float:
        if at not in known:
            known[at] = priced(problem, provided(rates[at]), memory, topologies)
        return known[at].step_cost_usd

    begin = begin or provided(0.0).activation.needed
    at = least_near(cost, min(bisect_left(rates, begin * (1.0 - 1e-9)), len(rates) - 1), len(rates))
    return known[at]


def least_near(cost: Callable[[int], float], begin: int, count: int) -> int:
    """The index from 0 to `count` - 1 with the least cost, for a cost that falls and then rises.

    From `begin` on by doubling and halving while that costs no more, then in ever smaller steps around the
    best. Of equals the first.
    """
    known: dict[int, float] = {}

    def at(index: int) -> float:
        if index not in known:
            known[index] = cost(index)
        return known[index]

    here = begin
    while here < count - 1 and at(further := min(2 * here + 1, count - 1)) <= at(here):
        here = further
    here = begin if at(begin) < at(here) else here
    while here > 0 and at((here - 1) // 2) <= at(here):
        here = (here - 1) // 2
    best = min(known, key=lambda index: (known[index], index), default=here)
    at(best)
    step = max(1, (best + 1) // 2)
    while step >= max(1, (best + 1) // RESOLUTION):
        near = [index for index in (best - step, best + step) if 0 <= index < count]
        better = min(near, key=lambda index: (at(index), index), default=best)
        if at(better) < at(best):
            best = better
        else:
            step //= 2
    return best
