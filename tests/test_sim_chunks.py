"""The chunk network: store and forward by hand, and the fluid network held to it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import BroadcastPlan, ChunkRules, Topology, plan_for, stripe_counts, with_chunks
from echo2.policy.links import LinkTable
from echo2.sim.chunk_transfer import carried_in
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.inputs import LinkShape, SimWorker
from echo2.sim.network import Network
from echo2.testing import equal_workers, one_site

GBIT = 1e9
TOPOLOGIES: tuple[Topology, ...] = ("star", "chain", "tree", "k-ary", "regional", "stripes")
CHUNKY = ChunkRules(overhead_s=0.0, min_bytes=10e6)


def arrivals(
    kind: type[Network],
    workers: tuple[SimWorker, ...],
    plan: BroadcastPlan,
    links: LinkTable,
    shape: LinkShape | None = None,
) -> tuple[dict[str, float], int]:
    """When each receiver has everything, and the number of events."""
    env = simpy.Environment()
    seen: dict[str, float] = {}
    network = kind(
        env,
        links,
        workers,
        lambda name, _: seen.__setitem__(name, env.now),
        lambda *_: None,
        lambda *_: None,
        shape,
    )
    network.send(1, plan)
    env.run()
    return seen, network.events


def plan_of(workers: tuple[SimWorker, ...], topology: Topology, links: LinkTable) -> BroadcastPlan:
    """The best plan of a topology for 1 GB in about 95 chunks, without a time per chunk."""
    return plan_for(links.problem([w.offer for w in workers], 1e9), topology, rules=CHUNKY)


def with_uplinks(ups: list[float], down: float = 10.0) -> tuple[SimWorker, ...]:
    """Workers with these uplinks; Gbit/s."""
    workers = equal_workers(len(ups), downlink_bps=down * GBIT)
    return tuple(replace(w, offer=replace(w.offer, uplink_bps=u * GBIT)) for w, u in zip(workers, ups))


def test_a_chain_forwards_a_chunk_when_it_has_it_whole() -> None:
    """M chunks over three equal hops take M + 2 chunk times and three latencies."""
    links, workers = one_site(GBIT, 0.2), with_uplinks([1.0, 1.0, 1.0])
    plan = replace(plan_of(workers, "chain", links), chunks=10)
    seen, _ = arrivals(ChunkNetwork, workers, plan, links)
    assert max(seen.values()) == pytest.approx(0.8 * 12 + 3 * 0.1)


def test_a_chunk_passes_a_slow_hop_before_the_next_is_sent() -> None:
    """A fast first and a slow second hop: one fast chunk time, then M slow ones."""
    links, workers = one_site(2 * GBIT), with_uplinks([0.5, 1.0])
    plan = replace(plan_of(workers, "chain", links), chunks=4, order=("w000", "w001"), parents=(-1, 0))
    seen, _ = arrivals(ChunkNetwork, workers, plan, links)
    assert seen["w001"] == pytest.approx(1.0 + 4 * 4.0)


def test_stripes_end_one_relayed_chunk_after_the_source() -> None:
    """Two equal relays, M chunks in turn: M chunk times at the source and one to pass on the last."""
    links, workers = one_site(GBIT), with_uplinks([1.0, 1.0])
    plan = replace(plan_of(workers, "stripes", links), chunks=10, shares=(0.5, 0.5), direct_share=0.0)
    seen, _ = arrivals(ChunkNetwork, workers, plan, links)
    assert max(seen.values()) == pytest.approx(0.8 * 11)


def test_events_are_bounded_by_the_chunks_sent() -> None:
    """Every event but the first is the departure or the arrival of a chunk, however slow the links are."""
    for bps in (GBIT, GBIT / 1000):
        links, workers = one_site(bps, 0.02), with_uplinks([0.3, 1.0, 2.0])
        plan = plan_of(workers, "stripes", links)
        _, events = arrivals(ChunkNetwork, workers, plan, links)
        assert plan.chunks < events <= 2 * plan.chunks * len(workers) + 1


def test_coarse_plans_keep_their_shares() -> None:
    """A plan of too many chunk-sends is cut into fewer chunks, with every relay's part within one chunk."""
    links, workers = one_site(GBIT), with_uplinks([0.3, 1.0, 2.0, 0.9])
    rules = ChunkRules(overhead_s=0.0, min_bytes=1e5, max_bytes=1.1e5)
    problem = links.problem([w.offer for w in workers], 1e9)
    plan = plan_for(problem, "stripes", rules=rules)
    coarse = with_chunks(plan, carried_in(plan, most_sends=1000))
    assert plan.chunks > 9000 and coarse.chunks == 250
    counts, direct = stripe_counts(coarse)
    assert sum(counts) + direct == coarse.chunks
    assert coarse.shares == pytest.approx(plan.shares, abs=1 / coarse.chunks)
    assert carried_in(coarse, most_sends=1000) == 250
    star = replace(plan, topology="star", parents=(-1,) * 4, shares=())
    assert carried_in(star, most_sends=1000) == 250


@st.composite
def pools(draw: st.DrawFn) -> tuple[tuple[SimWorker, ...], LinkShape | None]:
    """Two to six workers with uneven uplinks, maybe a slow one, maybe links that vary."""
    ups = draw(st.lists(st.floats(0.2, 2.0), min_size=2, max_size=6))
    workers = with_uplinks(ups)
    if draw(st.booleans()):
        slow = workers[0]
        workers = (replace(slow, offer=replace(slow.offer, downlink_bps=0.1 * GBIT)), *workers[1:])
    if draw(st.booleans()):
        return workers, None
    factor = st.lists(st.floats(0.5, 1.5), min_size=4, max_size=4)
    hold = st.floats(1.0, 3.0)

    def shape() -> LinkShape:
        length = draw(hold)
        return LinkShape(tuple(length * i for i in range(4)), tuple(draw(factor)), 4 * length)

    return tuple(replace(w, shape=shape()) for w in workers), shape()


@settings(max_examples=25, deadline=None)
@given(pools(), st.sampled_from(TOPOLOGIES))
def test_fluid_and_chunks_agree_within_5_percent(
    drawn: tuple[tuple[SimWorker, ...], LinkShape | None], topology: Topology
) -> None:
    """The last receiver is done at the same time in both networks, on constant and on varying links."""
    workers, shape = drawn
    links = one_site(GBIT, 0.02)
    plan = plan_of(workers, topology, links)
    fluid, _ = arrivals(Network, workers, plan, links, shape)
    chunk, _ = arrivals(ChunkNetwork, workers, plan, links, shape)
    assert set(fluid) == set(chunk) == set(plan.order)
    assert max(fluid.values()) == pytest.approx(max(chunk.values()), rel=0.05)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.2, 2.0), min_size=2, max_size=6), st.sampled_from(TOPOLOGIES))
def test_both_networks_take_as_long_as_planned(ups: list[float], topology: Topology) -> None:
    """On constant links the planned tail is within 5 % of the fluid's and of the chunks'."""
    links, workers = one_site(GBIT, 0.02), with_uplinks(ups)
    plan = plan_of(workers, topology, links)
    for kind in (Network, ChunkNetwork):
        seen, _ = arrivals(kind, workers, plan, links)
        assert max(seen.values()) == pytest.approx(plan.time_s, rel=0.05), kind.__name__


def _note(env: simpy.Environment, seen: dict[str, float], name: str, _: int) -> None:
    seen[name] = env.now


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_fluid_and_chunks_agree_when_a_relay_dies(topology: Topology) -> None:
    """Half way the first relay is lost: the rest is done within 5 % of the same time."""
    links, workers = one_site(GBIT, 0.02), with_uplinks([1.0, 1.0, 1.0, 1.0, 1.0])
    plan = plan_of(workers, topology, links)
    tails = []
    for kind in (Network, ChunkNetwork):
        env = simpy.Environment()
        seen: dict[str, float] = {}
        network = kind(
            env,
            links,
            workers,
            partial(_note, env, seen),
            lambda *_: None,
            lambda *_: None,
        )
        network.send(1, plan)
        env.run(until=plan.time_s / 2)
        network.leave(plan.order[0])
        network.reroute(1, plan.order[1:], plan.order[:1])
        env.run()
        tails.append(max(seen.values()))
    assert tails[0] == pytest.approx(tails[1], rel=0.05)
