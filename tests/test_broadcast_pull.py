"""In pull mode the plan is what the scheduler then does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo2.policy.broadcast import BroadcastProblem, Peer, fluid_bound_s, pull_plan
from echo2.policy.plan_choice import plan_broadcast
from echo2.sim.run import simulate
from echo2.testing import equal_workers, one_site, small_world


@pytest.mark.parametrize(
    ("count", "learner_bps", "uplinks_bps", "train_s"),
    [(3, 1e9, (1e9,), 60.0), (12, 1e9, (1e9,), 60.0), (20, 2e9, (0.3e9, 1e9, 4e9), 60.0)],
)
def test_the_planned_tail_is_the_simulated_one(
    count: int, learner_bps: float, uplinks_bps: tuple[float, ...], train_s: float
) -> None:
    """With constant rates a publication by pull takes in the simulation what was planned, within 15 %."""
    workers = equal_workers(count, tokens_per_s=8000.0, slots=32, speedups=(1.0, 0.8, 0.6))
    linked = tuple(
        replace(w, offer=replace(w.offer, uplink_bps=uplinks_bps[i % len(uplinks_bps)]))
        for i, w in enumerate(workers)
    )
    world = small_world(
        linked, S=6, kappa=4, steps=16, train_s=train_s, links=one_site(learner_bps), mode="pull"
    )
    settings = world.settings
    offers = [worker.offer for worker in linked]
    plan, _ = plan_broadcast(offers, settings.links, settings.demand(train_s))
    simulated = simulate(world, seed=1).summary()["bcast_tail_s"]
    assert plan.topology == "pull"
    assert plan.time_s == pytest.approx(simulated["p50"], rel=0.15)


def test_more_at_a_time_than_workers_is_a_star() -> None:
    """A fan-out that serves all at once shares the learner's uplink evenly, and no peer is asked."""
    peers = tuple(Peer(f"w{i}", 1e9, 10e9) for i in range(4))
    plan = pull_plan(BroadcastProblem(1e9, Peer("learner", 1e9, 1e9), peers), 8, lambda node, seconds: 0.0)
    assert plan.parents == (-1,) * 4
    assert plan.receiver_s == pytest.approx((32.0,) * 4)


def test_no_pull_beats_the_bound() -> None:
    """Fetching whole snapshots is no faster than the fluid bound, and parents come before their children."""
    peers = tuple(Peer(f"w{i}", 1e8 * (i + 1), 2e9, weight=1.0 + i % 3) for i in range(9))
    problem = BroadcastProblem(1e9, Peer("learner", 1e9, 1e9), peers)
    for fanout in (1, 2, 4):
        plan = pull_plan(problem, fanout, lambda node, seconds: seconds)
        assert plan.time_s >= fluid_bound_s(problem)
        assert all(parent < at for at, parent in enumerate(plan.parents))
        assert sorted(plan.order) == sorted(peer.peer_id for peer in peers)
