"""The planner's search: publication periods provisioned, predicted and priced.

Called by `planner`, `serial_search`, `smallest` and `explain`. Options are looked at in the order of what
they must cost at least, so few are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from echo2.policy.broadcast import ChunkRules
from echo2.policy.capacity import safety_margin
from echo2.policy.facts import WorkerOffer
from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Provision, provision
from echo2.policy.serial import provision_serial
from echo2.policy.steady import SteadyProblem, SteadyState, WorkerGroup, predict
from echo2.policy.supply import kept_share, mean_up_share, supply_cv
from echo2.policy.worth import Demand

BUSY = 0.95
SEARCHED = ("star", "stripes", "regional")
# Chunk sizes differ by little: while searching few are tried.
COARSE = ChunkRules(stripe_sizes=3)
# Periods that the first look calls infeasible, looked at again with more care.
HOPELESS_TRIED = 1
MARGIN_TRIES = 2
MARGIN_ROUNDS = 4
MARGIN_SLACK = 1.002


@dataclass(frozen=True)
class Option:
    """One publication period, provisioned and predicted. USD per step decides between them.

    `topologies` are those its broadcast was chosen from (empty: all).
    """

    kappa: int
    result: Provision
    steady: SteadyState
    step_cost_usd: float
    cost_split_usd: dict[str, float]
    topologies: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """The rate is covered, snapshots do not queue, and the learner is predicted to be busy (`BUSY`)."""
        busy = self.steady.learner_utilisation >= BUSY
        return self.result.feasible and not self.result.queues and busy


def demand_for(problem: PlanProblem, kappa: int, margin: float = 0.0) -> Demand:
    """The provisioning rule's question for one publication period; margin 0: the one for the whole pool."""
    return Demand(
        staleness_bound=problem.staleness_bound,
        publish_period=kappa,
        rollouts_per_step=problem.rollouts_per_step,
        train_s=problem.train_s,
        snapshot_bytes=problem.snapshot_bytes,
        swap_pause_s=problem.swap_pause_s,
        reading=problem.reading,
        margin=problem.margin or margin or default_margin(problem, kappa, problem.offers),
        learner_usd_per_h=problem.learner_usd_per_h,
        mode=problem.mode,
        egress_weight=problem.egress_weight,
        join_bytes=problem.join_bytes,
    )


def default_margin(problem: PlanProblem, kappa: int, workers: Sequence[WorkerOffer]) -> float:
    """Safety margin from the variance of lengths and step times, preemptions and links (`capacity`).

    Of these workers; of none: from the lengths alone.
    """
    return safety_margin(
        rate_cv=problem.train_cv if workers else 0.0,
        batch_rollouts=kappa * problem.rollouts_per_step,
        length_cv=problem.lengths.cv,
        up_share=mean_up_share(workers, problem.links, demand_for(problem, kappa, 1.0)),
        workers=max(1, len(workers)),
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
        provisioned(problem, kappa, memory, thorough=False)
        for kappa in periods or kappa_choices(problem, problem.staleness_bound)
    ]
    first.sort(key=lambda r: (not r.feasible or r.queues, _least_step_usd(problem, r)))
    options: list[Option] = []
    for tried, result in enumerate(first):
        good = sorted(option.step_cost_usd for option in options if option.feasible)
        hopeless = not result.feasible or result.queues
        if options and hopeless and (good or tried >= HOPELESS_TRIED):
            break
        if len(good) >= wanted and good[wanted - 1] <= _least_step_usd(problem, result):
            break
        options.append(_overlap_option(problem, result.demand.publish_period, memory))
    return options


def keeps_busy(problem: PlanProblem, kappa: int, memory: PlanMemory) -> bool:
    """Whether this publication period is found feasible."""
    return _overlap_option(problem, kappa, memory).feasible


def provisioned(
    problem: PlanProblem, kappa: int, memory: PlanMemory, more: float = 1.0, thorough: bool = True
) -> Provision:
    """Provisioned with the safety margin of the workers that are chosen, times `more`.

    The margin depends on the set and the set on the margin: the next is that of the last set, from the
    lengths' alone on, so that what else is on offer does not matter. Only the topologies that nearly always
    win are tried here; the plan that is returned tries all.
    """
    topologies = problem.topologies or SEARCHED
    by_id = {offer.worker_id: offer for offer in problem.offers}
    margin = problem.margin or more * default_margin(problem, kappa, ())
    for _ in range(MARGIN_ROUNDS):
        demand = demand_for(problem, kappa, margin)
        offers, rule = problem.offers, problem.activation
        result = provision(offers, problem.links, demand, rule, topologies, memory, thorough=False)
        chosen = [by_id[name] for name in result.activation.chosen]
        wanted = problem.margin or more * default_margin(problem, kappa, chosen)
        if not result.feasible or margin / 1.02 <= wanted <= margin * MARGIN_SLACK:
            break
        margin = wanted
    if thorough:
        return provision(problem.offers, problem.links, result.demand, rule, topologies, memory)
    return result


def final(problem: PlanProblem, option: Option, memory: PlanMemory) -> Option:
    """The option as the scheduler will provision it: with every chunk size and topology tried.

    Where the one that seems best for the broadcast alone is worse for the run, the usual topologies stay.
    """
    exact = PlanMemory()
    exact.steady = memory.steady
    demand, rule = option.result.demand, problem.activation
    found = []
    for topologies in dict.fromkeys((problem.topologies, problem.topologies or SEARCHED)):
        if option.result.regime == "serial":
            rate, usd = option.result.activation.needed, problem.learner_usd_per_h
            result = provision_serial(
                problem.offers, problem.links, demand, usd, rule, topologies, exact, rate
            )
        else:
            result = provision(problem.offers, problem.links, demand, rule, topologies, exact)
        found.append(priced(problem, result, exact, topologies))
        if found[-1].feasible >= option.feasible and found[-1].step_cost_usd <= 1.001 * option.step_cost_usd:
            break
    return min(found, key=lambda o: (not o.feasible, o.step_cost_usd))


def _least_step_usd(problem: PlanProblem, result: Provision) -> float:
    """USD a step if the learner never idled."""
    chosen = set(result.activation.chosen)
    hourly = sum(o.price_usd_per_h for o in problem.offers if o.worker_id in chosen)
    hourly += problem.learner_usd_per_h
    egress = result.plan.egress_usd / result.demand.publish_period
    return hourly * problem.train_s / 3600.0 + egress


def _overlap_option(problem: PlanProblem, kappa: int, memory: PlanMemory) -> Option:
    """Predict; where the learner still idles, ask for more workers until it does not or the pool ends.

    The rule counts a worker by the share of time its gate is open, which is a mean: where the gate closes
    often, the batch also waits for its slowest rollouts, and only the prediction sees that.
    """
    topologies = problem.topologies or SEARCHED
    more = 1.0
    result = provisioned(problem, kappa, memory)
    best = priced(problem, result, memory, topologies)
    for _ in range(MARGIN_TRIES):
        if not result.feasible or result.queues or best.feasible or problem.margin:
            break
        more *= min(1.5, 1.05 * BUSY / max(best.steady.learner_utilisation, 0.1))
        result = provisioned(problem, kappa, memory, more)
        if not result.feasible:
            break
        option = priced(problem, result, memory, topologies)
        if option.steady.learner_utilisation < best.steady.learner_utilisation + 0.005:
            break
        best = option
    return best


def steady_state(
    problem: PlanProblem, kappa: int, result: Provision, memory: PlanMemory | None = None
) -> SteadyState:
    """What the chosen workers settle to, less what is lost because they come and go."""
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
    return _with_losses(result, problem, memory.steady[key])


def _with_losses(result: Provision, problem: PlanProblem, steady: SteadyState) -> SteadyState:
    """The steady state of a supply that varies around its mean (`supply.kept_share`)."""
    by_id = {offer.worker_id: offer for offer in problem.offers}
    chosen = [by_id[name] for name in result.activation.chosen]
    plain = replace(result.demand, margin=1.0)
    cv = supply_cv(chosen, result.effects, result.broadcast_s, problem.links, plain)
    if cv <= 0:
        return steady
    made = sum(result.effects[name].rollouts_per_s for name in result.activation.chosen)
    kept = kept_share(made / plain.rollouts_per_s, cv)
    return replace(
        steady,
        steps_per_s=steady.steps_per_s * kept,
        step_s=steady.step_s / kept,
        learner_utilisation=steady.learner_utilisation * kept,
    )


def priced(
    problem: PlanProblem, result: Provision, memory: PlanMemory, topologies: tuple[str, ...]
) -> Option:
    """A provisioned set, predicted, with what a step costs."""
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
    return Option(kappa, result, steady, sum(split.values()), split, topologies)
