"""Which topology wins, and what the plan says about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from echo2.policy.broadcast import BroadcastProblem, Peer, best_plan, candidates, plan_for

LEARNER = Peer("learner", 1e9, 1e9, site="eu")


def pool(uplink_bps: float, count: int, **more: object) -> BroadcastProblem:
    """16 GB to `count` workers in two sites far from the learner."""
    sites = ("us", "asia")
    receivers = tuple(Peer(f"w{i}", uplink_bps, 10e9, site=sites[i % 2]) for i in range(count))
    return BroadcastProblem(16e9, LEARNER, receivers, **more)  # type: ignore[arg-type]


def far_sites(count: int) -> np.ndarray:
    """0.1 USD/GB across sites, nothing inside."""
    site = np.array([0, *(1 + i % 2 for i in range(count))])
    return np.where(site[:, None] == site[None, :], 0.0, 0.1)


def test_no_receiver_needs_no_time() -> None:
    """An empty pool has a valid plan of time 0."""
    plan = best_plan(pool(1e9, 0))
    assert (plan.time_s, plan.mean_s, plan.egress_usd, plan.order, plan.ratio) == (0.0, 0.0, 0.0, (), 1.0)


def test_one_receiver_is_a_star() -> None:
    """One transfer: 128 s on 1 Gbit/s and the overhead of its chunks."""
    plans = candidates(pool(1e9, 1))
    assert [plan.topology for plan in plans] == ["star"]
    assert plans[0].time_s == pytest.approx(128.0, rel=0.01)


def test_the_candidates_are_sorted_and_hold_every_topology() -> None:
    """Eight workers in two sites: all six, the fastest first."""
    plans = candidates(pool(1e9, 8))
    assert {plan.topology for plan in plans} == {"star", "chain", "tree", "k-ary", "regional", "stripes"}
    assert [plan.time_s for plan in plans] == sorted(plan.time_s for plan in plans)


def test_star_is_many_times_the_bound_and_stripes_are_not() -> None:
    """64 workers behind a 1 Gbit/s learner with 100 Mbit/s uplinks: star over 7 x, stripes 1.01 x."""
    problem = pool(100e6, 64)
    assert plan_for(problem, "star").ratio > 7
    assert best_plan(problem).topology == "stripes"
    assert best_plan(problem).ratio < 1.01


def test_a_small_snapshot_over_long_paths_takes_few_hops() -> None:
    """1 MB with 100 ms a hop: the star wins, since hops cost more than bytes."""
    delay = np.full((9, 9), 0.1)
    assert best_plan(replace(pool(1e9, 8, latency_s=delay), size_bytes=1e6)).topology == "star"


def test_paid_borders_are_crossed_once_when_money_counts() -> None:
    """By time alone stripes win; at a low price of time the regional plan, which pays two crossings."""
    problem = pool(1e9, 8, egress_usd_per_gb=far_sites(8))
    fast, cheap = best_plan(problem), best_plan(problem, usd_per_s=0.001)
    assert fast.time_s < cheap.time_s
    assert cheap.topology == "regional"
    assert cheap.egress_usd == pytest.approx(2 * 16 * 0.1)
    assert fast.egress_usd > 2 * cheap.egress_usd


def test_of_equally_fast_plans_the_cheaper_wins() -> None:
    """Within 0.5 % of the fastest, the one with less egress."""
    problem = pool(1e9, 8, egress_usd_per_gb=far_sites(8))
    plans, best = candidates(problem), best_plan(problem)
    near = [plan for plan in plans if plan.time_s <= 1.005 * plans[0].time_s]
    assert best.time_s <= 1.005 * plans[0].time_s
    assert best.egress_usd == min(plan.egress_usd for plan in near)


def test_the_mean_is_weighted_by_rollouts() -> None:
    """A slow receiver that generates little hardly counts in the mean and sets the tail."""
    problem = pool(1e9, 4)
    slow = Peer("slow", 1e7, 1e7, weight=0.001)
    plan = best_plan(replace(problem, receivers=(*problem.receivers, slow)), objective="mean")
    assert plan.time_s > 90 * plan.mean_s


def test_the_reason_names_winner_bound_binding_link_and_runner_up() -> None:
    """In words: what won, how near the bound, what sets the bound, and what was next."""
    reason = best_plan(pool(1e9, 8)).reason
    assert reason.startswith("stripes wins on tail: 128 s, 1.00x the bound set by the learner's uplink")
    assert "next is" in reason


def test_names_that_do_not_exist_are_refused() -> None:
    """An unknown topology, stripes for one, a fanout of 0 and a negative price are errors that say so."""
    with pytest.raises(ValueError, match="unknown topology 'ring'"):
        plan_for(pool(1e9, 3), "ring")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no stripes plan for 1 receivers"):
        plan_for(pool(1e9, 1), "stripes")
    with pytest.raises(ValueError, match="fanout must be >= 1"):
        plan_for(pool(1e9, 3), "k-ary", fanout=0)
    with pytest.raises(ValueError, match="usd_per_s"):
        best_plan(pool(1e9, 3), usd_per_s=-1.0)
