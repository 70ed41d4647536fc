"""Truths no simulated run may break, whatever the pool, the links or the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo2.policy.generation import TokenLengths
from echo2.policy.links import LinkTable
from echo2.sim.inputs import Availability, DecodeModel, LearnerModel, WorldInputs
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
