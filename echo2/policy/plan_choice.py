"""Which broadcast plan a set of workers gets: the least egress plus lateness, in USD per publication.

Called by `provision` and `serial` before a run and by `publication` while it lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from echo2.policy.broadcast import BroadcastPlan, ChunkRules, candidates, pull_plan
from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable
from echo2.policy.steady import SteadyState
from echo2.policy.worth import Demand, lateness_usd, rollout_usd

DEFAULT_RULES = ChunkRules()


class PlanMemory:
    """What was worked out before: broadcast plans of sets of workers, which depend on neither S, kappa nor
    T_train, and steady states by (S, kappa, T_train, workers). Good for one pool, batch and lengths.
    """

    def __init__(self, rules: ChunkRules = DEFAULT_RULES) -> None:
        self._rules = rules
        self.steady: dict[tuple[object, ...], SteadyState] = {}
        self._kinds: dict[int, tuple[Sequence[WorkerOffer], dict[str, int], list[WorkerOffer]]] = {}
        self._plans: dict[tuple[object, ...], tuple[BroadcastPlan, ...]] = {}

    def kinds(self, offers: Sequence[WorkerOffer]) -> tuple[dict[str, int], list[WorkerOffer]]:
        """(the kind of each worker, an offer of each kind): what differs in its name alone is alike."""
        known = self._kinds.get(id(offers))
        if known is None or known[0] is not offers:
            index: dict[WorkerOffer, int] = {}
            named = sorted(offers, key=lambda offer: offer.worker_id)
            kinds = {
                offer.worker_id: index.setdefault(replace(offer, worker_id=""), len(index)) for offer in named
            }
            known = self._kinds[id(offers)] = (offers, kinds, list(index))
        return known[1], known[2]

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
            plans = candidates(
                links.problem(list(offers), size_bytes), rules=self._rules, topologies=topologies
            )
            self._plans[key] = plans
        return self._plans[key]


def plan_broadcast(
    offers: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    topologies: tuple[str, ...] = (),
    memory: PlanMemory | None = None,
) -> tuple[BroadcastPlan, str]:
    """The plan by which these workers get a snapshot, and why. `topologies` restricts the choice."""
    if demand.mode == "pull" and offers:
        return _pulled(offers, links, demand)
    plans = (memory or PlanMemory()).candidates(offers, links, demand.snapshot_bytes, topologies)
    return choose_plan(plans, offers, demand)


def _pulled(offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand) -> tuple[BroadcastPlan, str]:
    """What the scheduler will do in pull mode: nothing is chosen beforehand."""
    usd_each = rollout_usd(offers, demand)

    def late_usd(node: int, seconds: float) -> float:
        return lateness_usd(offers[node - 1], demand, seconds, usd_each)

    problem = links.problem(list(offers), demand.snapshot_bytes)
    plan = pull_plan(problem, demand.pull_fanout, late_usd, demand.egress_weight)
    why = f"pull: {plan.time_s:.1f} s, {plan.egress_usd:.2f} USD of egress: {plan.reason}"
    return plan, why


def choose_plan(
    plans: Sequence[BroadcastPlan], offers: Sequence[WorkerOffer], demand: Demand
) -> tuple[BroadcastPlan, str]:
    """The plan with the least egress (times its weight) plus lateness, USD per publication; and why. Ours.

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
    total = {id(plan): demand.egress_weight * plan.egress_usd + late[id(plan)] for plan in plans}
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
