"""The provisioning rule: which workers to activate for a staleness bound and a publication period.

Called by the planner (for every publication period it tries) and by the scheduler (at the start of a run
and whenever the pool changes), so that what was planned is what runs. The set of workers determines how
long a snapshot takes to reach them, that determines how many of their rollouts are fresh enough, and that
determines the set: `provision` iterates to a fixed point and says when there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from echo2.policy.activation import Activation, Candidate
from echo2.policy.broadcast import BroadcastPlan, candidates
from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable
from echo2.policy.selection import ActivationRule, select
from echo2.policy.steady import SteadyState

Reading = Literal["overlap", "stall"]
Regime = Literal["overlap", "serial"]
MAX_ROUNDS = 8


@dataclass(frozen=True)
class Demand:
    """What the learner needs of its workers. Seconds, bytes, rollouts; `margin` >= 1 multiplies the rate."""

    staleness_bound: int
    publish_period: int
    rollouts_per_step: int
    train_s: float
    snapshot_bytes: float
    swap_pause_s: float = 0.0
    reading: Reading = "overlap"
    margin: float = 1.0
    learner_usd_per_h: float = 0.0

    @property
    def rollouts_per_s(self) -> float:
        """Rate of fresh rollouts that keeps the learner busy, safety margin included (design section 3)."""
        return self.margin * self.rollouts_per_step / self.train_s

    @property
    def cycle_s(self) -> float:
        """Seconds between two publications when the learner never idles."""
        return self.publish_period * self.train_s


@dataclass(frozen=True)
class Effect:
    """What a worker is worth: rate x shares. `reason` says what takes the rest away."""

    rollouts_per_s: float
    up_share: float
    open_share: float
    work_share: float
    reason: str


def open_share(demand: Demand, broadcast_s: float, group_s: float) -> float:
    """Share of a publication cycle in which the admission gate is open for a worker, learner kept busy. Ours.

    Versions reach it `b = broadcast_s / T_train` steps late and the rollouts outstanding lead the learner
    by about `g = group_s / T_train` steps: a rollout counts until its whole group is done. A snapshot `u`
    is good for admissions up to step `u + S`; the next one arrives `kappa` steps later, so of every `kappa`
    steps `kappa + b + g - (S + 1)` are closed. It is 1 exactly when the freshness condition
    `kappa + b + g <= S + 1` holds.
    """
    b, g = broadcast_s / demand.train_s, group_s / demand.train_s
    closed = demand.publish_period + b + g - (demand.staleness_bound + 1)
    return 1.0 - min(1.0, max(0.0, closed / demand.publish_period))


def effect(offer: WorkerOffer, demand: Demand, broadcast_s: float) -> Effect:
    """mu_eff of one worker: its rate x share of time up x gate open x working (not taking a snapshot)."""
    up = 1.0 / (1.0 + offer.preemptions_per_h * (offer.startup_s + broadcast_s) / 3600.0)
    fresh = open_share(demand, broadcast_s, offer.group_s)
    paused = broadcast_s if demand.reading == "stall" else demand.swap_pause_s
    work = max(0.0, 1.0 - paused / demand.cycle_s)
    if demand.reading == "overlap" and broadcast_s > demand.cycle_s:
        fresh = min(fresh, demand.cycle_s / broadcast_s)
    rate = offer.rollouts_per_s * up * fresh * work
    reason = f"{rate:.3g} of {offer.rollouts_per_s:.3g} rollouts/s count"
    if fresh < 1.0:
        reason += (
            f": a snapshot takes {broadcast_s:.0f} s to arrive and a group {offer.group_s:.0f} s, "
            f"{(broadcast_s + offer.group_s) / demand.train_s:.1f} steps of "
            f"{demand.staleness_bound + 1 - demand.publish_period} that S and kappa leave"
        )
    return Effect(rate, up, fresh, work, reason)


def slack_s(offer: WorkerOffer, demand: Demand) -> float:
    """Latest a snapshot may reach a worker without closing its gate: (S + 1 - kappa) * T_train - group_s."""
    steps = demand.staleness_bound + 1 - demand.publish_period
    return min(steps * demand.train_s - offer.group_s, demand.cycle_s)


def rollout_usd(offers: Sequence[WorkerOffer], demand: Demand) -> float:
    """What a rollout is worth: the price of learner and workers for the time in which one is consumed."""
    hourly = demand.learner_usd_per_h + sum(offer.price_usd_per_h for offer in offers)
    return hourly / 3600.0 / demand.rollouts_per_s


def lateness_usd(offer: WorkerOffer, demand: Demand, seconds: float, usd_per_rollout: float) -> float:
    """USD lost per publication when a snapshot takes `seconds`: rollouts not made while the gate is closed.

    A gate is closed for at most a whole cycle.
    """
    closed_s = min(max(0.0, seconds - slack_s(offer, demand)), demand.cycle_s)
    return usd_per_rollout * offer.rollouts_per_s * closed_s


def choose_plan(
    plans: Sequence[BroadcastPlan], offers: Sequence[WorkerOffer], demand: Demand
) -> tuple[BroadcastPlan, str]:
    """The plan with the least egress plus lateness, USD per publication; and why. Ours.

    Time inside the freshness slack buys nothing and egress is money; beyond it a second costs the rollouts
    that are not made. What costs the same within 1 % is told apart by time.
    """
    if not plans:
        raise ValueError("no broadcast plan to choose from")
    usd_each = rollout_usd(offers, demand)
    by_id = {offer.worker_id: offer for offer in offers}

    def late_usd(plan: BroadcastPlan) -> float:
        times = zip(plan.order, plan.receiver_s)
        return sum(lateness_usd(by_id[name], demand, seconds, usd_each) for name, seconds in times)

    late = {id(plan): late_usd(plan) for plan in plans}
    total = {id(plan): plan.egress_usd + late[id(plan)] for plan in plans}
    least = min(total.values())
    best = min(
        (plan for plan in plans if total[id(plan)] <= 1.01 * least + 1e-6),
        key=lambda plan: (plan.time_s, plan.topology),
    )
    fastest = min(plans, key=lambda plan: (plan.time_s, plan.topology))
    why = f"{best.name}: {best.time_s:.1f} s, {best.egress_usd:.2f} USD of egress"
    if late[id(best)] >= 0.005:
        why += f" and {late[id(best)]:.2f} USD of rollouts lost to lateness"
    if fastest is best:
        return best, why + ": the fastest and the cheapest"
    return best, (
        why + f" a publication, the least in all; the fastest, {fastest.name}, takes {fastest.time_s:.1f} s "
        f"and costs {total[id(fastest)]:.2f} USD"
    )


def receiver_egress_usd(plan: BroadcastPlan, links: LinkTable, sites: Mapping[str, str]) -> dict[str, float]:
    """USD of egress paid for each receiver's copy of the snapshot under the plan."""
    rows = np.array([links.index(sites[worker]) for worker in plan.order], dtype=np.int64)
    home = links.index(links.learner_site)
    price = links.egress
    if plan.shares:
        shares = np.array(plan.shares)
        by_site = np.bincount(rows, weights=shares, minlength=len(links.sites))
        relayed = (by_site @ price)[rows] - shares * price[rows, rows]
        usd = relayed + (shares + plan.direct_share) * price[home, rows]
    else:
        parents = np.array(plan.parents, dtype=np.int64)
        senders = np.where(parents < 0, home, rows[np.maximum(parents, 0)]) if len(rows) else rows
        usd = price[senders, rows]
    return dict(zip(plan.order, (usd * plan.size_bytes / 1e9).tolist()))


@dataclass(frozen=True)
class Provision:
    """The fixed point: who works, how the snapshot reaches them, and what each is worth.

    `broadcast_s`, `effects` and `egress_usd_per_h` are of all workers on offer; of those not chosen, as if
    they joined.
    """

    regime: Regime
    demand: Demand
    activation: Activation
    plan: BroadcastPlan
    plan_reason: str
    broadcast_s: dict[str, float]
    effects: dict[str, Effect]
    egress_usd_per_h: dict[str, float]
    rounds: int
    converged: bool
    note: str

    @property
    def feasible(self) -> bool:
        """The chosen workers keep the learner busy."""
        return self.activation.feasible

    @property
    def queues(self) -> bool:
        """Snapshots are published faster than they arrive: a longer period would lose nothing."""
        return self.plan.time_s > self.demand.cycle_s


def cost_usd_per_h(offer: WorkerOffer, egress_usd: float, demand: Demand) -> float:
    """Price of a worker with the egress of its snapshots, USD/h; learner kept busy."""
    return offer.price_usd_per_h + egress_usd * 3600.0 / demand.cycle_s


class PlanMemory:
    """What was worked out before: broadcast plans of sets of workers, which depend on neither S, kappa nor
    T_train, and steady states by (S, kappa, T_train, workers). Good for one pool, batch and lengths.
    """

    def __init__(self) -> None:
        self.steady: dict[tuple[object, ...], SteadyState] = {}
        self._plans: dict[tuple[object, ...], tuple[BroadcastPlan, ...]] = {}

    def candidates(
        self,
        offers: Sequence[WorkerOffer],
        links: LinkTable,
        size_bytes: float,
        topologies: tuple[str, ...] = (),
    ) -> tuple[BroadcastPlan, ...]:
        """The plans of these topologies (empty: of all) for these workers, priced."""
        key = (size_bytes, tuple(offers), topologies)
        if key not in self._plans:
            plans = candidates(links.problem(list(offers), size_bytes), topologies=topologies)
            self._plans[key] = plans
        return self._plans[key]


def provision(
    offers: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    rule: ActivationRule = "cost",
    topologies: tuple[str, ...] = (),
    memory: PlanMemory | None = None,
) -> Provision:
    """Iterate set -> broadcast time -> effective rates -> set, until the set repeats.

    A set seen before closes the loop: the same as last time is convergence; an older one is a cycle, and
    the cheapest feasible member of the cycle is taken and the note says so.
    """
    by_id = {offer.worker_id: offer for offer in offers}
    solo = {offer.worker_id: links.solo_s(offer, demand.snapshot_bytes) for offer in offers}
    times, egress = dict(solo), _direct_egress(offers, links, demand)
    memory = memory or PlanMemory()
    seen: dict[tuple[str, ...], Provision] = {}
    last: tuple[str, ...] | None = None
    for round_ in range(1, MAX_ROUNDS + 1):
        effects = {w: effect(by_id[w], demand, times[w]) for w in by_id}
        options = [
            Candidate(
                worker_id=w,
                cost_usd_per_h=cost_usd_per_h(offer, egress[w], demand),
                rate=effects[w].rollouts_per_s,
            )
            for w, offer in by_id.items()
        ]
        picked = select(rule, options, demand.rollouts_per_s)
        chosen = tuple(sorted(picked.chosen))
        if round_ == 1 and not picked.feasible:
            # Even with the links idle for each worker alone: a plan for all of them shows by how much.
            plan, why = plan_broadcast(list(by_id.values()), links, demand, topologies, memory)
            times, egress = _spread(plan, links, by_id, solo, demand)
            hourly = {w: egress[w] * 3600.0 / demand.cycle_s for w in by_id}
            note = "the whole pool does not cover the need"
            return Provision("overlap", demand, picked, plan, why, times, effects, hourly, round_, True, note)
        settled = chosen == last
        plan, why = plan_broadcast([by_id[w] for w in chosen], links, demand, topologies, memory)
        times, egress = _spread(plan, links, by_id, solo, demand)
        result = Provision(
            "overlap", demand, picked, plan, why, times, effects,
            {w: egress[w] * 3600.0 / demand.cycle_s for w in by_id}, round_, settled,
            f"the same {len(chosen)} workers twice, after {round_} rounds" if settled else "",
        )  # fmt: skip
        if settled:
            return result
        if chosen in seen and not settled:
            return _best_of_cycle(seen, chosen, round_)
        seen[chosen] = result
        last = chosen
    return _best_of_cycle(seen, tuple(seen)[-1], MAX_ROUNDS)


def _best_of_cycle(seen: dict[tuple[str, ...], Provision], at: tuple[str, ...], rounds: int) -> Provision:
    sets = list(seen)
    cycle = [seen[key] for key in sets[sets.index(at) :]] or list(seen.values())
    best = min(
        cycle,
        key=lambda r: (not r.feasible, r.activation.cost_usd_per_h if r.feasible else r.activation.shortfall),
    )
    note = (
        f"did not converge: {len(cycle)} sets follow one another after {rounds} rounds, because a larger "
        "set takes longer to reach; the cheapest that covers the need was taken"
    )
    return Provision(**{**best.__dict__, "converged": False, "note": note, "rounds": rounds})


def _direct_egress(offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand) -> dict[str, float]:
    """USD of one snapshot sent from the learner straight to each worker."""
    home = links.index(links.learner_site)
    return {
        offer.worker_id: float(links.egress[home, links.index(offer.site)]) * demand.snapshot_bytes / 1e9
        for offer in offers
    }


def plan_broadcast(
    offers: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    topologies: tuple[str, ...] = (),
    memory: PlanMemory | None = None,
) -> tuple[BroadcastPlan, str]:
    """The plan by which these workers get a snapshot, and why. `topologies` restricts the choice."""
    plans = (memory or PlanMemory()).candidates(offers, links, demand.snapshot_bytes, topologies)
    return choose_plan(plans, offers, demand)


def _spread(
    plan: BroadcastPlan,
    links: LinkTable,
    offers: Mapping[str, WorkerOffer],
    solo: Mapping[str, float],
    demand: Demand,
) -> tuple[dict[str, float], dict[str, float]]:
    """(seconds, USD) of a snapshot per worker: from the plan for those in it, else as if it joined it."""
    sites = {w: offer.site for w, offer in offers.items()}
    usd = receiver_egress_usd(plan, links, sites)
    times = dict(zip(plan.order, plan.receiver_s))
    typical = sorted(times.values())[len(times) // 2] if times else 0.0
    direct = _direct_egress(list(offers.values()), links, demand)
    share = math.fsum(usd.values()) / max(1e-12, math.fsum(direct[w] for w in usd)) if usd else 1.0
    all_times = {w: times.get(w, max(solo[w], typical)) for w in offers}
    all_usd = {w: usd.get(w, direct[w] * min(1.0, share)) for w in offers}
    return all_times, all_usd
