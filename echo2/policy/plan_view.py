"""A chosen option put into words and figures: what `plan --json` and the plan's tables show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echo2.policy import explain
from echo2.policy.broadcast import BroadcastPlan, fluid_bound_s
from echo2.policy.capacity import upper_bound_steps_per_s, worst_lag
from echo2.policy.facts import WorkerOffer
from echo2.policy.full_snapshots import full_every
from echo2.policy.least_cost import least_cost_usd_per_h
from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlannedWorkers, PlanProblem, RunPlan
from echo2.policy.provision import Provision
from echo2.policy.search import Option


def run_plan(
    problem: PlanProblem,
    best: Option,
    options: Sequence[Option],
    smallest: int | None,
    words: tuple[str, ...],
    memory: PlanMemory,
    exact_bound: bool = True,
) -> RunPlan:
    """The plan of one option. Without `exact_bound` its cost stands beside the rule's own LP bound."""
    result, steady = best.result, best.steady
    demand, activation = result.demand, result.activation
    by_id = {offer.worker_id: offer for offer in problem.offers}
    chosen = [by_id[name] for name in activation.chosen]
    bound, _ = upper_bound(problem, chosen)
    return RunPlan(
        S=problem.staleness_bound,
        kappa=best.kappa,
        smallest_feasible_S=smallest,
        regime=result.regime,
        mu_needed=demand.rollouts_per_s,
        mu_active=sum(result.effects[name].rollouts_per_s for name in activation.chosen),
        margin=demand.margin,
        learner_utilisation=steady.learner_utilisation,
        steps_per_s=steady.steps_per_s,
        upper_bound_steps_per_s=bound,
        binding=steady.binding,
        worst_lag=_worst_lag(problem, best, chosen),
        step_cost_usd=best.step_cost_usd,
        cost_split_usd=best.cost_split_usd,
        t_bcast_s=result.plan.time_s,
        broadcast=_broadcast_json(problem, result, chosen, memory),
        activation=_activation_json(problem, result, chosen, exact_bound),
        workers=_by_pool(problem, result),
        chosen=activation.chosen,
        answers=words,
        considered=tuple(_considered(option) for option in options),
        topologies=best.topologies,
        full_every=problem.full_every or _full_every(problem, best, chosen),
    )


def _activation_json(
    problem: PlanProblem, result: Provision, chosen: Sequence[WorkerOffer], exact_bound: bool
) -> dict[str, Any]:
    """What the chosen workers and their egress cost, and what any set of this rate must cost at least."""
    demand, activation = result.demand, result.activation
    egress = result.plan.egress_usd * 3600.0 / demand.cycle_s
    cost, bound = sum(offer.price_usd_per_h for offer in chosen) + egress, activation.bound_usd_per_h
    if exact_bound:
        serial = result.regime == "serial"
        needed = min(activation.needed, activation.rate)
        bound = least_cost_usd_per_h(problem.offers, problem.links, demand, needed, in_full=serial)
    return {
        "cost_usd_per_h": cost,
        "egress_usd_per_h": egress,
        "bound_usd_per_h": bound,
        "bound": "any set, any broadcast" if exact_bound else "this broadcast",
        "ratio": cost / bound if bound > 0 else 1.0,
        "method": activation.method,
        "baseline_all_on_usd_per_h": sum(offer.price_usd_per_h for offer in problem.offers),
        "converged": result.converged,
        "note": result.note,
    }


def _full_every(problem: PlanProblem, best: Option, chosen: Sequence[WorkerOffer]) -> int:
    """Whoever is lost is replaced: as many workers join in a cycle as are lost in it."""
    full, cycle_h = problem.full_snapshot_bytes, best.kappa / best.steady.steps_per_s / 3600.0
    joins = sum(offer.preemptions_per_h for offer in chosen) * cycle_h
    alone_s = [problem.links.solo_s(offer, full) for offer in chosen]
    return full_every(full, problem.snapshot_bytes, joins, 8.0 * full * len(chosen) / sum(alone_s))


def upper_bound(problem: PlanProblem, chosen: Sequence[WorkerOffer]) -> tuple[float, str]:
    """Steps/s no run with these workers can exceed, and the term (design section 3)."""
    fastest = problem.links.soonest_s(chosen, problem.snapshot_bytes)
    shortest = float(problem.lengths.quantile(0.0)) * min(
        problem.decode[offer.worker_id].step_s(1, problem.prompt_tokens) for offer in chosen
    )
    rate = sum(offer.rollouts_per_s for offer in chosen)
    return upper_bound_steps_per_s(
        problem.staleness_bound, problem.rollouts_per_step, problem.train_s, rate, fastest, shortest
    )


def _worst_lag(problem: PlanProblem, best: Option, chosen: Sequence[WorkerOffer]) -> int:
    """floor(kappa + b + g + q) over the chosen workers, with q = 0; the gate cuts it at S."""
    return max(
        worst_lag(
            best.kappa,
            best.result.broadcast_s[offer.worker_id] / problem.train_s,
            offer.group_s / problem.train_s,
            0.0,
        )
        for offer in chosen
    )


def _broadcast_json(
    problem: PlanProblem, result: Provision, chosen: Sequence[WorkerOffer], memory: PlanMemory
) -> dict[str, Any]:
    plan: BroadcastPlan = result.plan
    plans = memory.candidates(chosen, problem.links, problem.snapshot_bytes, ("star",))
    star = next((p for p in plans if p.topology == "star"), plan)
    return {
        "topology": plan.name,
        "time_s": plan.time_s,
        "mean_s": plan.mean_s,
        "bound_s": plan.bound_s or fluid_bound_s(problem.links.problem(list(chosen), plan.size_bytes)),
        "ratio": plan.ratio,
        "egress_usd": plan.egress_usd,
        "chunks": plan.chunks,
        "size_bytes": plan.size_bytes,
        "baseline_star_s": star.time_s,
        "baseline_star_egress_usd": star.egress_usd,
        "reason": result.plan_reason,
    }


def _by_pool(problem: PlanProblem, result: Provision) -> tuple[PlannedWorkers, ...]:
    chosen = set(result.activation.chosen)
    reasons = dict(result.activation.reasons)
    rows = []
    pools: dict[str, list[WorkerOffer]] = {}
    for offer in problem.offers:
        pools.setdefault(offer.pool, []).append(offer)
    for pool, offers in pools.items():
        on = [offer for offer in offers if offer.worker_id in chosen]
        shown = on or offers
        first = shown[0]
        names = [offer.worker_id for offer in shown]
        count = len(shown)
        rows.append(
            PlannedWorkers(
                pool=pool,
                gpu=first.gpu,
                site=first.site,
                on_offer=len(offers),
                active=len(on),
                price_usd_per_h=sum(offer.price_usd_per_h for offer in shown) / count,
                egress_usd_per_h=sum(result.egress_usd_per_h.get(name, 0.0) for name in names) / count,
                rollouts_per_s=sum(offer.rollouts_per_s for offer in shown) / count,
                effective_rollouts_per_s=sum(result.effects[n].rollouts_per_s for n in names) / count,
                t_bcast_s=max(result.broadcast_s[name] for name in names),
                reason=reasons.get(first.worker_id) if on else explain.why_not(first, result),  # type: ignore[arg-type]
            )
        )
    return tuple(rows)


def _considered(option: Option) -> dict[str, Any]:
    activation = option.result.activation
    return {
        "kappa": option.kappa,
        "feasible": option.result.feasible,
        "workers": len(activation.chosen),
        "topology": option.result.plan.name,
        "t_bcast_s": option.result.plan.time_s,
        "learner_utilisation": option.steady.learner_utilisation,
        "step_cost_usd": option.step_cost_usd,
    }
