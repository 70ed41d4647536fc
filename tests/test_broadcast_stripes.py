"""Stripes sit at the bound: on random pools, on the measured region matrix, with slow peers among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import BroadcastProblem, ChunkRules, Peer, cut_bound_s, plan_for
from echo2.traces import RegionMatrix, regions

SIZE = 16e9


def random_pool(count: int, seed: int, learner_bps: float) -> BroadcastProblem:
    """Uplinks log-uniform from 20 Mbit/s to 10 Gbit/s, a fifth cannot relay, wide downlinks."""
    rng = np.random.default_rng(seed)
    uplink = 10 ** rng.uniform(np.log10(20e6), 10, count)
    relays = rng.random(count) < 0.8
    receivers = tuple(
        Peer(f"w{i}", uplink[i], 2 * learner_bps, can_relay=bool(relays[i])) for i in range(count)
    )
    return BroadcastProblem(SIZE, Peer("learner", learner_bps, 1e9), receivers)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([8, 16, 32, 64, 128, 256]), st.integers(0, 2**32), st.floats(2e8, 5e9))
def test_stripes_are_within_5_percent_of_the_bound(count: int, seed: int, learner_bps: float) -> None:
    """For 8 to 256 receivers with uneven uplinks, downlinks not binding."""
    assert plan_for(random_pool(count, seed, learner_bps), "stripes").ratio <= 1.05


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 24), st.integers(0, 2**32), st.floats(1.0, 20.0), st.integers(0, 23))
def test_more_uplink_never_hurts(count: int, seed: int, factor: float, which: int) -> None:
    """Raising one peer's uplink never makes stripes slower, up to a chunk's rounding (0.5 %)."""
    problem = random_pool(count, seed, 1e9)
    at = which % count
    richer = replace(problem.receivers[at], uplink_bps=problem.receivers[at].uplink_bps * factor)
    after = replace(problem, receivers=(*problem.receivers[:at], richer, *problem.receivers[at + 1 :]))
    free = ChunkRules(overhead_s=0.0)
    before_s = plan_for(problem, "stripes", rules=free).time_s
    assert plan_for(after, "stripes", rules=free).time_s <= before_s * 1.005


def test_a_slow_downlink_costs_only_its_owner() -> None:
    """With a 50 Mbit/s receiver among eight, the others are as fast as without it."""
    problem = random_pool(8, 1, 1e9)
    slow = Peer("slow", 10e6, 50e6, can_relay=False)
    plan = plan_for(replace(problem, receivers=(*problem.receivers, slow)), "stripes")
    others = [s for name, s in zip(plan.order, plan.receiver_s) if name != "slow"]
    assert max(others) <= 1.02 * plan_for(problem, "stripes").time_s
    assert plan.time_s == pytest.approx(SIZE * 8 / 50e6, rel=0.01)


def test_non_relays_get_no_share() -> None:
    """Where nobody can relay, the source sends everything itself."""
    problem = random_pool(6, 3, 1e9)
    mute = tuple(replace(peer, can_relay=False) for peer in problem.receivers)
    plan = plan_for(replace(problem, receivers=mute), "stripes")
    assert plan.direct_share == 1.0
    assert set(plan.shares) == {0.0}


def known_regions(matrix: RegionMatrix) -> list[int]:
    """Regions with rate, RTT and price of all pairs: the worst known is left out until that holds."""
    keep = list(range(len(matrix.regions)))
    while True:
        at = np.ix_(keep, keep)
        missing = np.isnan(matrix.capacity_bps[at] + matrix.rtt_s[at] + matrix.egress_usd_per_gb[at])
        if not missing.any():
            return keep
        keep.pop(int((missing.sum(axis=0) + missing.sum(axis=1)).argmax()))


@pytest.mark.parametrize("count", [8, 32, 128, 256])
@pytest.mark.parametrize("home_share", [0.0, 0.5])
def test_stripes_on_the_measured_regions(count: int, home_share: float) -> None:
    """A learner and its workers in real cloud regions, half of them on home lines or none: within 5 %."""
    matrix = regions()
    keep = known_regions(matrix)
    assert len(keep) >= 40
    rng = np.random.default_rng(count)
    at = np.array([keep[i % len(keep)] for i in range(count + 1)])
    home = rng.random(count + 1) < home_share
    home[0] = False
    nic = np.diag(matrix.capacity_bps)[at]
    uplink = np.where(home, rng.uniform(20e6, 40e6, count + 1), nic)
    downlink = np.where(home, rng.uniform(200e6, 400e6, count + 1), nic)
    peers = [Peer(f"p{i}", uplink[i], downlink[i], matrix.regions[at[i]]) for i in range(count + 1)]
    pairs = np.ix_(at, at)
    problem = BroadcastProblem(
        SIZE,
        peers[0],
        tuple(peers[1:]),
        pair_cap_bps=matrix.capacity_bps[pairs].copy(),
        latency_s=matrix.rtt_s[pairs] / 2,
        egress_usd_per_gb=matrix.egress_usd_per_gb[pairs],
    )
    plan = plan_for(problem, "stripes")
    assert plan.bound_s == cut_bound_s(problem)
    assert plan.ratio <= 1.05
