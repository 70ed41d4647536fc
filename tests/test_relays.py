"""Complaints of relays and departures in mid-broadcast: who is given another way, and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.broadcast import LEARNER, sources_of, striped
from echo2.policy.links import LinkTable
from echo2.policy.scheduler import Scheduler
from echo2.sim.inputs import SimWorker
from echo2.testing import equal_workers, one_site, small_world

COUNT = 6
Workers = tuple[SimWorker, ...]


def behind_a_border(links: LinkTable, workers: Workers, usd_per_gb: float) -> tuple[LinkTable, Workers]:
    """The learner and half of the workers on one side, the rest on the other; what crosses costs so much."""
    sites, speed = ("here", "there"), 1e15
    table = replace(
        links, sites=sites, capacity_bps=((speed, speed),) * 2, rtt_s=((0.002, 0.1), (0.1, 0.002)),
        egress_usd_per_gb=((0.0, usd_per_gb), (usd_per_gb, 0.0)), learner_site="here",
    )  # fmt: skip
    placed = tuple(replace(w, offer=replace(w.offer, site=sites[i % 2])) for i, w in enumerate(workers))
    return table, placed


class Broadcast:
    """A scheduler with `COUNT` workers up, in the middle of the broadcast of version 1."""

    def __init__(self, topology: str = "stripes", count: int = COUNT, usd_per_gb: float = 0.0) -> None:
        workers = equal_workers(count, uplink_bps=1e9, downlink_bps=1e10)
        links = one_site(1e9)
        if usd_per_gb:
            links, workers = behind_a_border(links, workers, usd_per_gb)
        world = small_world(workers, S=5, links=links, topologies=(topology,), snapshot_bytes=8e9)
        self.scheduler = Scheduler(world.settings)
        self.names = [worker.offer.worker_id for worker in workers]
        self.t_s, self.version = 0.0, 0
        for worker in workers:
            self.scheduler.observe(f.WorkerOffered(0.0, worker.offer))
        self.scheduler.observe(f.RunStarted(0.0))
        for name in self.names:
            self.scheduler.observe(f.WorkerJoined(0.0, name, 1))
        self.plan = self.publish()

    def publish(self) -> Any:
        """The next version's plan."""
        self.t_s += 20.0
        self.version += 1
        out = self.scheduler.observe(f.StepFinished(self.t_s, self.version, 10.0, 8e9))
        (publication,) = [x for x in out if isinstance(x, d.PublishSnapshot)]
        return publication.plan

    def arrive(self) -> None:
        """Everybody has the version."""
        for name in self.names:
            self.scheduler.observe(f.SnapshotLive(self.t_s, name, 1, self.version))

    def complain(self, name: str, relay: str, cause: str = "slow", version: int = 0) -> list[d.Reroute]:
        """One complaint, and the reroutes it leads to."""
        fact = f.RelayFailed(self.t_s, name, version or self.version, relay, cause)
        return [x for x in self.scheduler.observe(fact) if isinstance(x, d.Reroute)]


def test_one_complaint_moves_the_complainer_alone() -> None:
    """The first to complain of a relay gets what it owed another way; nobody else is touched."""
    run = Broadcast()
    (only,) = run.complain("w001", "w000")
    assert only.worker_ids == ("w001",) and only.without == ("w000",) and only.version == 1
    assert "w001 complains of w000" in only.reason and only.bound > 0
    assert not run.complain("w001", "w000")


def test_a_second_complainer_takes_the_relay_out_for_all() -> None:
    """All that still receive are moved, and are told every relay they are not to use any more."""
    run = Broadcast()
    run.complain("w001", "w003")
    run.complain("w001", "w000")
    moved = run.complain("w002", "w000")
    assert {name for x in moved for name in x.worker_ids} == set(run.names) - {"w000"}
    assert {x.without for x in moved if "w001" in x.worker_ids} == {("w000", "w003")}
    assert {x.without for x in moved if "w002" in x.worker_ids} == {("w000",)}
    assert not run.complain("w004", "w000")


def test_wrong_bytes_twice_are_enough() -> None:
    """The same worker that has had wrong bytes a second time takes the relay out for all."""
    run = Broadcast()
    assert len(run.complain("w001", "w000", "wrong-bytes")) == 1
    moved = run.complain("w001", "w000", "wrong-bytes")
    assert {name for x in moved for name in x.worker_ids} == set(run.names) - {"w000"}


def test_whoever_complains_of_most_relays_is_not_believed() -> None:
    """It gets its other ways, but no relay is out for others on its word and one more."""
    run = Broadcast()
    for relay in ("w001", "w002", "w003", "w004"):
        (own,) = run.complain("w000", relay, "wrong-bytes")
        assert own.worker_ids == ("w000",)
    assert not run.complain("w000", "w004", "wrong-bytes")
    (own,) = run.complain("w005", "w004")
    assert own.worker_ids == ("w005",)


@pytest.mark.parametrize(("cause", "away"), [("wrong-bytes", 2), ("slow", 2), ("gone", 0)])
def test_a_relay_that_was_taken_out_is_shunned_for_a_while(cause: str, away: int) -> None:
    """For what it did it passes nothing on in the next two broadcasts; for having been gone, none."""
    run = Broadcast()
    for name in ("w001", "w002"):
        run.complain(name, "w000", cause)
    shares = []
    for _ in range(4):
        run.arrive()
        plan = run.publish()
        shares.append(plan.shares[plan.order.index("w000")] > 0)
    assert shares == [False] * away + [True] * (4 - away)


def test_a_relay_that_leaves_is_replaced_in_the_same_answer() -> None:
    """`WorkerLeft` is answered by a reroute for all that still receive; that of a leaf by none."""
    run = Broadcast()
    run.scheduler.observe(f.SnapshotLive(run.t_s, "w005", 1, 1))
    out = run.scheduler.observe(f.WorkerLeft(run.t_s, "w000", 1, "preempted"))
    (moved,) = [x for x in out if isinstance(x, d.Reroute)]
    assert set(moved.worker_ids) == {"w001", "w002", "w003", "w004"} and moved.without == ("w000",)
    chain = Broadcast("chain")
    lost, last = chain.plan.order[2], chain.plan.order[-1]
    out = chain.scheduler.observe(f.WorkerLeft(chain.t_s, last, 1, "preempted"))
    assert not [x for x in out if isinstance(x, d.Reroute)]
    out = chain.scheduler.observe(f.WorkerLeft(chain.t_s, lost, 1, "preempted"))
    (moved,) = [x for x in out if isinstance(x, d.Reroute)]
    assert set(moved.worker_ids) == set(chain.names) - {lost, last} and moved.without == (lost,)


@pytest.mark.parametrize("topology", ["chain", "k-ary"])
def test_a_tree_that_loses_a_relay_goes_on_as_stripes(topology: str) -> None:
    """One complaint, and all that still receive go over to stripes, in which that relay has no part; whoever
    has it all already still sends; later reroutes say the same shares."""
    run = Broadcast(topology)
    relay, child = run.plan.order[0], run.plan.order[run.plan.parents.index(0)]
    done = run.plan.order[1]
    run.scheduler.observe(f.SnapshotLive(run.t_s, done, 1, 1))
    moved = run.complain(child, relay) if child != done else run.complain(run.plan.order[2], done)
    bad = relay if child != done else done
    assert {name for x in moved for name in x.worker_ids} == set(run.names) - {done}
    ((shares, without),) = {(x.shares, x.without) for x in moved}
    at = run.plan.order.index
    assert shares[at(bad)] == 0 and without == (bad,) and "stripes" in moved[0].reason
    assert all(share > 0 for name, share in zip(run.plan.order, shares) if name != bad)
    other = next(name for name in run.plan.order[2:] if name != bad)
    others = [name for name in run.plan.order if name not in (other, bad, done)]
    again = [x for name in others[:2] for x in run.complain(name, other)]
    assert {x.shares for x in again} == {shares} and len(again) >= 2
    striping = Broadcast("stripes")
    assert {x.shares for x in striping.complain("w001", "w000")} == {()}


def test_a_relay_of_a_tree_counts_half_a_complaint() -> None:
    """In a chain only one can complain: after two broadcasts with a complaint the relay feeds nobody."""
    run = Broadcast("chain")
    relay, fed = run.plan.order[1], []
    for _ in range(3):
        at = run.plan.order.index(relay)
        fed.append(at in run.plan.parents)
        if fed[-1]:
            run.complain(run.plan.order[run.plan.parents.index(at)], relay)
        run.arrive()
        run.plan = run.publish()
    assert fed == [True, True, False]


def test_a_tree_stays_one_where_stripes_cost_more_than_they_save() -> None:
    """Behind a paid border and with time to spare, what is left goes on down the tree, egress paid once."""
    for usd, wanted in ((0.0, True), (5.0, False)):
        run = Broadcast("chain", usd_per_gb=usd)
        lost = run.plan.order[2]
        out = run.scheduler.observe(f.WorkerLeft(run.t_s, lost, 1, "preempted"))
        (moved,) = [x for x in out if isinstance(x, d.Reroute)]
        assert bool(moved.shares) is wanted
        assert wanted or moved.worker_ids == (run.plan.order[3],)


def test_news_that_is_not_of_this_broadcast_changes_nothing() -> None:
    """Another version, oneself, the learner, a stranger, who has it already, and a leaf: no decision."""
    run = Broadcast("star")
    assert not run.complain("w001", "w000")
    run = Broadcast()
    run.scheduler.observe(f.SnapshotLive(run.t_s, "w003", 1, 1))
    for name, relay, version in [
        ("w001", "w000", 7), ("w001", "w001", 1), ("w001", LEARNER, 1), ("w001", "nobody", 1),
        ("nobody", "w000", 1), ("w003", "w000", 1),
    ]:  # fmt: skip
        assert run.scheduler.observe(f.RelayFailed(run.t_s, name, version, relay, "slow")) == []


@given(
    st.sampled_from(["stripes", "chain", "k-ary"]),
    st.lists(
        st.tuples(
            st.integers(0, COUNT - 1), st.integers(0, COUNT - 1), st.sampled_from(["slow", "wrong-bytes"])
        ),
        max_size=12,
    ),
)
def test_reroutes_add_up_to_a_way_for_every_chunk(
    topology: str, complaints: list[tuple[int, int, str]]
) -> None:
    """What a worker is told last holds all it was told before, and leads every chunk to the learner."""
    run = Broadcast(topology)
    plan = run.plan
    told: dict[str, frozenset[str]] = {name: frozenset() for name in run.names}
    for number, other, cause in complaints:
        name, relay = run.names[number], run.names[other]
        fed = relay in sources_of(plan, name, 40, told[name])
        for reroute in run.complain(name, relay, cause):
            plan = striped(run.plan, reroute.shares, reroute.direct_share) if reroute.shares else plan
            for worker in reroute.worker_ids:
                assert told[worker] <= set(reroute.without)
                told[worker] = frozenset(reroute.without)
        assert relay in told[name] or not fed
    ways = {name: sources_of(plan, name, 40, gone) for name, gone in told.items()}
    for receiver in run.names:
        for chunk in range(40):
            at, passed = receiver, 0
            while at != LEARNER:
                at, passed = ways[at][chunk], passed + 1
                assert passed <= COUNT


def test_a_joiner_may_ask_all_that_have_the_version() -> None:
    """A late fetch names a source and beside it whoever has the same version at no more egress."""
    run = Broadcast()
    run.arrive()
    (other,) = equal_workers(1, uplink_bps=1e9, downlink_bps=1e10)
    late = replace(other.offer, worker_id="late")
    run.scheduler.observe(f.WorkerOffered(run.t_s, late))
    out = run.scheduler.observe(f.WorkerJoined(run.t_s, "late", 1, -1))
    (fetch,) = [x for x in out if isinstance(x, d.FetchSnapshot)]
    assert set(fetch.helpers) == set(run.names) - {fetch.source_id}
