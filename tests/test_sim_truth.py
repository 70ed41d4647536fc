"""Truths no simulated run may break, whatever the pool, the links or the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo2.policy.generation import TokenLengths, steady_rate
from echo2.policy.links import LinkTable
from echo2.sim.inputs import (
    Availability,
    DecodeModel,
    LearnerModel,
    LinkShape,
    PriceChange,
    SimWorker,
    WorldInputs,
)
from echo2.sim.run import SimResult, simulate
from echo2.testing import equal_workers, one_site, small_world

HEAVY = TokenLengths(
    np.array([100.0, 400.0, 1500.0]), np.array([300.0, 1000.0, 6000.0]), np.array([0.5, 0.4, 0.1])
)


def conserved(result: SimResult) -> bool:
    """dispatched = trained + dropped + in flight, in rollouts."""
    rollouts = result.summary()["rollouts"]
    return bool(rollouts["dispatched"] == rollouts["trained"] + rollouts["dropped"] + rollouts["in_flight"])


@st.composite
def worlds(draw: st.DrawFn) -> WorldInputs:
    """Small worlds of every kind: bounds, periods, pools, links, readings, modes, churn."""
    S = draw(st.integers(0, 6))
    kappa = draw(st.integers(1, S + 1))
    lengths = draw(st.sampled_from([TokenLengths.constant(1000.0), HEAVY]))
    speedups = draw(st.sampled_from([(1.0,), (1.0, 0.3, 2.0)]))
    workers = equal_workers(
        draw(st.integers(1, 6)),
        tokens_per_s=draw(st.sampled_from([500.0, 3000.0, 20_000.0])),
        slots=draw(st.sampled_from([4, 32])),
        lengths=lengths,
        speedups=speedups,
        downlink_bps=draw(st.sampled_from([1e8, 1e9, 1e10])),
        startup_s=draw(st.sampled_from([0.0, 30.0])),
    )
    if draw(st.booleans()):
        up = ((0.0, 400.0), (450.0, 900.0))
        workers = tuple(
            replace(worker, availability=Availability(up, 1000.0, offset_s=100.0 * i))
            for i, worker in enumerate(workers)
        )
    return small_world(
        workers,
        S=S,
        kappa=kappa,
        steps=12,
        lengths=lengths,
        learner_cv=draw(st.sampled_from([0.0, 0.3])),
        reading=draw(st.sampled_from(["overlap", "stall"])),
        mode=draw(st.sampled_from(["push", "pull"])),
        swap_pause_s=draw(st.sampled_from([0.0, 1.0])),
        snapshot_bytes=draw(st.sampled_from([1e8, 3e9])),
    )


@given(world=worlds(), seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_trained_rollout_is_older_than_the_bound_and_groups_are_conserved(
    world: WorldInputs, seed: int
) -> None:
    """No rollout older than S is trained, every dispatched rollout is accounted for, no bound is beaten."""
    result = simulate(world, seed, limit_s=40_000.0)
    summary = result.summary()
    assert summary["staleness"]["max"] <= world.settings.staleness_bound
    assert conserved(result)
    assert summary["steps_per_s"] <= summary["upper_bound_steps_per_s"] * (1 + 1e-9)
    assert sum(summary["bubble_by_cause"].values()) == pytest.approx(summary["bubble"], abs=1e-6)


@given(world=worlds())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_run_finishes_where_workers_stay(world: WorldInputs) -> None:
    """With workers that are not taken away every run reaches its last step: nothing waits for ever."""
    workers = tuple(replace(worker, availability=None) for worker in world.workers)
    result = simulate(replace(world, workers=workers), 0)
    assert result.complete, result.summary()["waiting_for"]


@pytest.mark.parametrize("slots", [4, 16, 64])
def test_strictly_on_policy_is_the_serial_closed_form(slots: int) -> None:
    """With S = 0 a step takes broadcast + generation of the batch + training, to the microsecond."""
    world = small_world(equal_workers(1, slots=slots), S=0, batch=32, steps=10)
    ends = simulate(world).world.metrics.step_end_s
    broadcast = 8.0 * 1e9 / 10e9
    generate = 32 * 1000 / 1000.0
    assert np.diff(ends) == pytest.approx([broadcast + generate + 10.0] * 9, abs=1e-5)


def test_one_worker_and_a_constant_link_follow_hand_arithmetic() -> None:
    """One slow worker, S = 1: the first batch after 32 s, then the worker is the limit at 32 s a step."""
    world = small_world(equal_workers(1), S=1, kappa=1, batch=32, steps=5, train_s=10.0)
    ends = simulate(world).world.metrics.step_end_s
    assert ends[0] == pytest.approx(32.0 + 10.0)
    assert np.diff(ends) == pytest.approx([32.0] * 4, abs=1e-3)


def test_doubling_every_rate_halves_the_time() -> None:
    """Twice the tokens/s, the link rates and the learner's speed: half the wall time.

    Snapshots go in one hop: the overhead of a relayed chunk is milliseconds on any link.
    """
    workers = equal_workers(3, speedups=(1.0, 0.5), lengths=HEAVY)
    slow = small_world(workers, lengths=HEAVY, S=3, kappa=2, topologies=("star",))
    fast_workers = tuple(
        replace(
            worker,
            decode=replace(worker.decode, speedup=worker.decode.speedup * 2),
            offer=replace(
                worker.offer,
                rollouts_per_s=worker.offer.rollouts_per_s * 2,
                group_s=worker.offer.group_s / 2,
                generation_tail_s=worker.offer.generation_tail_s / 2,
                uplink_bps=20e9,
                downlink_bps=20e9,
            ),
        )
        for worker in slow.workers
    )
    fast = replace(
        slow,
        workers=fast_workers,
        learner=LearnerModel(5.0),
        settings=replace(slow.settings, train_s=5.0, links=one_site(20e9)),
    )
    assert simulate(fast).world.wall_s == pytest.approx(simulate(slow).world.wall_s / 2, rel=1e-3)


def test_the_same_seed_gives_the_same_run() -> None:
    """Two runs of one seed agree in every number; another seed differs."""
    world = small_world(equal_workers(4, lengths=HEAVY), lengths=HEAVY, learner_cv=0.2)
    first, again, other = (simulate(world, seed).summary() for seed in (1, 1, 2))
    for summary in (first, again, other):
        del summary["elapsed_s"]
    assert first == again
    assert first != other


def test_lengths_do_not_depend_on_the_policy() -> None:
    """Two pools of different size train the same prompts with the same lengths on one seed."""
    runs = [
        simulate(small_world(equal_workers(n, lengths=HEAVY), lengths=HEAVY, S=0, steps=4), 5).world
        for n in (1, 3)
    ]
    assert runs[0].metrics.trained_tokens == runs[1].metrics.trained_tokens


def test_egress_is_charged_per_byte_sent() -> None:
    """At 0.09 USD/GB and 1 GB a snapshot, each of 3 workers costs 0.09 USD per version."""
    links: LinkTable = one_site(egress_usd_per_gb=0.09)
    world = small_world(equal_workers(3), links=links, steps=5, S=1, kappa=1)
    summary = simulate(world).summary()
    assert summary["published"] == 4
    assert summary["cost_split_usd"]["egress"] == pytest.approx(4 * 3 * 0.09)


def test_a_context_dependent_decode_is_integrated_exactly() -> None:
    """One sequence of 1,000 tokens whose step is 1 ms + 1 us x context takes 1 s + 0.5 s."""
    world = small_world(equal_workers(1), S=0, batch=1, group=1, steps=1, train_s=1.0)
    decode = DecodeModel((1.0,), (1e-3,), (1e-6,), max_running=4)
    worker = replace(world.workers[0], decode=decode)
    ends = simulate(replace(world, workers=(worker,))).world.metrics.step_end_s
    assert ends[0] == pytest.approx(1.5 + 1.0, rel=1e-6)


def with_decode(workers: tuple[SimWorker, ...], decode: DecodeModel) -> tuple[SimWorker, ...]:
    """The same workers on another engine, their offers measured anew."""
    made = steady_rate(decode, TokenLengths.constant(1000.0), 0.0, group_size=4)
    offer = {"rollouts_per_s": made.rollouts_per_s, "group_s": made.group_s, "generation_tail_s": made.tail_s}
    return tuple(replace(w, decode=decode, offer=replace(w.offer, **offer)) for w in workers)


def test_the_bound_holds_where_half_a_batch_decodes_faster() -> None:
    """An engine that is fastest at 8 of 32 sequences does not beat the bound with 8, and comes near it."""
    decode = DecodeModel((1.0, 8.0, 32.0), (1e-3, 2e-3, 2e-2), (0.0, 0.0, 0.0), max_running=32)
    workers = with_decode(equal_workers(2, slots=32), decode)
    summary = simulate(
        small_world(workers, S=0, batch=16, steps=5, train_s=0.1, snapshot_bytes=1e6)
    ).summary()
    assert 0.9 < summary["steps_per_s"] / summary["upper_bound_steps_per_s"] <= 1.0


def test_the_bound_holds_on_links_at_their_best() -> None:
    """A trace that triples the level of the only link does not beat the bound, and comes near it."""
    workers = equal_workers(1, tokens_per_s=1e5, slots=32, downlink_bps=1e9)
    shaped = (replace(workers[0], shape=LinkShape((0.0,), (3.0,), 1000.0)),)
    summary = simulate(small_world(shaped, S=0, train_s=1.0)).summary()
    assert 0.9 < summary["steps_per_s"] / summary["upper_bound_steps_per_s"] <= 1.0


def test_relays_reach_what_one_edge_does_not() -> None:
    """Behind edges of 100 Mbit/s eight workers share 1 GB in 10 s instead of 80, and no bound is beaten."""
    links = LinkTable(
        ("A", "B"), ((1e12, 1e8), (1e8, 1e12)), ((1e-9, 0.08), (0.08, 1e-9)), ((0.0, 0.0), (0.0, 0.0)),
        "A", 10e9, 10e9, streams=64,
    )  # fmt: skip
    workers = equal_workers(8, tokens_per_s=1e5, slots=32, site="B")
    summary = simulate(small_world(workers, S=0, links=links, train_s=1.0, steps=10)).summary()
    assert summary["bcast_tail_s"]["max"] < 11.0
    assert 0.9 < summary["steps_per_s"] / summary["upper_bound_steps_per_s"] <= 1.0


def test_a_worker_comes_back_at_the_price_of_the_day() -> None:
    """After a price change a worker that was away is offered at what is charged for it."""
    away = Availability(((0.0, 100.0), (150.0, 10_000.0)), 20_000.0)
    workers = tuple(replace(worker, availability=away) for worker in equal_workers(2))
    world = replace(small_world(workers), price_changes=(PriceChange(50.0, "pool0", 3.0),))
    result = simulate(world)
    assert [worker.offer.price_usd_per_h for worker in result.world.scheduler.fleet] == [3.0, 3.0]


def test_switching_everything_on_keeps_everything_on() -> None:
    """Under the rule `all` the workers that stay are paid for until the end, a late one from its offer on."""
    workers = equal_workers(4, tokens_per_s=6000.0)
    gone = replace(workers[0], availability=Availability(((0.0, 50.0),), 1e6))
    late = replace(workers[1], availability=Availability(((70.0, 1e6),), 1e6))
    result = simulate(small_world((gone, late, *workers[2:]), S=3))
    wall_s = result.world.wall_s
    paid = [machine.meter.paid_s for machine in result.world.machines.values()]
    assert paid == pytest.approx([50.0, wall_s - 70.0, wall_s, wall_s])


def test_a_late_joiner_is_not_the_tail_of_a_broadcast() -> None:
    """A worker that comes up long after a publication does not count as its last receiver."""
    workers = equal_workers(2, tokens_per_s=3000.0)
    late = replace(workers[1], availability=Availability(((1000.0, 1e6),), 1e6))
    result = simulate(small_world((workers[0], late), S=6, kappa=6, steps=20, train_s=100.0))
    assert result.summary()["bcast_tail_s"]["max"] < 2.0
    assert result.world.scheduler.fleet["w001"].incarnation == 1
