"""Predicted times against a chunk-by-chunk simulation that knows nothing of the formulas."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import (
    BroadcastPlan,
    BroadcastProblem,
    ChunkRules,
    Peer,
    candidates,
    children_of,
    chunk_relays,
    edges,
    plan_for,
)

MBIT = 1e6
FREE = ChunkRules(overhead_s=0.0, min_bytes=2**19)
Transfer = tuple[str, str]


def fair_rates(flows: list[Transfer], problem: BroadcastProblem, first: dict[int, int]) -> list[float]:
    """Max-min fair rates by progressive filling under uplinks, downlinks and pair caps.

    Flows in `first` (flow to sequence number) take their fair part of the downlink before the others, lowest
    number first.
    """
    at = {peer.peer_id: i for i, peer in enumerate(problem.peers)}
    caps = [float(problem.pair_cap[at[a], at[b]]) for a, b in flows]
    rate = [0.0] * len(flows)
    up = {p.peer_id: p.uplink_bps for p in problem.peers}
    down = {p.peer_id: p.downlink_bps for p in problem.peers}

    def grow(flow: int, step: float) -> None:
        rate[flow] += step
        up[flows[flow][0]] -= step
        down[flows[flow][1]] -= step

    for flow in sorted(first, key=first.__getitem__):
        sender, receiver = flows[flow]
        fair = down[receiver] / sum(to == receiver for _, to in flows)
        grow(flow, min(up[sender], fair, caps[flow]))
    growing = {f for f, (a, b) in enumerate(flows) if min(up[a], down[b], caps[f] - rate[f]) > 1.0}
    while growing:
        senders = [flows[f][0] for f in growing]
        receivers = [flows[f][1] for f in growing]
        steps = [up[s] / senders.count(s) for s in set(senders)]
        steps += [down[r] / receivers.count(r) for r in set(receivers)]
        step = max(0.0, min([*steps, *(caps[f] - rate[f] for f in growing)]))
        for f in growing:
            grow(f, step)
        growing -= {f for f in growing if min(up[flows[f][0]], down[flows[f][1]], caps[f] - rate[f]) <= 1.0}
    return rate


def first_transfers(problem: BroadcastProblem, plan: BroadcastPlan) -> dict[Transfer, deque[int]]:
    """What the source sends: a queue of chunks per edge."""
    source, relays = problem.source.peer_id, chunk_relays(plan)
    lanes: dict[Transfer, deque[int]] = {}
    for chunk, relay in enumerate(relays):
        if plan.topology == "stripes":
            targets = plan.order if relay < 0 else (plan.order[relay],)
        else:
            targets = children_of(edges(plan, source)[0])[source]
        for child in targets:
            lanes.setdefault((source, child), deque()).append(chunk)
    return lanes


def simulate(problem: BroadcastProblem, plan: BroadcastPlan) -> dict[str, float]:
    """Store and forward: a chunk is passed on when it has arrived whole; seconds per receiver.

    Every edge sends its chunks one after the other; edges of a sender run side by side, fairly. Only the
    source of stripes gives its uplink to the plan's earliest chunk first.
    """
    source, striped = problem.source.peer_id, plan.topology == "stripes"
    at = {peer.peer_id: i for i, peer in enumerate(problem.peers)}
    relays = chunk_relays(plan)
    children = {} if striped else children_of(edges(plan, source)[0])
    lanes = first_transfers(problem, plan)
    left = dict.fromkeys(lanes, problem.bits / plan.chunks)
    have = dict.fromkeys(plan.order, 0)
    done: dict[str, float] = {}
    landing: list[tuple[float, str, int]] = []
    now = 0.0
    while len(done) < len(plan.order):
        busy = [lane for lane in lanes if lanes[lane]]
        first = {i: lanes[lane][0] for i, lane in enumerate(busy) if striped and lane[0] == source}
        rates = fair_rates(busy, problem, first)
        ends = [now + left[lane] / rate if rate > 0 else np.inf for lane, rate in zip(busy, rates)]
        soon = min([*ends, *(t for t, _, _ in landing)])
        for lane, rate, end in zip(busy, rates, ends):
            left[lane] -= rate * (soon - now)
            if end <= soon * (1 + 1e-12):
                left[lane] = problem.bits / plan.chunks
                arrives = soon + float(problem.delay[at[lane[0]], at[lane[1]]])
                landing.append((arrives, lane[1], lanes[lane].popleft()))
        now = soon
        for item in sorted(item for item in landing if item[0] <= now):
            landing.remove(item)
            _, node, chunk = item
            have[node] += 1
            if have[node] == plan.chunks:
                done[node] = now
            mine = striped and relays[chunk] >= 0 and plan.order[relays[chunk]] == node
            for child in [c for c in plan.order if c != node] if mine else children.get(node, ()):
                lanes.setdefault((node, child), deque()).append(chunk)
                left.setdefault((node, child), problem.bits / plan.chunks)
    return done


@st.composite
def small_pools(draw: st.DrawFn) -> BroadcastProblem:
    """2-5 receivers with uneven uplinks, wide downlinks, small delays; some cannot relay."""
    count = draw(st.integers(2, 5))
    uplink = st.floats(50, 1000)
    receivers = tuple(
        Peer(f"w{i}", draw(uplink) * MBIT, 4000 * MBIT, can_relay=draw(st.integers(0, 4)) > 0)
        for i in range(count)
    )
    delay = np.full((count + 1, count + 1), draw(st.floats(0, 0.01)))
    return BroadcastProblem(64e6, Peer("learner", draw(uplink) * MBIT, 1e9), receivers, latency_s=delay)


@settings(max_examples=12, deadline=None)
@given(small_pools())
def test_every_topology_takes_as_long_as_predicted(problem: BroadcastProblem) -> None:
    """Simulated and predicted tail agree within 5 % for every candidate."""
    for plan in candidates(problem, rules=FREE):
        assert max(simulate(problem, plan).values()) == pytest.approx(plan.time_s, rel=0.05), plan.name


def test_a_slow_receiver_holds_nobody_up() -> None:
    """With stripes the fast receivers are done at their own time, the slow one at its own."""
    fast = tuple(Peer(f"w{i}", 400 * MBIT, 4000 * MBIT) for i in range(4))
    problem = BroadcastProblem(
        64e6, Peer("learner", 400 * MBIT, 1e9), (*fast, Peer("slow", 20 * MBIT, 40 * MBIT))
    )
    plan = plan_for(problem, "stripes", rules=FREE)
    seen = simulate(problem, plan)
    predicted = dict(zip(plan.order, plan.receiver_s))
    assert predicted["slow"] > 8 * predicted["w0"]
    for peer_id, seconds in predicted.items():
        assert seen[peer_id] == pytest.approx(seconds, rel=0.06), peer_id


def test_pair_caps_are_kept_by_the_predicted_times() -> None:
    """A thin pair slows the stripes by what the simulation says it does."""
    receivers = tuple(Peer(f"w{i}", 400 * MBIT, 4000 * MBIT) for i in range(4))
    caps = np.full((5, 5), 1000 * MBIT)
    caps[1, 2] = 50 * MBIT
    problem = BroadcastProblem(64e6, Peer("learner", 400 * MBIT, 1e9), receivers, pair_cap_bps=caps)
    plan = plan_for(problem, "stripes", rules=FREE)
    assert max(simulate(problem, plan).values()) == pytest.approx(plan.time_s, rel=0.05)
    assert plan.shares[plan.order.index("w0")] < 0.16


def test_a_chunk_costs_its_overhead_once_per_hop() -> None:
    """In a chain of equal links, M chunks over d hops take (M + d - 1) (chunk time + overhead)."""
    receivers = tuple(Peer(f"w{i}", 100 * MBIT, 1000 * MBIT) for i in range(3))
    problem = BroadcastProblem(100e6, Peer("learner", 100 * MBIT, 1e9), receivers)
    plan = plan_for(problem, "chain", rules=ChunkRules(overhead_s=0.01))
    one = 8.0 / plan.chunks + 0.01
    assert plan.time_s == pytest.approx((plan.chunks + 2) * one)
