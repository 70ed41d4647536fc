"""The bound beside a plan's cost: below every set and every broadcast, and near a good choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan_rules import EXPERIMENTS

from echo2 import config, scenario
from echo2.policy import least_cost
from echo2.policy.broadcast import ChunkRules
from echo2.policy.facts import WorkerOffer
from echo2.policy.least_cost import least_cost_usd_per_h
from echo2.policy.links import LinkTable
from echo2.policy.plan_choice import PlanMemory
from echo2.policy.planner import plan_run
from echo2.policy.provision import Provision, provision
from echo2.policy.worth import Demand, effect

SITES = ("home", "a", "b", "c")
FEW_CHUNKS = ChunkRules(stripe_sizes=2)


def offer(name: str, site: str, usd: float, rate: float, up: float = 1e9, relays: bool = True) -> WorkerOffer:
    """A worker with a group that takes 50 s."""
    return WorkerOffer(name, name, "GPU", site, usd, rate, 8, 50.0, 60.0, up, 2e9, relays)


def table(egress: list[list[float]], uplink: float = 2e9) -> LinkTable:
    """Four sites with these egress prices, USD per GB, and no other limits."""
    far = tuple(tuple(1e12 for _ in SITES) for _ in SITES)
    rtt = tuple(tuple(0.01 for _ in SITES) for _ in SITES)
    return LinkTable(SITES, far, rtt, tuple(map(tuple, egress)), "home", uplink, uplink)


def demand(S: int = 4, kappa: int = 2, gigabytes: float = 4.0) -> Demand:
    """32 rollouts a step of 40 s."""
    return Demand(S, kappa, 32, 40.0, gigabytes * 1e9, learner_usd_per_h=10.0)


def brute_force(offers: list[WorkerOffer], links: LinkTable, need: Demand) -> float:
    """USD/h of the cheapest of all subsets under all broadcast plans that makes enough; inf if none does."""
    memory, best = PlanMemory(FEW_CHUNKS), float("inf")
    for count in range(1, len(offers) + 1):
        for some in combinations(offers, count):
            for plan in memory.candidates(some, links, need.snapshot_bytes):
                times = dict(zip(plan.order, plan.receiver_s))
                rate = sum(effect(o, need, times[o.worker_id]).rollouts_per_s for o in some)
                if rate >= need.rollouts_per_s:
                    usd = sum(o.price_usd_per_h for o in some) + plan.egress_usd * 3600.0 / need.cycle_s
                    best = min(best, usd)
    return best


def cost_of(result: Provision, offers: list[WorkerOffer]) -> float:
    """USD/h of a provisioned set, as it is printed."""
    price = sum(o.price_usd_per_h for o in offers if o.worker_id in result.activation.chosen)
    return price + result.plan.egress_usd * 3600.0 / result.demand.cycle_s


WORKERS = st.builds(
    offer,
    name=st.just(""),
    site=st.sampled_from(SITES),
    usd=st.sampled_from([0.3, 1.0, 2.5]),
    rate=st.sampled_from([0.2, 0.5, 1.1]),
    up=st.sampled_from([1e8, 1e9, 5e9]),
    relays=st.booleans(),
)
PRICES = st.lists(
    st.lists(st.sampled_from([0.0, 0.02, 0.09]), min_size=4, max_size=4), min_size=4, max_size=4
)


@pytest.mark.parametrize("joined", [True, False])
@settings(max_examples=15, deadline=None)
@given(workers=st.lists(WORKERS, min_size=1, max_size=5), prices=PRICES, S=st.integers(2, 6))
def test_no_set_and_no_broadcast_undercuts_the_bound(
    joined: bool, workers: list[WorkerOffer], prices: list[list[float]], S: int
) -> None:
    """bound <= the best of all subsets under all topologies <= what the rule chooses."""
    offers = [replace(worker, worker_id=f"w{i}") for i, worker in enumerate(workers)]
    links, need = table(prices), demand(S)
    before = least_cost.MOST_JOINED_SITES
    least_cost.MOST_JOINED_SITES = before if joined else 0
    try:
        bound = least_cost_usd_per_h(offers, links, need, need.rollouts_per_s)
    finally:
        least_cost.MOST_JOINED_SITES = before
    best = brute_force(offers, links, need)
    assert bound <= best * (1.0 + 1e-6)
    chosen = provision(offers, links, need, memory=PlanMemory(FEW_CHUNKS))
    if chosen.feasible and chosen.converged:
        assert best <= cost_of(chosen, offers) * (1.0 + 1e-6)


def test_a_border_is_paid_once_and_prices_inside_are_free() -> None:
    """Three workers beyond a border of 0.36 USD a copy: three prices, one crossing, 45 cycles an hour."""
    free = [[0.0, 0.09, 0.09, 0.09], [0.0] * 4, [0.0] * 4, [0.0] * 4]
    offers = [offer(f"w{i}", "a", 1.0, 0.3) for i in range(5)]
    bound = least_cost_usd_per_h(offers, table(free), demand(), 0.8)
    assert bound == pytest.approx(3 * 1.0 + 4 * 0.09 * 45, rel=1e-3)


def test_workers_that_cannot_relay_are_each_paid_for() -> None:
    """Where nobody passes a snapshot on, every worker's copy crosses the border."""
    free = [[0.0, 0.09, 0.09, 0.09], [0.0] * 4, [0.0] * 4, [0.0] * 4]
    offers = [offer(f"w{i}", "a", 1.0, 0.3, relays=False) for i in range(5)]
    bound = least_cost_usd_per_h(offers, table(free), demand(), 0.8)
    assert bound == pytest.approx(3 * (1.0 + 4 * 0.09 * 45), rel=1e-3)


def test_two_sites_cannot_feed_each_other_without_the_learner() -> None:
    """Free links between two far sites do not save the crossing from the learner."""
    free = [[0.0, 0.09, 0.02, 0.09], [0.0] * 4, [0.0] * 4, [0.0] * 4]
    offers = [offer("a0", "a", 1.0, 0.5), offer("b0", "b", 5.0, 0.5)]
    bound = least_cost_usd_per_h(offers, table(free), demand(), 0.8)
    assert bound == pytest.approx(6.0 + 4 * 0.02 * 45, rel=1e-3)
    alone = least_cost_usd_per_h(offers[:1], table(free), demand(), 0.5)
    assert alone == pytest.approx(1.0 + 4 * 0.09 * 45, rel=1e-3)


def test_a_need_beyond_the_pool_is_cut_to_what_it_has() -> None:
    """The bound of too small a pool is the price of all of it."""
    offers = [offer(f"w{i}", "home", 1.0, 0.3) for i in range(3)]
    assert least_cost_usd_per_h(offers, table([[0.0] * 4] * 4), demand(), 99.0) == pytest.approx(
        3.0, rel=1e-3
    )


@pytest.mark.parametrize("name", ["qwen3-8b-mixed-spot", "consumer-home", "datacentre"])
def test_the_shipped_plans_are_within_a_tenth_of_their_bound(name: str) -> None:
    """The printed ratio is at least 1, and tells that the choice is good."""
    loaded = config.load(EXPERIMENTS / f"{name}.toml")
    ratio = plan_run(scenario.build(loaded.config, loaded.base_dir).problem).activation["ratio"]
    assert ratio * (1.0 + 1e-9) >= 1.0 and ratio < 1.1
