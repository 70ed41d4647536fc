"""Provisioning where generation and training cannot overlap fully: S = 0, or a bound that is too tight.

No number of workers keeps the learner busy then, so the question becomes which set gives the least USD
per step. Called by the planner and the scheduler through `provision_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from echo2.policy.activation import Candidate
from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable
from echo2.policy.plan_choice import PlanMemory, plan_broadcast, receiver_egress_usd
from echo2.policy.provision import Provision, provision
from echo2.policy.selection import ActivationRule, take_in_order
from echo2.policy.worth import Demand, Effect, cost_usd_per_h

# Left out is what makes a step cheaper by more than this part.
LEAST_GAIN = 1e-3


def drain_s(offers: Sequence[WorkerOffer], rollouts: int) -> float:
    """Seconds to make `rollouts` on idle workers, from their rates and tails alone. Ours, rough.

    More rollouts than slots: the surplus at full rate, then one tail. Fewer: the tail, quicker the emptier
    the batch (half of a decode step is taken to be weights, which every batch size pays).
    """
    slots = sum(offer.slots for offer in offers)
    rate = sum(offer.rollouts_per_s for offer in offers)
    tail = max((offer.generation_tail_s for offer in offers), default=0.0)
    if not slots or rate <= 0:
        return float("inf")
    if rollouts > slots:
        return (rollouts - slots) / rate + tail
    return tail * 0.5 * (1.0 + rollouts / slots)


def steps_per_s(offers: Sequence[WorkerOffer], demand: Demand, broadcast_s: float) -> float:
    """min(1/T_train, mu/B, (S + 2 - kappa) / (T_bcast + T_drain + T_train)): the loop through the gate.

    A version frees the next batches, which come `T_bcast + T_drain` later, are trained in `T_train`, and
    the loop advances `S + 2 - kappa` steps. With S = 0 and kappa = 1 it is the serial closed form.
    """
    rate = sum(offer.rollouts_per_s for offer in offers)
    loop = broadcast_s + drain_s(offers, demand.rollouts_per_step) + demand.train_s
    steps = demand.staleness_bound + 2 - demand.publish_period
    return min(1.0 / demand.train_s, rate / demand.rollouts_per_step, max(0, steps) / loop)


def provision_serial(
    offers: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    learner_usd_per_h: float,
    rule: ActivationRule = "cost",
    topologies: tuple[str, ...] = (),
    memory: PlanMemory | None = None,
    rate: float = 0.0,
) -> Provision:
    """Workers in the order of their price per rollout until `rate` rollouts/s are there.

    With rate 0 the prefix with the least estimated USD per step is taken.
    """
    memory = memory or PlanMemory()
    order = price_order(offers)
    if rate <= 0:
        rate = _cheapest_rate(order, links, demand, learner_usd_per_h, rule, topologies, memory)

    def usd_per_step(some: Sequence[WorkerOffer]) -> float:
        plan, _ = plan_broadcast(some, links, demand, topologies, memory)
        return _usd_per_step(some, demand, plan, learner_usd_per_h)

    chosen = _prefix(order, rate)
    if rule == "cost":
        chosen = _without_hindrance(order, rate, chosen, usd_per_step)
    plan, why = plan_broadcast(chosen, links, demand, topologies, memory)
    by_id = {offer.worker_id: offer for offer in offers}
    usd = receiver_egress_usd(plan, links, {w: offer.site for w, offer in by_id.items()})
    mean_usd = sum(usd.values()) / len(usd)
    times = dict(zip(plan.order, plan.receiver_s))
    options = [
        Candidate(
            worker_id=o.worker_id,
            cost_usd_per_h=max(1e-6, cost_usd_per_h(o, usd[o.worker_id], demand)),
            rate=o.rollouts_per_s,
        )
        for o in chosen
    ]
    steps = steps_per_s(chosen, demand, plan.time_s)
    everyone = {w: times.get(w, links.solo_s(offer, demand.snapshot_bytes)) for w, offer in by_id.items()}
    return Provision(
        "serial",
        demand,
        take_in_order(options, rate, "cheapest per rollout first"),
        plan,
        why,
        everyone,
        {w: Effect(o.rollouts_per_s, 1.0, 1.0, 1.0, "counts in full") for w, o in by_id.items()},
        {w: usd.get(w, mean_usd) * steps * 3600.0 / demand.publish_period for w in by_id},
        1,
        True,
        f"{len(chosen)} of {len(order)} workers, the cheapest per rollout, give the least USD per step",
    )


def price_order(offers: Sequence[WorkerOffer]) -> list[WorkerOffer]:
    """Cheapest rollout first."""
    return sorted(offers, key=lambda o: (o.price_usd_per_h / max(o.rollouts_per_s, 1e-12), o.worker_id))


def serial_rates(offers: Sequence[WorkerOffer], rule: ActivationRule) -> list[float]:
    """Rates worth trying, ascending: of every prefix of the price order, as it is and without each kind."""
    order = price_order(offers)
    if rule != "cost":
        return [sum(offer.rollouts_per_s for offer in order)] if rule == "all" else _sums(order)
    kinds = {offer.worker_id: replace(offer, worker_id="") for offer in order}
    rates = _sums(order)
    for kind in dict.fromkeys(kinds.values()):
        rates += _sums([offer for offer in order if kinds[offer.worker_id] != kind])
    distinct: list[float] = []
    for rate in sorted(rates):
        if not distinct or rate > distinct[-1] * (1.0 + 1e-9):
            distinct.append(rate)
    return distinct


def _sums(order: Sequence[WorkerOffer]) -> list[float]:
    return list(accumulate(offer.rollouts_per_s for offer in order))


def _cheapest_rate(
    order: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    learner_usd_per_h: float,
    rule: ActivationRule,
    topologies: tuple[str, ...],
    memory: PlanMemory,
) -> float:
    def usd_per_step(rate: float) -> float:
        some = _prefix(order, rate)
        plan, _ = plan_broadcast(some, links, demand, topologies, memory)
        return _usd_per_step(some, demand, plan, learner_usd_per_h)

    rates = serial_rates(order, rule)
    spread, at = {len(rates) - 1}, 0
    while at < len(rates):
        spread.add(at)
        at = max(at + 1, at * 5 // 4)
    return min((rates[at] for at in sorted(spread)), key=lambda rate: (usd_per_step(rate), rate))


def _usd_per_step(
    some: Sequence[WorkerOffer], demand: Demand, plan: BroadcastPlan, learner_usd_per_h: float
) -> float:
    """By the rough estimate of `steps_per_s`."""
    steps = steps_per_s(some, demand, plan.time_s)
    hourly = learner_usd_per_h + sum(offer.price_usd_per_h for offer in some)
    return hourly / 3600.0 / max(steps, 1e-12) + plan.egress_usd / demand.publish_period


def _without_hindrance(
    order: Sequence[WorkerOffer],
    rate: float,
    chosen: list[WorkerOffer],
    usd_per_step: Callable[[Sequence[WorkerOffer]], float],
) -> list[WorkerOffer]:
    """Leave out, one after another, the kinds of workers without which a step costs less.

    A cheap rollout is a dear one where the snapshot takes long to its worker, or the batch waits for it.
    """
    least = usd_per_step(chosen)
    while True:
        others = []
        for kind in dict.fromkeys(replace(offer, worker_id="") for offer in chosen):
            rest = [offer for offer in order if replace(offer, worker_id="") != kind]
            if rest:
                others.append((usd_per_step(some := _prefix(rest, rate)), some, rest))
        if not others:
            return chosen
        usd, some, rest = min(others, key=lambda entry: entry[0])
        if usd >= least * (1.0 - LEAST_GAIN):
            return chosen
        least, chosen, order = usd, some, rest


def _prefix(order: Sequence[WorkerOffer], rate: float) -> list[WorkerOffer]:
    chosen: list[WorkerOffer] = []
    total = 0.0
    for offer in order:
        if chosen and total >= rate * (1.0 - 1e-9):
            break
        chosen.append(offer)
        total += offer.rollouts_per_s
    return chosen


def provision_run(
    offers: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    learner_usd_per_h: float,
    rule: ActivationRule = "cost",
    topologies: tuple[str, ...] = (),
    serial_rate: float = 0.0,
) -> Provision:
    """What a run starts with: full overlap where the pool allows it, else the cheapest serial set."""
    memory = PlanMemory()
    if demand.staleness_bound > 0 and serial_rate <= 0:
        overlapped = provision(offers, links, demand, rule, topologies, memory)
        if overlapped.feasible:
            return overlapped
    return provision_serial(offers, links, demand, learner_usd_per_h, rule, topologies, memory, serial_rate)
