"""The simulated networks against hand arithmetic: rates, outages, token buckets, departures, fairness."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import BroadcastPlan, ChunkRules, Topology, plan_for
from echo2.policy.links import LEARNER, LinkTable
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.fairness import common_level, max_min_rates
from echo2.sim.inputs import LinkShape, NicBucket, SimWorker
from echo2.sim.network import Network
from echo2.testing import equal_workers, one_site

GBIT = 1e9
RTT_S = 0.1
GB_S = 8.0
"""Seconds that 1 GB takes at 1 Gbit/s."""
KINDS = pytest.mark.parametrize("kind", [Network, ChunkNetwork])
TOPOLOGIES: tuple[Topology, ...] = ("star", "chain", "tree", "k-ary", "regional", "stripes")
CHUNKY = ChunkRules(overhead_s=0.0, min_bytes=10e6)


@dataclass
class Run:
    """A network under test and what it reported."""

    network: Network
    env: simpy.Environment
    arrived: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    failed: dict[str, float] = field(default_factory=dict)


def run_of(
    kind: type[Network],
    workers: tuple[SimWorker, ...],
    links: LinkTable | None = None,
    shape: LinkShape | None = None,
    bucket: NicBucket | None = None,
) -> Run:
    """An idle network with these workers."""
    env = simpy.Environment()
    made: list[Run] = []
    network = kind(
        env,
        links or one_site(GBIT, RTT_S),
        workers,
        lambda name, _: made[0].arrived.__setitem__(name, env.now),
        lambda name, _, share: made[0].sent.__setitem__(name, share),
        lambda name, _: made[0].failed.__setitem__(name, env.now),
        shape,
        bucket,
    )
    made.append(Run(network, env))
    return made[0]


def pool(count: int, up: float = GBIT, down: float = 10 * GBIT) -> tuple[SimWorker, ...]:
    """Workers alike; rates in bit/s."""
    return equal_workers(count, uplink_bps=up, downlink_bps=down)


def planned(
    workers: tuple[SimWorker, ...],
    topology: Topology,
    size_bytes: float = 1e9,
    links: LinkTable | None = None,
) -> BroadcastPlan:
    """The best plan of a topology for these workers, in chunks of about 10 MB."""
    links = links or one_site(GBIT, RTT_S)
    return plan_for(links.problem([w.offer for w in workers], size_bytes), topology, rules=CHUNKY)


def delivered(run: Run, plan: BroadcastPlan) -> dict[str, float]:
    """Send along the plan from time 0 and run to the end."""
    run.network.send(1, plan)
    run.env.run()
    return run.arrived


@KINDS
def test_one_worker_takes_size_over_rate_plus_latency(kind: type[Network]) -> None:
    """1 GB to one worker over 1 Gbit/s takes 8 s and half a round trip."""
    workers = pool(1)
    seen = delivered(run_of(kind, workers), planned(workers, "star"))
    assert seen == {"w000": pytest.approx(GB_S + RTT_S / 2, rel=1e-9)}


@KINDS
def test_two_workers_share_the_uplink(kind: type[Network]) -> None:
    """Two receivers of a star share the learner's uplink evenly, each takes twice as long."""
    workers = pool(2)
    seen = delivered(run_of(kind, workers), planned(workers, "star"))
    assert list(seen.values()) == pytest.approx([2 * GB_S + RTT_S / 2] * 2, rel=1e-9)


@KINDS
def test_what_a_slow_receiver_leaves_goes_to_the_other(kind: type[Network]) -> None:
    """A downlink of 0.2 Gbit/s leaves 0.8 Gbit/s of the uplink for the other receiver."""
    slow, fast = pool(2)
    workers = (replace(slow, offer=replace(slow.offer, downlink_bps=0.2 * GBIT)), fast)
    seen = delivered(run_of(kind, workers), planned(workers, "star"))
    assert seen["w001"] == pytest.approx(GB_S / 0.8 + RTT_S / 2, rel=1e-6)
    assert seen["w000"] == pytest.approx(GB_S / 0.2 + RTT_S / 2, rel=1e-6)


@KINDS
def test_an_outage_pauses_exactly_as_long_as_it_lasts(kind: type[Network]) -> None:
    """With the learner's link down from 3 s to 5.5 s everything arrives 2.5 s later."""
    workers = pool(2)
    shape = LinkShape((0.0, 3.0, 5.5), (1.0, 0.0, 1.0), 1000.0)
    seen = delivered(run_of(kind, workers, shape=shape), planned(workers, "star"))
    assert list(seen.values()) == pytest.approx([2 * GB_S + 2.5 + RTT_S / 2] * 2, rel=1e-6)


@KINDS
def test_a_varying_link_carries_the_integral_of_its_rate(kind: type[Network]) -> None:
    """At half rate for 4 s, then double: 2 Gbit and then 6 Gbit in 3 s, 7 s in all."""
    workers = pool(1)
    shape = LinkShape((0.0, 4.0), (0.5, 2.0), 1000.0)
    seen = delivered(run_of(kind, workers, shape=shape), planned(workers, "star"))
    assert seen["w000"] == pytest.approx(7.0 + RTT_S / 2, rel=1e-6)


@KINDS
def test_a_token_bucket_bursts_and_then_throttles(kind: type[Network]) -> None:
    """4 Gbit of tokens at 1.0 against 0.2 Gbit/s sustained last 5 s; the other 3 Gbit take 15 s."""
    workers = pool(1)
    run = run_of(kind, workers, bucket=NicBucket(GBIT, 0.2 * GBIT, 4 * GBIT))
    assert delivered(run, planned(workers, "star"))["w000"] == pytest.approx(20.0 + RTT_S / 2, rel=1e-6)


@KINDS
def test_a_token_bucket_fills_while_nothing_is_sent(kind: type[Network]) -> None:
    """Emptied by a first snapshot, 10 s of rest put 2 Gbit back: a burst of 2.5 s, then 27.5 s at 0.2."""
    workers = pool(1)
    run = run_of(kind, workers, bucket=NicBucket(GBIT, 0.2 * GBIT, 4 * GBIT))
    plan = planned(workers, "star")
    delivered(run, plan)
    run.env.run(until=30.0)
    began = run.env.now
    run.network.send(2, plan)
    run.env.run()
    assert run.arrived["w000"] - began == pytest.approx(2.5 + 27.5 + RTT_S / 2, rel=1e-6)


@KINDS
def test_a_second_transfer_takes_half_of_the_link(kind: type[Network]) -> None:
    """4 Gbit of one and 8 of the other remain, shared evenly until the first ends after 8 s."""
    workers = pool(2)
    run = run_of(kind, workers)
    run.network.send(1, planned(workers[:1], "star"))
    run.env.run(until=4.0)
    run.network.send(2, planned(workers[1:], "star"))
    run.env.run()
    assert run.arrived["w000"] == pytest.approx(12.0 + RTT_S / 2, rel=1e-6)
    assert run.arrived["w001"] == pytest.approx(16.0 + RTT_S / 2, rel=1e-6)


@KINDS
def test_a_relay_that_has_everything_still_matters(kind: type[Network]) -> None:
    """A chain's relay, done at 8 s, goes down from 10 to 13 s: its child at a quarter of the rate waits."""
    relay, child = pool(2)
    shape = LinkShape((0.0, 10.0, 13.0), (1.0, 0.0, 1.0), 1000.0)
    workers = (replace(relay, shape=shape, offer=replace(relay.offer, uplink_bps=0.25 * GBIT)), child)
    plan = planned(workers, "chain")
    plan = replace(plan, order=("w000", "w001"), parents=(-1, 0))
    seen = delivered(run_of(kind, workers), plan)
    first_chunk_s = GB_S / plan.chunks + RTT_S / 2
    assert seen["w000"] == pytest.approx(GB_S + RTT_S / 2, rel=1e-6)
    assert seen["w001"] == pytest.approx(4 * GB_S + 3.0 + first_chunk_s + RTT_S / 2, rel=1e-6)


@KINDS
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_doubling_every_rate_halves_the_time(kind: type[Network], topology: Topology) -> None:
    """Every arrival is at half the time when all links are twice as fast and nothing has latency."""
    ups = (0.4, 1.0, 2.0, 0.7)
    slow = tuple(
        replace(w, offer=replace(w.offer, uplink_bps=u * GBIT)) for w, u in zip(pool(4, down=3 * GBIT), ups)
    )
    fast = tuple(
        replace(w, offer=replace(w.offer, uplink_bps=2 * w.offer.uplink_bps, downlink_bps=6 * GBIT))
        for w in slow
    )
    plan = planned(slow, topology, links=one_site(GBIT))
    once = delivered(run_of(kind, slow, one_site(GBIT)), plan)
    twice = delivered(run_of(kind, fast, one_site(2 * GBIT)), plan)
    assert {name: 2 * t for name, t in twice.items()} == pytest.approx(once, rel=1e-6)


@KINDS
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_survivors_get_everything_when_a_relay_dies(kind: type[Network], topology: Topology) -> None:
    """Each receiver in turn is lost half way: all others arrive, later than a lone worker could."""
    workers = pool(5)
    plan = planned(workers, topology)
    for lost in plan.order:
        run = run_of(kind, workers)
        run.network.send(1, plan)
        run.env.run(until=plan.time_s / 2)
        run.network.leave(lost)
        run.network.reroute(1, [name for name in plan.order if name != lost], [lost])
        run.env.run()
        assert set(run.arrived) == set(plan.order) - {lost}
        assert min(run.arrived.values()) >= GB_S
        assert max(run.arrived.values()) < 6 * GB_S
        assert 0.0 < run.sent[lost] < 1.0
        assert not run.failed


@KINDS
def test_all_relays_of_stripes_may_die(kind: type[Network]) -> None:
    """With only one receiver left the source sends it what nobody can relay any more."""
    workers = pool(4)
    run = run_of(kind, workers)
    run.network.send(1, planned(workers, "stripes"))
    run.env.run(until=4.0)
    gone = ["w000", "w001", "w002"]
    for i, name in enumerate(gone):
        run.network.leave(name)
        run.network.reroute(1, [*gone[i + 1 :], "w003"], gone[: i + 1])
    run.env.run()
    assert set(run.arrived) == {"w003"}
    assert GB_S < run.arrived["w003"] < 3 * GB_S


@KINDS
def test_an_aborted_receiver_is_charged_for_what_it_got(kind: type[Network]) -> None:
    """Aborted half way it never arrives, half a snapshot is charged and the other receiver speeds up."""
    workers = pool(2)
    run = run_of(kind, workers)
    run.network.send(1, planned(workers, "star"))
    run.env.run(until=GB_S)
    run.network.abort("w000", 1)
    run.env.run()
    assert set(run.arrived) == {"w001"}
    assert run.arrived["w001"] == pytest.approx(1.5 * GB_S + RTT_S / 2, rel=1e-6)
    assert run.sent["w000"] == pytest.approx(0.5, abs=0.02)
    assert run.sent["w001"] == 1.0


@KINDS
def test_a_lost_source_fails_its_receivers(kind: type[Network]) -> None:
    """When a worker that serves another leaves, the receiver is told at once and charged for its part."""
    workers = pool(2)
    run = run_of(kind, workers)
    run.network.send(7, planned(workers[1:], "star"), source="w000")
    run.env.run(until=2.0)
    run.network.leave("w000")
    run.env.run()
    assert run.failed == {"w001": 2.0}
    assert run.sent["w001"] == pytest.approx(0.25, abs=0.02)
    assert not run.arrived


def test_a_listener_may_send_anew_when_a_source_is_lost() -> None:
    """A failure is reported when the network is settled, so the listener can start the next transfer."""
    workers = pool(2)
    run = run_of(Network, workers)
    plan = planned(workers[1:], "star")
    run.network._failed = lambda name, version: run.network.send(version, plan, LEARNER)
    run.network.send(7, plan, source="w000")
    run.env.run(until=2.0)
    run.network.leave("w000")
    run.env.run()
    assert run.arrived["w001"] == pytest.approx(2.0 + GB_S + RTT_S / 2, rel=1e-6)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_fluid_never_polls(topology: Topology) -> None:
    """A snapshot a thousand times larger takes as many events."""
    workers = tuple(
        replace(w, offer=replace(w.offer, uplink_bps=(1 + i) * GBIT)) for i, w in enumerate(pool(6))
    )
    plan = planned(workers, topology, links=one_site(GBIT))
    events = []
    for size in (1e9, 1e12):
        run = run_of(Network, workers, one_site(GBIT))
        delivered(run, replace(plan, size_bytes=size))
        events.append(run.network.events)
    assert events[0] == events[1] <= 3 * len(workers)


def test_a_trace_costs_an_event_per_breakpoint() -> None:
    """With 20 breakpoints on the way there are at most 20 events more; idle links cost none."""
    starts = tuple(float(i) for i in range(20))
    shape = LinkShape(starts, tuple(1.0 + 0.1 * (i % 2) for i in range(20)), 20.0)
    idle, busy = pool(2)
    workers = (replace(idle, shape=LinkShape((0.0, 0.01), (1.0, 0.5), 0.02)), replace(busy, shape=shape))
    run = run_of(Network, workers)
    delivered(run, planned(workers[1:], "star", 2.4e9))
    assert 18 <= run.network.events <= 22


@st.composite
def flow_problems(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    """Flows between a few nodes, some with caps, some without a receiver's limit."""
    nodes, count = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    rate = st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0])
    index = st.integers(0, nodes - 1)

    def of(strategy: st.SearchStrategy[float], size: int) -> np.ndarray:
        return np.array(draw(st.lists(strategy, min_size=size, max_size=size)))

    caps = of(st.sampled_from([0.05, 0.5, 2.0, 1e15]), count)
    receivers = of(st.integers(-1, nodes - 1), count)
    return of(index, count), receivers, caps, of(rate, nodes), of(rate, nodes)


@settings(max_examples=150, deadline=None)
@given(flow_problems())
def test_rates_are_max_min_fair(problem: tuple[np.ndarray, ...]) -> None:
    """No link is over capacity, and every flow is at its cap or at a full link where none gets more."""
    senders, receivers, caps, up, down = problem
    rates = max_min_rates(senders, receivers, caps, up, down, np.ones(len(senders)))
    tiny = 1e-9
    assert (rates <= caps + tiny).all()
    assert (np.bincount(senders, rates, len(up)) <= up + tiny).all()
    has = receivers >= 0
    assert (np.bincount(receivers[has], rates[has], len(down)) <= down + tiny).all()
    for f, rate in enumerate(rates):
        groups = [(senders == senders[f], up[senders[f]])]
        if has[f]:
            groups.append((receivers == receivers[f], down[receivers[f]]))
        stuck = any(rates[g].sum() >= full - tiny and rate >= rates[g].max() - tiny for g, full in groups)
        assert stuck or rate >= caps[f] - tiny


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 80.0), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_the_common_level_uses_up_the_total(limits: list[float], totals: list[float], own: int) -> None:
    """Serving all but one receiver at the level takes the sender's total, or all are at their limit."""
    all_limits = np.array(limits)
    excluded = limits[own % len(limits)]
    levels = common_level(all_limits, np.array(totals), np.full(len(totals), excluded))
    for level, total in zip(levels, totals):
        taken = np.minimum(level, all_limits).sum() - min(level, excluded)
        assert taken == pytest.approx(min(total, all_limits.sum() - excluded), rel=1e-6, abs=1e-9)
