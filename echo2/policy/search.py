"""The planner's search: publication periods provisioned, predicted and priced, and the smallest feasible S.

Called by `planner` and `explain`. Options are looked at in the order of what they must cost at least, so few
are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from echo2.policy.capacity import safety_margin
from echo2.policy.facts import WorkerOffer
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Demand, PlanMemory, Provision, provision
from echo2.policy.serial import provision_serial, serial_rates
from echo2.policy.steady import SteadyProblem, SteadyState, WorkerGroup, predict

LARGEST_S = 4096
BUSY = 0.95
SEARCHED = ("star", "stripes", "regional")
MARGIN_TRIES = 2


@dataclass(frozen=True)
class Option:
    """One publication period, provisioned and predicted. USD per step decides between them."""

    kappa: int
    result: Provision
    steady: SteadyState
    step_cost_usd: float
    cost_split_usd: dict[str, float]

    @property
    def feasible(self) -> bool:
        """The rate is covered, snapshots do not queue, and the learner is predicted to be busy (`BUSY`)."""
        busy = self.steady.learner_utilisation >= BUSY
        return self.result.feasible and not self.result.queues and busy


def demand_for(problem: PlanProblem, kappa: int) -> Demand:
    """The provisioning rule's question for one publication period."""
    return Demand(
        staleness_bound=problem.staleness_bound,
        publish_period=kappa,
        rollouts_per_step=problem.rollouts_per_step,
        train_s=problem.train_s,
        snapshot_bytes=problem.snapshot_bytes,
        swap_pause_s=problem.swap_pause_s,
        reading=problem.reading,
        margin=problem.margin or default_margin(problem, kappa),
        learner_usd_per_h=problem.learner_usd_per_h,
    )


def default_margin(problem: PlanProblem, kappa: int) -> float:
    """Safety margin from the variance of lengths and step times and from preemptions (`capacity`)."""
    offers = problem.offers
    count = len(offers)
    return safety_margin(
        rate_cv=problem.train_cv,
        batch_rollouts=kappa * problem.rollouts_per_step,
        length_cv=problem.lengths.cv,
        preemptions_per_h=sum(offer.preemptions_per_h for offer in offers) / count,
        restart_s=sum(offer.startup_s for offer in offers) / count,
        workers=count,
    )


def kappa_choices(problem: PlanProblem, S: int) -> list[int]:
    """Publication periods worth trying at S: all while they are few, else a spread that ends at S."""
    if problem.publish_period:
        return [problem.publish_period]
    if S <= 1:
        return [1]
    if S <= 12:
        return list(range(1, S + 1))
    spread = {1, 2, 3, 4, 6, 8, 12, S // 4, S // 3, S // 2, 2 * S // 3, 3 * S // 4, S - 4, S - 2, S - 1, S}
    return sorted(kappa for kappa in spread if 1 <= kappa <= S)


def overlap_options(
    problem: PlanProblem, memory: PlanMemory, wanted: int = 2, periods: Sequence[int] = ()
) -> list[Option]:
    """The cheapest publication periods, provisioned to keep the learner busy and predicted. None at S = 0.

    Branch and bound: a period cannot cost less than its workers do with a learner that never idles, so
    periods are predicted in the order of that bound until `wanted` feasible ones undercut the next bound.
    """
    if problem.staleness_bound == 0:
        return []
    first = [
        _provisioned(problem, demand_for(problem, kappa), memory)
        for kappa in periods or kappa_choices(problem, problem.staleness_bound)
    ]
    first.sort(key=lambda r: (not r.feasible or r.queues, _least_step_usd(problem, r)))
    options: list[Option] = []
    for result in first:
        good = sorted(option.step_cost_usd for option in options if option.feasible)
        hopeless = not result.feasible or result.queues
        if options and hopeless:
            break
        if len(good) >= wanted and good[wanted - 1] <= _least_step_usd(problem, result):
            break
        options.append(_overlap_option(problem, result, memory))
    return options


def _provisioned(problem: PlanProblem, demand: Demand, memory: PlanMemory) -> Provision:
    """Provisioned with the topologies that nearly always win; the plan that is returned tries all."""
    topologies = problem.topologies or SEARCHED
    return provision(problem.offers, problem.links, demand, problem.activation, topologies, memory)


def final(problem: PlanProblem, option: Option, memory: PlanMemory) -> Option:
    """The option as the scheduler will provision it, with every topology tried."""
    if option.result.regime == "serial":
        return option
    demand, rule = option.result.demand, problem.activation
    result = provision(problem.offers, problem.links, demand, rule, problem.topologies, memory)
    return _priced(problem, result, memory) if result.feasible else option


def _least_step_usd(problem: PlanProblem, result: Provision) -> float:
    """USD a step if the learner never idled."""
    chosen = set(result.activation.chosen)
    hourly = sum(o.price_usd_per_h for o in problem.offers if o.worker_id in chosen)
    hourly += problem.learner_usd_per_h
    egress = result.plan.egress_usd / result.demand.publish_period
    return hourly * problem.train_s / 3600.0 + egress


def _overlap_option(problem: PlanProblem, result: Provision, memory: PlanMemory) -> Option:
    """Predict; where the learner still idles, ask for more workers until it does not or the pool ends.

    The rule counts a worker by the share of time its gate is open, which is a mean: where the gate closes
    often, the batch also waits for its slowest rollouts, and only the prediction sees that.
    """
    best = _priced(problem, result, memory)
    for _ in range(MARGIN_TRIES):
        if not result.feasible or result.queues or best.feasible or problem.margin:
            break
        more = min(1.5, 1.05 * BUSY / max(best.steady.learner_utilisation, 0.1))
        result = _provisioned(problem, replace(result.demand, margin=result.demand.margin * more), memory)
        if not result.feasible:
            break
        option = _priced(problem, result, memory)
        if option.steady.learner_utilisation < best.steady.learner_utilisation + 0.005:
            break
        best = option
    return best


def serial_options(problem: PlanProblem, memory: PlanMemory) -> list[Option]:
    """Where the learner cannot be kept busy: as many workers, in price order, as give least USD per step."""
    choices = kappa_choices(problem, problem.staleness_bound)
    return [_serial_option(problem, kappa, memory) for kappa in {choices[0], choices[-1]}]


def _serial_option(problem: PlanProblem, kappa: int, memory: PlanMemory) -> Option:
    demand = demand_for(problem, kappa)
    best: Option | None = None
    worse = 0
    for rate in serial_rates(problem.offers, problem.activation):
        result = provision_serial(
            problem.offers,
            problem.links,
            demand,
            problem.learner_usd_per_h,
            problem.activation,
            problem.topologies,
            memory,
            rate,
        )
        option = _priced(problem, result, memory)
        if best is None or option.step_cost_usd < best.step_cost_usd:
            best, worse = option, 0
        else:
            worse += 1
        # The price per step falls, then rises with the number of workers.
        if worse == 3:
            break
    assert best is not None
    return best


def steady_state(
    problem: PlanProblem, kappa: int, result: Provision, memory: PlanMemory | None = None
) -> SteadyState:
    """What the chosen workers settle to."""
    by_id = {offer.worker_id: offer for offer in problem.offers}
    alike: dict[tuple[Any, ...], list[WorkerOffer]] = {}
    for name in result.activation.chosen:
        offer = by_id[name]
        seconds = result.broadcast_s[name]
        # Within 2 % the snapshot arrives "together": fewer classes, same course.
        bucket = round(50.0 * (1.0 + seconds) / (1.0 + result.plan.time_s))
        alike.setdefault((problem.decode[name], offer.slots, bucket), []).append(offer)
    if not alike:
        return SteadyState(0.0, 0.0, 0.0, "rollouts", 0.0, 0, float("inf"), 0.0)
    groups = []
    for (decode, slots, _), offers in alike.items():
        mean_s = sum(result.broadcast_s[offer.worker_id] for offer in offers) / len(offers)
        up = sum(result.effects[offer.worker_id].up_share for offer in offers) / len(offers)
        groups.append(WorkerGroup(len(offers), decode, slots, mean_s, up))
    memory = memory or PlanMemory()
    key = (problem.staleness_bound, kappa, problem.train_s, tuple(groups))
    if key not in memory.steady:
        memory.steady[key] = predict(
            SteadyProblem(
                S=problem.staleness_bound,
                kappa=kappa,
                B=problem.rollouts_per_step,
                G=problem.group_size,
                train_s=problem.train_s,
                workers=tuple(groups),
                lengths=problem.lengths,
                prompt_tokens=problem.prompt_tokens,
                swap_pause_s=problem.swap_pause_s,
                reading=problem.reading,
            )
        )
    return memory.steady[key]


def _priced(problem: PlanProblem, result: Provision, memory: PlanMemory) -> Option:
    kappa = result.demand.publish_period
    steady = steady_state(problem, kappa, result, memory)
    step_s = 1.0 / steady.steps_per_s if steady.steps_per_s > 0 else float("inf")
    by_id = {offer.worker_id: offer for offer in problem.offers}
    hourly = sum(by_id[name].price_usd_per_h for name in result.activation.chosen)
    split = {
        "learner": problem.learner_usd_per_h * step_s / 3600.0,
        "workers": hourly * step_s / 3600.0,
        "egress": result.plan.egress_usd / kappa,
    }
    return Option(kappa, result, steady, sum(split.values()), split)


def covered_at(problem: PlanProblem, S: int, memory: PlanMemory) -> Provision | None:
    """By the rule alone: the shortest period at which the pool covers the need at S, if there is one."""
    at = replace(problem, staleness_bound=S, publish_period=0)
    for kappa in kappa_choices(at, S):
        result = _provisioned(at, demand_for(at, kappa), memory)
        if result.feasible and not result.queues:
            return result
    return None


def _good_at(problem: PlanProblem, S: int, memory: PlanMemory) -> bool:
    """Whether a plan at S is accepted: the question that `plan_run` asks, with the same search."""
    at = replace(problem, staleness_bound=S, publish_period=0)
    return any(option.feasible for option in overlap_options(at, memory, 1))


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
    while high - low > 1:
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
