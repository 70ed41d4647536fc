"""The planner's answers in words: what binds, what one more worker or unit of S buys, the alternative.

Each answer rests on a computation with the same rules as the plan. Called by `planner` and `plan_view`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from echo2.policy.activation.candidate import covers
from echo2.policy.facts import WorkerOffer
from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Provision
from echo2.policy.search import Option, overlap_options, provisioned, steady_state
from echo2.policy.smallest import LARGEST_S, covered_at

BINDS = {
    "learner": "the learner itself: workers and links keep it busy",
    "rollouts": "rollouts: the workers make too few for the learner",
    "freshness": "freshness: rollouts wait for newer weights before they may start",
    "broadcast": "the broadcast: snapshots arrive more slowly than they are published",
}


def answers(
    problem: PlanProblem,
    best: Option,
    options: Sequence[Option],
    smallest: int | None,
    memory: PlanMemory,
) -> Iterator[str]:
    """The planner's questions, answered one a line."""
    steady = best.steady
    yield (
        f"What binds: {BINDS[steady.binding]}; learner utilisation {steady.learner_utilisation:.1%}, "
        f"staleness {steady.mean_lag:.1f} on average, {steady.max_lag} at most."
    )
    if problem.staleness_bound == 0:
        yield _strictly_on_policy(steady.learner_utilisation, smallest)
    elif not best.feasible or best.result.regime == "serial":
        yield _idle_anyway(problem, smallest)
    yield one_more_worker(problem, best, memory)
    yield one_more_staleness(problem, best, memory)
    yield cheapest_alternative(problem, best, options)
    if not best.result.converged:
        yield f"Note: the iteration between workers and broadcast time {best.result.note}."


def _idle_anyway(problem: PlanProblem, smallest: int | None) -> str:
    if smallest is None:
        return "No S keeps the learner busy with this pool."
    if smallest <= problem.staleness_bound:
        return f"With other settings S = {smallest} would be enough to keep the learner busy."
    S = problem.staleness_bound
    return f"S = {S} is too tight to keep the learner busy; from S = {smallest} on it is."


def _strictly_on_policy(utilisation: float, smallest: int | None) -> str:
    later = f" From S = {smallest} on the learner can be kept busy." if smallest else ""
    return (
        f"S = 0 is strictly on-policy: the learner waits for each batch and works {utilisation:.0%} of the "
        f"time.{later}"
    )


def one_more_worker(problem: PlanProblem, best: Option, memory: PlanMemory) -> str:
    """What the next-best worker would change."""

    chosen = set(best.result.activation.chosen)
    outside = [offer for offer in problem.offers if offer.worker_id not in chosen]
    if not outside:
        return "One more worker: the whole pool is active already."
    offer = min(outside, key=lambda o: _usd_per_rollout(o, best.result))
    wider = replace(
        best.result.activation, chosen=tuple(sorted([*best.result.activation.chosen, offer.worker_id]))
    )
    after = steady_state(problem, best.kappa, replace(best.result, activation=wider), memory)
    faster = after.steps_per_s / best.steady.steps_per_s - 1.0
    usd = offer.price_usd_per_h + best.result.egress_usd_per_h[offer.worker_id]
    if faster < 0.005:
        return (
            f"One more worker ({offer.worker_id}, {offer.gpu}, {usd:.2f} USD/h): buys nothing, "
            f"{faster:+.1%} steps/s."
        )
    per_step = (usd + 3600.0 * best.step_cost_usd * best.steady.steps_per_s) / 3600.0 / after.steps_per_s
    change = per_step / best.step_cost_usd - 1.0
    return (
        f"One more worker ({offer.worker_id}, {offer.gpu}, {usd:.2f} USD/h): {faster:+.1%} steps/s, "
        f"{change:+.1%} USD per step."
    )


def one_more_staleness(problem: PlanProblem, best: Option, memory: PlanMemory) -> str:
    """What S + 1 would change."""

    later = replace(problem, staleness_bound=problem.staleness_bound + 1, publish_period=0)
    periods = (best.kappa, best.kappa + 1)
    good = [option for option in overlap_options(later, memory, 1, periods) if option.feasible]
    if not good:
        return f"One more unit of S ({later.staleness_bound}): still not enough to keep the learner busy."
    option = min(good, key=lambda o: (o.step_cost_usd, o.kappa))
    change = option.step_cost_usd / best.step_cost_usd - 1.0
    if abs(change) < 0.005 and option.steady.learner_utilisation < best.steady.learner_utilisation + 0.005:
        return f"One more unit of S ({later.staleness_bound}): changes nothing worth its staleness."
    workers = len(option.result.activation.chosen)
    return (
        f"One more unit of S ({later.staleness_bound}): kappa = {option.kappa}, {workers} workers, "
        f"utilisation {option.steady.learner_utilisation:.1%}, "
        f"{option.step_cost_usd:.3g} USD per step ({change:+.1%})."
    )


def cheapest_alternative(problem: PlanProblem, best: Option, options: Sequence[Option]) -> str:
    """The next cheapest publication period."""
    if problem.publish_period:
        return f"Alternative: kappa = {best.kappa} was asked for, so no other was tried."
    if problem.staleness_bound <= 1:
        return f"Alternative: none, kappa = {best.kappa} is the only period tried at this S."
    others = [option for option in options if option.kappa != best.kappa and option.feasible]
    if not others:
        if not best.feasible:
            return "Alternative: no publication period keeps the learner busy."
        return "Alternative: no other publication period keeps the learner busy."
    other = min(others, key=lambda option: (option.step_cost_usd, option.kappa))
    change = other.step_cost_usd / best.step_cost_usd - 1.0
    return (
        f"Cheapest alternative: kappa = {other.kappa} with {len(other.result.activation.chosen)} workers at "
        f"{other.step_cost_usd:.3g} USD per step ({change:+.1%})."
    )


def why_not(offer: WorkerOffer, result: Provision) -> str:
    """Why a worker is not in the plan."""
    effect = result.effects[offer.worker_id]
    if effect.rollouts_per_s <= 0:
        return f"worth nothing here: {effect.reason}"
    usd = offer.price_usd_per_h + result.egress_usd_per_h[offer.worker_id]
    return f"not needed: {usd / effect.rollouts_per_s:.3g} USD/h per fresh rollout/s; {effect.reason}"


def why_infeasible(
    problem: PlanProblem, nearest: Option, smallest: int | None, memory: PlanMemory
) -> tuple[str, list[str]]:
    """(what breaks and by how much, what would make it feasible). Every remedy has been tried by the rule."""
    result, kappa = nearest.result, nearest.kappa
    demand, activation = result.demand, result.activation
    needed = demand.rollouts_per_s
    raw = sum(offer.rollouts_per_s for offer in problem.offers)
    text = (
        f"infeasible at S = {problem.staleness_bound}: the learner needs {needed:.3g} fresh rollouts/s and "
        f"the pool of {raw:.3g} gives {activation.rate:.3g} at kappa = {kappa}"
    )
    if not covers(raw, needed):
        remedies = [
            f"add workers that make {needed - raw:.3g} rollouts/s more ({needed / raw - 1.0:.0%})",
            f"or let a step take {problem.rollouts_per_step * demand.margin / raw:.0f} s",
        ]
        return f"{text}: the pool is too small for any S.", remedies
    up = _up_on_average(problem, result)
    if result.regime == "overlap" and not covers(up, needed):
        return f"{text}. What breaks is the time to come back: {_lost_workers(problem, up)}.", [
            "smaller full snapshots, faster links, fewer preemptions or more workers would do"
        ]
    name = max(problem.offers, key=lambda offer: offer.rollouts_per_s).worker_id
    worker = next(offer for offer in problem.offers if offer.worker_id == name)
    alone_s = problem.links.solo_s(worker, problem.snapshot_bytes)
    steps = (alone_s + worker.group_s) / problem.train_s
    left = problem.staleness_bound + 1 - kappa
    takes = (
        f"{problem.snapshot_bytes / 1e9:.3g} GB of snapshot take {alone_s:.0f} s to {name} alone and a group "
        f"{worker.group_s:.0f} s, {steps:.1f} steps in all"
    )
    if steps > left:
        text += f". The term that breaks is freshness: {takes}, where S + 1 - kappa leaves {left}."
    elif result.queues:
        text += f". The term that breaks is the broadcast: {result.plan.time_s:.0f} s to all workers, "
        text += f"longer than the {demand.cycle_s:.0f} s between two publications."
    else:
        text += (
            f". On average that is in time ({takes}, of {left} that S + 1 - kappa leaves), but not for the"
        )
        text += f" slowest rollouts of a batch; what binds is {BINDS[nearest.steady.binding]}."
    if activation.feasible and not result.queues:
        text += f" The learner would work {nearest.steady.learner_utilisation:.0%} of the time."
    remedies = [f"smallest feasible S is {smallest}" if smallest else _no_staleness_helps(problem, memory)]
    return text, remedies + list(_what_would_do(problem, memory))


def _no_staleness_helps(problem: PlanProblem, memory: PlanMemory) -> str:
    """The term that still breaks where S is so large that freshness cannot."""
    text = f"no S up to {LARGEST_S:,} is enough"
    later = replace(problem, staleness_bound=LARGEST_S, publish_period=0)
    result = provisioned(later, LARGEST_S // 2, memory, thorough=False)
    needed, up = result.demand.rollouts_per_s, _up_on_average(problem, result)
    raw = sum(offer.rollouts_per_s for offer in problem.offers)
    if not covers(raw, needed):
        return f"{text}: the pool makes {raw:.3g} rollouts/s where {needed:.3g} are needed, with the margin"
    if not covers(up, needed):
        return f"{text}: {_lost_workers(problem, up)} where {needed:.3g} are needed"
    if result.queues:
        takes_h, apart_h = result.plan.time_s / 3600.0, result.demand.cycle_s / 3600.0
        return f"{text}: a snapshot takes {takes_h:.3g} h to all workers, two are {apart_h:.3g} h apart then"
    return text


def _up_on_average(problem: PlanProblem, result: Provision) -> float:
    """Rollouts/s of the workers that are up and whose links leave them work, on average."""
    return sum(offer.rollouts_per_s * result.effects[offer.worker_id].up_share for offer in problem.offers)


def _lost_workers(problem: PlanProblem, up: float) -> str:
    """That too few are up, because those that are lost take long to come back or links are out."""
    lost = sum(offer.preemptions_per_h for offer in problem.offers) / len(problem.offers)
    gigabytes = (problem.join_bytes or problem.snapshot_bytes) / 1e9
    back = [problem.links.solo_s(offer, 1e9 * gigabytes) + offer.startup_s for offer in problem.offers]
    out = sum(offer.link_out_share for offer in problem.offers) / len(problem.offers)
    links = f", and its link is out {out:.1%} of the time" if out >= 0.001 else ""
    needs = f"{sum(back) / len(back):.0f} s to start and fetch {gigabytes:.3g} GB"
    return (
        f"a worker is lost {lost:.2g} times an hour and needs {needs}{links}, so that workers for "
        f"{up:.3g} rollouts/s are up on average"
    )


def _what_would_do(problem: PlanProblem, memory: PlanMemory) -> Iterator[str]:
    """The smallest power of two by which smaller snapshots, faster links or a slower learner would do."""

    S = max(1, problem.staleness_bound)
    for factor in (2, 4, 8, 16, 32, 64):
        smaller = replace(
            problem,
            snapshot_bytes=problem.snapshot_bytes / factor,
            full_snapshot_bytes=problem.full_snapshot_bytes / factor,
        )
        if covered_at(smaller, S, memory):
            yield f"snapshots {factor}x smaller (model.delta_ratio) or links {factor}x faster would do"
            break
    for factor in (2, 4, 8):
        if covered_at(replace(problem, train_s=problem.train_s * factor), S, memory):
            yield f"a batch that takes the learner {factor}x as long would do"
            break


def _usd_per_rollout(offer: WorkerOffer, result: Provision) -> tuple[float, str]:
    rate = result.effects[offer.worker_id].rollouts_per_s
    usd = offer.price_usd_per_h + result.egress_usd_per_h[offer.worker_id]
    return (usd / rate if rate > 0 else float("inf"), offer.worker_id)
