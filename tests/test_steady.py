"""The predicted steady state: limits, bounds, and what makes it faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.policy.capacity import serial_step_s, upper_bound_steps_per_s
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths, drain_times, running_context, steady_rate
from echo2.policy.links import LinkTable
from echo2.policy.settings import SchedulerSettings
from echo2.policy.steady import SteadyProblem, WorkerGroup, predict
from echo2.sim.inputs import LearnerModel, SimWorker, WorldInputs
from echo2.sim.run import simulate

GPU = DecodeModel((1, 8, 32, 64), (0.010, 0.012, 0.018, 0.027), (1e-6, 3e-6, 9e-6, 16e-6))
EQUAL = TokenLengths.constant(1000)
TAILED = TokenLengths(
    np.array([50.0, 400, 1000, 2000, 4000]),
    np.array([400.0, 1000, 2000, 4000, 8000]),
    np.array([0.3, 0.3, 0.25, 0.12, 0.03]),
)


def problem(**changes: object) -> SteadyProblem:
    """Four alike GPUs, a batch of 256 in groups of 8, links as long as a step."""
    base = SteadyProblem(
        S=4, kappa=2, B=256, G=8, train_s=40.0, workers=(WorkerGroup(4, GPU, 32, 40.0),), lengths=TAILED
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@st.composite
def problems(draw: st.DrawFn) -> SteadyProblem:
    S = draw(st.integers(0, 8))
    lengths = draw(st.sampled_from([EQUAL, TAILED]))
    groups = tuple(
        WorkerGroup(
            draw(st.integers(1, 3)),
            replace(GPU, speedup=draw(st.sampled_from([0.5, 1.0, 1.5]))),
            draw(st.sampled_from([16, 32, 64])),
            draw(st.sampled_from([0.0, 5.0, 40.0, 200.0])),
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    return SteadyProblem(
        S=S,
        kappa=draw(st.integers(1, S + 1)),
        B=8 * draw(st.sampled_from([8, 16, 32])),
        G=8,
        train_s=draw(st.sampled_from([5.0, 20.0, 80.0])),
        workers=groups,
        lengths=lengths,
        prompt_tokens=200.0,
        swap_pause_s=draw(st.sampled_from([0.0, 1.0])),
        reading=draw(st.sampled_from(["overlap", "stall"])),
    )


def bound(p: SteadyProblem) -> float:
    """The bound of design section 3 with the rate of the fullest worker and the shortest batch."""
    context = running_context(p.lengths, p.prompt_tokens)
    rate = sum(g.count * g.model.tokens_per_s(g.slots + p.G - 1, context) / p.lengths.mean for g in p.workers)
    shortest = float(p.lengths.quantile(0.0)) * min(g.model.step_s(1, 0.0) for g in p.workers)
    fastest = min(g.broadcast_s for g in p.workers)
    return upper_bound_steps_per_s(p.S, p.B, p.train_s, rate, fastest, shortest)[0]


def simulated(p: SteadyProblem) -> float:
    """Steps/s of the simulation after a warm-up, every worker behind a link of its own."""
    size, workers = 1e9, []
    for group in p.workers:
        rate = steady_rate(group.model, p.lengths, p.prompt_tokens, group.slots, p.G)
        down = 8.0 * size / max(group.broadcast_s, 1e-3)
        for _ in range(group.count):
            offer = WorkerOffer(
                f"w{len(workers)}", "pool", "GPU", "a", 1.0, rate.rollouts_per_s, group.slots, rate.group_s,
                rate.tail_s, 1e12, down,
            )  # fmt: skip
            workers.append(SimWorker(offer, group.model))
    links = LinkTable(("a",), ((1e15,),), ((0.0,),), ((0.0,),), "a", 1e15, 1e15)
    run = SchedulerSettings(
        p.S, p.kappa, p.B, p.G, 120, p.train_s, size, size, 1.0, links, reading=p.reading, activation="all",
        topologies=("star",),
    )  # fmt: skip
    world = WorldInputs(run, tuple(workers), LearnerModel(p.train_s), p.lengths, p.prompt_tokens)
    ends = simulate(world).world.metrics.step_end_s
    return 80 / (ends[-1] - ends[39])


@given(problems())
@settings(max_examples=60, deadline=None)
def test_never_above_the_bound(p: SteadyProblem) -> None:
    """No prediction beats the upper bound, no utilisation exceeds one, no trained rollout is older than S."""
    state = predict(p)
    assert state.steps_per_s <= bound(p) * 1.01
    assert 0 < state.learner_utilisation <= 1
    assert 0 < state.worker_utilisation <= 1
    assert 0 <= state.mean_lag <= state.max_lag <= p.S
    assert -1e-9 <= state.dropped_share < 1
    assert state.step_s == pytest.approx(1 / state.steps_per_s)


@given(problems(), st.sampled_from([1.25, 2.0]))
@settings(max_examples=40, deadline=None)
def test_faster_workers_never_slow_a_run_down(p: SteadyProblem, factor: float) -> None:
    """Speeding every worker up does not lower the predicted steps/s by more than the method's 6 %."""
    faster = tuple(replace(g, model=replace(g.model, speedup=g.model.speedup * factor)) for g in p.workers)
    assert predict(replace(p, workers=faster)).steps_per_s >= 0.94 * predict(p).steps_per_s


@given(problems())
@settings(max_examples=40, deadline=None)
def test_more_staleness_never_slows_a_run_down_while_generation_goes_on(p: SteadyProblem) -> None:
    """With overlap, raising S at the same period does not lower the steps/s by more than the method's 6 %."""
    p = replace(p, reading="overlap")
    assert predict(replace(p, S=p.S + 1)).steps_per_s >= 0.94 * predict(p).steps_per_s


@given(problems())
@settings(max_examples=40, deadline=None)
def test_more_staleness_hardly_slows_down_a_run_that_stops_for_snapshots(p: SteadyProblem) -> None:
    """With stall, unlike workers may get into each other's way: at most 15 % (the next test has a case)."""
    p = replace(p, reading="stall")
    assert predict(replace(p, S=p.S + 1)).steps_per_s >= 0.85 * predict(p).steps_per_s


def test_where_more_staleness_does_slow_a_run_down() -> None:
    """Where the simulation is slower at S + 1 the prediction says so: here rollouts are dropped for it."""
    workers = (WorkerGroup(1, GPU, 64, 40.0), WorkerGroup(2, GPU, 16, 0.0))
    p = SteadyProblem(1, 2, 64, 8, 5.0, workers, EQUAL, 200.0, reading="stall")
    real = simulated(replace(p, S=2)) / simulated(p)
    assert real < 0.95
    assert predict(replace(p, S=2)).steps_per_s / predict(p).steps_per_s == pytest.approx(real, rel=0.02)


def test_workers_stopped_for_a_snapshot_get_no_work() -> None:
    """With stall and snapshots that follow one another, steps take what they take in the simulation."""
    workers = (WorkerGroup(1, replace(GPU, speedup=0.5), 32, 200.0), WorkerGroup(2, GPU, 64, 200.0))
    for S in (1, 2, 3):
        p = SteadyProblem(S, 1, 64, 8, 20.0, workers, EQUAL, 200.0, reading="stall")
        assert predict(p).steps_per_s == pytest.approx(simulated(p), rel=0.04)


@pytest.mark.parametrize("broadcast_s", [0.0, 30.0])
@pytest.mark.parametrize(("lengths", "tolerance"), [(EQUAL, 0.005), (TAILED, 0.06)])
def test_on_policy_is_serial(lengths: TokenLengths, tolerance: float, broadcast_s: float) -> None:
    """With S = 0 a step is broadcast, drain of the batch on the worker, training."""
    p = problem(S=0, kappa=1, lengths=lengths, workers=(WorkerGroup(1, GPU, 256, broadcast_s),))
    drain_s = drain_times(GPU, lengths, 0.0, 256, 256)[-1]
    assert predict(p).step_s == pytest.approx(serial_step_s(broadcast_s, drain_s, 40.0), rel=tolerance)


def test_on_policy_batch_is_shared_by_speed() -> None:
    """Eight groups go two to each of four equal workers, though one of them is live a second later."""
    workers = (WorkerGroup(3, GPU, 24, 1.0), WorkerGroup(1, GPU, 24, 2.0))
    p = problem(S=0, kappa=1, B=64, lengths=EQUAL, workers=workers)
    drain_s = drain_times(GPU, EQUAL, 0.0, 16, 24)[-1]
    assert predict(p).step_s == pytest.approx(serial_step_s(2.0, drain_s, 40.0), rel=0.005)


def test_a_slow_learner_is_always_busy() -> None:
    """With plenty of rollouts and staleness the learner never waits and is named."""
    state = predict(problem(S=6, kappa=2, train_s=400.0))
    assert state.learner_utilisation == pytest.approx(1.0)
    assert state.binding == "learner"
    assert state.dropped_share == pytest.approx(0.0, abs=1e-6)


def test_few_workers_bind_the_run_at_their_rate() -> None:
    """With fast links and a quick learner the workers' rate sets the pace and is named."""
    p = problem(S=8, kappa=1, train_s=1.0, workers=(WorkerGroup(2, GPU, 16, 0.5),))
    state = predict(p)
    assert state.binding == "rollouts"
    assert state.steps_per_s * p.B == pytest.approx(p.total_rate, rel=0.02)


def test_a_slow_link_binds_the_run() -> None:
    """With S = 1 and a broadcast of ten generations the broadcast is named, and sets two steps a round."""
    state = predict(problem(S=1, kappa=1, lengths=EQUAL, workers=(WorkerGroup(8, GPU, 64, 300.0),)))
    assert state.binding == "broadcast"
    assert state.steps_per_s <= 2 / (300.0 + 40.0)


def test_stopping_for_a_snapshot_costs_more_than_overlapping_it() -> None:
    """The stall reading is slower than overlap when workers bind, by about the time they stop."""
    p = problem(S=8, kappa=4, train_s=5.0, lengths=EQUAL, workers=(WorkerGroup(2, GPU, 32, 60.0),))
    overlap, stall = predict(p), predict(replace(p, reading="stall"))
    assert stall.step_s == pytest.approx(overlap.step_s + 60.0 / 4, rel=0.05)


def test_single_workers_and_a_group_of_them_agree() -> None:
    """Twenty alike workers marched as one group match the same twenty given one by one."""
    together = problem(B=1024, workers=(WorkerGroup(20, GPU, 32, 40.0),))
    singly = replace(together, workers=(WorkerGroup(1, GPU, 32, 40.0),) * 20)
    assert predict(together).steps_per_s == pytest.approx(predict(singly).steps_per_s, rel=0.06)


def test_many_different_workers_are_merged_without_losing_rate() -> None:
    """A hundred different workers, marched as at most 64, still make what they make together."""
    workers = tuple(
        WorkerGroup(1, replace(GPU, speedup=0.5 + 0.01 * i), 16, 1.0 + 0.01 * i) for i in range(100)
    )
    p = problem(S=8, kappa=1, train_s=1.0, B=2048, workers=workers, lengths=EQUAL)
    assert predict(p).steps_per_s * p.B == pytest.approx(p.total_rate, rel=0.03)


def test_a_period_beyond_the_bound_is_refused() -> None:
    """kappa > S + 1 would deadlock and is the user's error."""
    with pytest.raises(UserError, match="deadlocks"):
        problem(S=2, kappa=4)
