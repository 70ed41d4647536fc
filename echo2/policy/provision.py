"""The provisioning rule: which workers to activate for a staleness bound and a publication period.

Called by the planner (for every publication period it tries) and by the scheduler (at the start of a run
and whenever the pool changes), so that what was planned is what runs. The set of workers determines how
long a snapshot takes to reach them, that determines how many of their rollouts are fresh enough, and that
determines the set: `provision` iterates to a fixed point and says when there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from echo2.policy.activation import Activation, Candidate
from echo2.policy.activation.candidate import covers, lp_bound, make_activation
from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable
from echo2.policy.plan_choice import PlanMemory, plan_broadcast, receiver_egress_usd
from echo2.policy.selection import ActivationRule, select
from echo2.policy.worth import Demand, Effect, Reading, cost_usd_per_h, effect, join_s, open_share

__all__ = ["Demand", "Provision", "Reading", "effect", "open_share", "provision", "receiver_egress_usd"]

Regime = Literal["overlap", "serial"]
MAX_ROUNDS = 8
# Kinds of workers left out at most, one after another, while that makes the plan cheaper.
MOST_LEFT_OUT = 3
LEAST_GAIN = 1e-4
# Workers of a kind beyond what covers the need at this part of their rate are not considered.
LEAST_PART = 0.1


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


def provision(
    offers: Sequence[WorkerOffer],
    links: LinkTable,
    demand: Demand,
    rule: ActivationRule = "cost",
    topologies: tuple[str, ...] = (),
    memory: PlanMemory | None = None,
    thorough: bool = True,
) -> Provision:
    """The fixed point of workers and broadcast time that covers the need at the least USD/h.

    A fixed point is only one of several: a kind of worker that looks cheap while its snapshots are expected
    early can lead to a dear one, or to none. So (rule "cost", `thorough`) it is sought again without each
    kind in turn, and what helps most stays out: more offers do not make the plan worse.
    """
    search = _Search(offers, links, demand, rule, topologies, memory or PlanMemory())
    best = search.fixed_point(frozenset())
    assert best is not None
    if rule != "cost" or not search.hopeful:
        return best
    settled = best.converged and best.feasible
    if not settled or best.plan.egress_usd:
        other = search.fastest_first()
        if other is not None and _better(other, best):
            best, settled = other, settled or other.feasible
    if settled or not thorough:
        return best
    left_out: frozenset[int] = frozenset()
    for _ in range(MOST_LEFT_OUT):
        kinds = {search.kinds[w] for w in best.activation.chosen} if best.converged else search.tried
        found = [(kind, search.fixed_point(left_out | {kind})) for kind in sorted(kinds - left_out)]
        better = [(_rank(result), kind, result) for kind, result in found if result and _better(result, best)]
        if not better:
            break
        _, kind, best = min(better, key=lambda entry: entry[:2])
        left_out |= {kind}
    return best


def covered_alone(offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand) -> bool:
    """Whether the pool covers the need if each worker had the links to itself: without that, nothing does."""
    search = _Search(offers, links, demand, "cost", (), PlanMemory())
    rates = [effect.rollouts_per_s for effect in search.effects(search.solo).values()]
    return covers(math.fsum(rates), demand.rollouts_per_s)


def _rank(result: Provision) -> tuple[bool, bool, float]:
    short = not result.feasible
    return short, result.queues, result.activation.shortfall if short else result.activation.cost_usd_per_h


def _better(result: Provision, than: Provision) -> bool:
    (*flags, value), (*other_flags, other) = _rank(result), _rank(than)
    return flags < other_flags or (flags == other_flags and value < other * (1.0 - LEAST_GAIN))


class _Search:
    """Set -> broadcast time -> effective rates -> set, over workers that fall into few kinds."""

    def __init__(
        self,
        offers: Sequence[WorkerOffer],
        links: LinkTable,
        demand: Demand,
        rule: ActivationRule,
        topologies: tuple[str, ...],
        memory: PlanMemory,
    ) -> None:
        self.links, self.demand, self.rule = links, demand, rule
        self.topologies, self.memory = topologies, memory
        self.offers = {offer.worker_id: offer for offer in offers}
        self.kinds, self.kind_offers = memory.kinds(offers)
        self.considered = self._enough_of_each()
        alone = [links.solo_s(kind, demand.snapshot_bytes) for kind in self.kind_offers]
        self.solo = {w: alone[kind] for w, kind in self.kinds.items()}
        self.joins = [join_s(kind, links, demand) for kind in self.kind_offers]
        self.direct = _direct_egress(offers, links, demand)
        self.tried: set[int] = set()
        self.hopeful = True

    def _enough_of_each(self) -> dict[str, WorkerOffer]:
        """Of each kind as many as cover the need if only `LEAST_PART` of what they make counts."""
        if self.rule != "cost":
            return self.offers
        left = [
            math.ceil(self.demand.rollouts_per_s / LEAST_PART / max(kind.rollouts_per_s, 1e-12))
            for kind in self.kind_offers
        ]
        enough = {}
        for w, offer in self.offers.items():
            if left[self.kinds[w]] > 0:
                left[self.kinds[w]] -= 1
                enough[w] = offer
        return enough

    def effects(self, times: Mapping[str, float]) -> dict[str, Effect]:
        """What each worker is worth when a snapshot takes it so long."""
        known: dict[tuple[int, float], Effect] = {}
        found = {}
        for w in self.offers:
            key = (self.kinds[w], times[w])
            if key not in known:
                known[key] = effect(self.kind_offers[key[0]], self.demand, times[w], self.joins[key[0]])
            found[w] = known[key]
        return found

    def fixed_point(self, left_out: frozenset[int], rule: ActivationRule | None = None) -> Provision | None:
        """Iterate without these kinds until the set repeats; None if the rest could never cover the need.

        A set seen before closes the loop: the same as last time is convergence; an older one is a cycle.
        `rule`: another than the search's own.
        """
        times, egress = self.solo, self.direct
        seen: dict[tuple[str, ...], Provision] = {}
        last: tuple[str, ...] | None = None
        for round_ in range(1, (MAX_ROUNDS // 2 if left_out else MAX_ROUNDS) + 1):
            effects = self.effects(times)
            picked = self._select(effects, egress, left_out, rule or self.rule)
            chosen = tuple(sorted(picked.chosen))
            if round_ == 1 and not picked.feasible:
                return None if left_out else self._whole_pool(picked, effects)
            self.tried.update(self.kinds[w] for w in chosen)
            settled = chosen == last
            plan, why = self._plan(chosen)
            times, egress = self._spread(plan)
            note = f"the same {len(chosen)} workers twice, after {round_} rounds" if settled else ""
            result = self._result(picked, plan, why, times, effects, egress, round_, settled, note)
            if settled:
                return result
            if chosen in seen:
                break
            seen[chosen] = result
            last = chosen
        return self._best_seen(seen, left_out, round_)

    def fastest_first(self) -> Provision | None:
        """The fixed point of the fastest workers: the fewest receivers, dear as they are.

        What a receiver adds to the egress depends on the others, which the covering problem cannot see.
        """
        found = self.fixed_point(frozenset(), "fastest")
        return None if found is None else self._judged(found)

    def _select(
        self,
        effects: Mapping[str, Effect],
        egress: Mapping[str, float],
        left_out: frozenset[int],
        rule: ActivationRule,
    ) -> Activation:
        options = [
            Candidate(w, cost_usd_per_h(offer, egress[w], self.demand), effects[w].rollouts_per_s)
            for w, offer in self.considered.items()
        ]
        if not left_out:
            return select(rule, options, self.demand.rollouts_per_s)
        rest = [option for option in options if self.kinds[option.worker_id] not in left_out]
        picked = select(rule, rest, self.demand.rollouts_per_s)
        bound = lp_bound(options, self.demand.rollouts_per_s)
        ratio = picked.cost_usd_per_h / bound if bound > 0 else 1.0
        return replace(picked, bound_usd_per_h=bound, ratio=ratio)

    def _whole_pool(self, picked: Activation, effects: dict[str, Effect]) -> Provision:
        """Even with the links idle for each worker alone: a plan for all of them shows by how much."""
        self.hopeful = False
        plan, why = self._plan(tuple(self.offers))
        times, egress = self._spread(plan)
        note = "the whole pool does not cover the need"
        return self._result(picked, plan, why, times, effects, egress, 1, True, note)

    def _best_seen(
        self, seen: Mapping[tuple[str, ...], Provision], left_out: frozenset[int], rounds: int
    ) -> Provision:
        """The best of the sets that follow one another, each judged by the times of its own plan."""
        judged = [self._judged(result) for result in seen.values()]
        note = (
            f"did not converge: {len(judged)} sets follow one another after {rounds} rounds, because a "
            "larger set takes longer to reach; the cheapest that covers the need was taken"
        )
        best = min(judged, key=_rank)
        return replace(best, converged=False, note=note, rounds=rounds)

    def _judged(self, result: Provision) -> Provision:
        """A set with what its workers are worth under its own plan."""
        demand, effects = self.demand, self.effects(result.broadcast_s)
        hourly = result.egress_usd_per_h
        options = [
            Candidate(w, self.offers[w].price_usd_per_h + hourly[w], effects[w].rollouts_per_s)
            for w in self.considered
        ]
        chosen = set(result.activation.chosen)
        members = [option for option in options if option.worker_id in chosen]
        activation = make_activation(options, members, demand.rollouts_per_s, "greedy")
        return replace(result, activation=activation, effects=effects)

    def _plan(self, chosen: Sequence[str]) -> tuple[BroadcastPlan, str]:
        offers = [self.offers[w] for w in chosen]
        return plan_broadcast(offers, self.links, self.demand, self.topologies, self.memory)

    def _result(
        self,
        picked: Activation,
        plan: BroadcastPlan,
        why: str,
        times: dict[str, float],
        effects: dict[str, Effect],
        egress: Mapping[str, float],
        rounds: int,
        settled: bool,
        note: str,
    ) -> Provision:
        hourly = {w: usd * 3600.0 / self.demand.cycle_s for w, usd in egress.items()}
        return Provision(
            "overlap", self.demand, picked, plan, why, times, effects, hourly, rounds, settled, note
        )

    def _spread(self, plan: BroadcastPlan) -> tuple[dict[str, float], dict[str, float]]:
        """(seconds, USD) of a snapshot per worker: from the plan for those in it, else as if it joined it."""
        usd = receiver_egress_usd(plan, self.links, {w: offer.site for w, offer in self.offers.items()})
        times = dict(zip(plan.order, plan.receiver_s))
        typical = sorted(times.values())[len(times) // 2] if times else 0.0
        share = math.fsum(usd.values()) / max(1e-12, math.fsum(self.direct[w] for w in usd)) if usd else 1.0
        all_times = {w: times.get(w, max(self.solo[w], typical)) for w in self.offers}
        all_usd = {w: usd.get(w, self.direct[w] * min(1.0, share)) for w in self.offers}
        return all_times, all_usd


def _direct_egress(offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand) -> dict[str, float]:
    """USD of one snapshot sent from the learner straight to each worker."""
    home = links.index(links.learner_site)
    return {
        offer.worker_id: float(links.egress[home, links.index(offer.site)]) * demand.snapshot_bytes / 1e9
        for offer in offers
    }
