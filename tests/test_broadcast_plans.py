"""What holds for every broadcast plan, and three-peer plans worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import (
    BroadcastProblem,
    ChunkRules,
    Peer,
    candidates,
    chunk_relays,
    cut_bound_s,
    edges,
    from_json,
    lp_bound_s,
    plan_for,
    stripe_counts,
    to_json,
)

FREE = ChunkRules(overhead_s=0.0)


@st.composite
def pools(draw: st.DrawFn) -> BroadcastProblem:
    """0-12 receivers, rates from 20 Mbit/s to 5 Gbit/s, caps, delays, prices and non-relays at will."""
    count = draw(st.integers(0, 12))
    rate = st.floats(20e6, 5e9)
    receivers = tuple(
        Peer(
            f"w{i}", draw(rate), draw(rate), site=f"s{draw(st.integers(0, 3))}", can_relay=draw(st.booleans())
        )
        for i in range(count)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (count + 1, count + 1)
    caps = rng.uniform(50e6, 4e9, shape) if draw(st.booleans()) else None
    size = draw(st.sampled_from([1e5, 5e7, 2e9, 16e9]))
    return BroadcastProblem(
        size,
        Peer("learner", draw(rate), 1e9),
        receivers,
        caps,
        rng.uniform(0, 0.1, shape),
        rng.uniform(0, 0.1, shape),
    )


@settings(max_examples=60, deadline=None)
@given(pools())
def test_no_plan_is_faster_than_the_bound(problem: BroadcastProblem) -> None:
    """Every plan's tail is at least the LP bound, and its ratio at least 1."""
    bound = max(cut_bound_s(problem), lp_bound_s(problem))
    for plan in candidates(problem):
        assert plan.time_s >= bound * (1 - 1e-6)
        assert plan.ratio >= 1 - 1e-9
        assert plan.time_s == max(plan.receiver_s, default=0.0) >= plan.mean_s * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(pools())
def test_every_tree_reaches_every_receiver_once_and_only_relays_send(problem: BroadcastProblem) -> None:
    """Edges of each tree and stripe are a spanning arborescence whose inner nodes can relay."""
    able = {peer.peer_id for peer in problem.receivers if peer.can_relay} | {"learner"}
    ids = sorted(peer.peer_id for peer in problem.receivers)
    for plan in candidates(problem):
        assert sorted(plan.order) == ids
        for tree in edges(plan, "learner"):
            assert sorted(child for _, child in tree) == ids
            reached = {"learner"}
            for parent, child in tree:
                assert parent in reached & able
                reached.add(child)


@settings(max_examples=60, deadline=None)
@given(pools())
def test_chunks_are_whole_and_all_accounted_for(problem: BroadcastProblem) -> None:
    """Shares are whole numbers of chunks, add up to one, and the sending order holds each chunk once."""
    for plan in candidates(problem):
        relays = chunk_relays(plan)
        assert len(relays) == plan.chunks >= 1
        if plan.topology == "stripes":
            counts, direct = stripe_counts(plan)
            assert sum(counts) + direct == plan.chunks
            assert sum(plan.shares) + plan.direct_share == pytest.approx(1.0)
            assert [relays.count(i) for i in range(-1, len(counts))] == [direct, *counts]


@settings(max_examples=40, deadline=None)
@given(pools())
def test_twice_the_rates_take_half_the_time(problem: BroadcastProblem) -> None:
    """Without delays and overheads time scales with 1/rate, for every topology."""
    caps = problem.pair_cap_bps
    still = replace(problem, latency_s=None)
    fast = replace(
        still,
        source=_doubled(problem.source),
        receivers=tuple(map(_doubled, problem.receivers)),
        pair_cap_bps=None if caps is None else 2 * caps,
    )
    slow_s = [plan.time_s for plan in candidates(still, rules=FREE)]
    assert [2 * plan.time_s for plan in candidates(fast, rules=FREE)] == pytest.approx(slow_s, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(pools())
def test_a_plan_survives_json(problem: BroadcastProblem) -> None:
    """from_json(to_json(plan)) is the plan."""
    for plan in candidates(problem):
        assert from_json(to_json(plan)) == plan


def test_json_of_something_else_is_refused() -> None:
    """A missing field is named."""
    with pytest.raises(ValueError, match="reason"):
        from_json("{}")


def _doubled(peer: Peer) -> Peer:
    return replace(peer, uplink_bps=2 * peer.uplink_bps, downlink_bps=2 * peer.downlink_bps)


def three(uplinks: tuple[float, float, float], **more: object) -> BroadcastProblem:
    """1 GB (8 Gbit) from a 1 Gbit/s learner to three workers with wide downlinks."""
    receivers = tuple(Peer(f"w{i}", u, 10e9) for i, u in enumerate(uplinks))
    return BroadcastProblem(1e9, Peer("learner", 1e9, 10e9), receivers, **more)  # type: ignore[arg-type]


def test_star_of_three() -> None:
    """Three copies through one uplink: 24 Gbit / 1 Gbit/s = 24 s for everybody, three times the bound."""
    plan = plan_for(three((1e9, 1e9, 1e9)), "star", rules=FREE)
    assert plan.receiver_s == pytest.approx((24.0, 24.0, 24.0))
    assert plan.ratio == pytest.approx(3.0)


def test_star_with_a_slow_downlink() -> None:
    """A 100 Mbit/s receiver takes 80 s; the others share the other 900 Mbit/s and take 8/0.45 = 17.8 s."""
    problem = three((1e9, 1e9, 1e9))
    slow = replace(problem.receivers[2], downlink_bps=100e6)
    plan = plan_for(replace(problem, receivers=(*problem.receivers[:2], slow)), "star", rules=FREE)
    assert plan.receiver_s == pytest.approx((17.78, 17.78, 80.0), abs=0.01)


def test_chain_of_three() -> None:
    """8 Gbit at 1 Gbit/s plus two more hops of one chunk plus 3 x 0.1 s; the slow uplink stands last."""
    delay = np.full((4, 4), 0.1)
    problem = three((1e9, 1e6, 1e9), latency_s=delay)
    plan = plan_for(problem, "chain", rules=ChunkRules(overhead_s=0.0, min_bytes=1e7))
    assert plan.order[-1] == "w1"
    assert plan.chunks == 100
    assert plan.time_s == pytest.approx(8.0 * 102 / 100 + 0.3)


def test_stripes_of_three() -> None:
    """Equal uplinks: a third each, and 8 s, the bound. Uplinks of 1/2 Gbit/s: 3 x 8 / (1 + 1.5) = 9.6 s."""
    equal = plan_for(three((1e9, 1e9, 1e9)), "stripes", rules=FREE)
    assert equal.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3), abs=0.01)
    assert equal.time_s == pytest.approx(8.0, rel=0.01)
    # each relay passes on 0.25 Gbit/s twice = 0.3 of the bytes; the learner's spare 0.25 Gbit/s thrice, 0.1
    half = plan_for(three((0.5e9, 0.5e9, 0.5e9)), "stripes", rules=FREE)
    assert half.shares == pytest.approx((0.3, 0.3, 0.3), abs=0.01)
    assert half.direct_share == pytest.approx(0.1, abs=0.01)
    assert half.time_s == pytest.approx(9.6, rel=0.01)


def test_egress_counts_every_edge() -> None:
    """0.1 USD/GB out of the learner, nothing between workers: the star pays three copies, stripes one."""
    prices = np.zeros((4, 4))
    prices[0] = 0.1
    problem = three((1e9, 1e9, 1e9), egress_usd_per_gb=prices)
    assert plan_for(problem, "star").egress_usd == pytest.approx(0.3)
    assert plan_for(problem, "chain").egress_usd == pytest.approx(0.1)
    assert plan_for(problem, "stripes").egress_usd == pytest.approx(0.1)


def test_a_chain_has_one_end_without_an_uplink() -> None:
    """Of two non-relays one ends the chain, the other hangs off a relay with uplink to spare."""
    relays = tuple(Peer(f"r{i}", 4e9, 10e9) for i in range(2))
    leaves = tuple(Peer(f"leaf{i}", 1e9, 10e9, can_relay=False) for i in range(2))
    plan = plan_for(BroadcastProblem(1e9, Peer("learner", 1e9, 1e9), (*leaves, *relays)), "chain", rules=FREE)
    assert plan.time_s == pytest.approx(8.0, rel=0.02)
