"""The parts of validation: measuring a log, fitting an engine, step times, and the control plane."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from echo2.policy import facts as f
from echo2.policy.generation import DecodeModel
from echo2.sim.run import simulate
from echo2.sim.worker import WorkerProcess
from echo2.testing.worlds import equal_workers, small_world
from echo2.validate.compare import distances, error, figures
from echo2.validate.engine_fit import ANSWER_SHARE, Alike, Job, Work, counted, fit_engines, parts_of, replay
from echo2.validate.measure import Measures, first_difference, measure
from echo2.validate.recorded import swaps_of
from echo2.validate.steps import SeenStep, StepKinds, fit_steps


@pytest.fixture(scope="module")
def simulated() -> tuple[object, Measures]:
    """A simulated run, and its log measured from the first step to the last."""
    result = simulate(small_world(equal_workers(6, startup_s=5.0), steps=30), seed=1, keep_log=True)
    world = result.world
    return result, measure(world.entries, world.inputs.settings, 0, 30)


def test_a_log_measures_as_its_world_does(simulated: tuple[object, Measures]) -> None:
    """What is measured from facts and decisions alone equals the world's own counters."""
    result, made = simulated
    summary, metrics = result.summary(), result.world.metrics  # type: ignore[attr-defined]
    assert made.steps == summary["steps"]
    assert made.wall_s == pytest.approx(summary["wall_s"])
    assert made.train_s == metrics.train_s
    assert np.cumsum(made.step_s).tolist() == pytest.approx(metrics.step_end_s)
    assert made.staleness == metrics.staleness
    assert made.dropped == metrics.dropped_rollouts
    assert made.dispatched == metrics.dispatched_rollouts
    assert made.usd == pytest.approx(summary["cost_usd"])
    for cause, share in summary["bubble_by_cause"].items():
        assert made.bubble_s.get(cause, 0.0) == pytest.approx(share * summary["wall_s"], abs=1e-9)


def test_the_tails_of_a_log_are_the_worlds(simulated: tuple[object, Measures]) -> None:
    """Dissemination tails from the log are those that the world has counted."""
    result, made = simulated
    tails = list(result.world.metrics.dissemination_tails_s().values())  # type: ignore[attr-defined]
    assert sorted(made.tails_s) == pytest.approx(sorted(tails))


def test_two_spans_add_up(simulated: tuple[object, Measures]) -> None:
    """The two parts of a run have its steps, rollouts and wall time between them."""
    world = simulated[0].world  # type: ignore[attr-defined]
    parts = [measure(world.entries, world.inputs.settings, *span) for span in ((0, 12), (12, 30))]
    whole = simulated[1]
    assert sum(part.wall_s for part in parts) == pytest.approx(whole.wall_s)
    assert sum((part.staleness for part in parts), Counter()) == whole.staleness
    assert sum(part.dispatched for part in parts) == whole.dispatched


def test_replaying_a_log_finds_the_first_decision_that_differs(simulated: tuple[object, Measures]) -> None:
    """A log replays to no difference; with one decision gone the difference is found."""
    world = simulated[0].world  # type: ignore[attr-defined]
    settings = world.inputs.settings
    assert first_difference(world.entries, settings) == ""
    at = next(k for k, (_, answers) in enumerate(world.entries) if answers and k > 20)
    fact, answers = world.entries[at]
    less = [*world.entries[:at], (fact, answers[1:]), *world.entries[at + 1 :]]
    assert "it decided" in first_difference(less, settings)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(1, 8),
    st.floats(0.001, 0.05),
    st.floats(0.0005, 0.01),
)
def test_the_fitted_engine_runs_as_the_simulators_does(
    groups: list[tuple[float, int]], slots: int, base_s: float, each_s: float
) -> None:
    """A replay ends every rollout when `WorkerProcess` does."""
    jobs = [Job(at, (tokens, tokens + 1), ()) for at, tokens in sorted(groups)]
    ours = replay(Work(jobs), slots, base_s, each_s, 0.0)
    env = simpy.Environment()
    ends: dict[int, list[float]] = {k: [] for k in range(len(jobs))}
    table = DecodeModel((1.0, 9.0), (base_s + each_s, base_s + 9 * each_s), (0.0, 0.0), max_running=slots)
    engine = WorkerProcess(env, "w", table, slots, 0.0, lambda _, k, tokens, version: ends[k].append(env.now))
    for k, job in enumerate(jobs):
        env.timeout(job.start_s, k).callbacks.append(  # type: ignore[union-attr]
            lambda event: engine.start(event.value, [float(t) for t in jobs[event.value].tokens])
        )
    env.run()
    for k, times in enumerate(ours):
        assert times.tolist() == pytest.approx(sorted(ends[k]), rel=1e-6, abs=1e-6)


def test_rate_and_delay_are_found_again() -> None:
    """From groups of different lengths the fit finds the engine and the delay they were made with."""
    rng = np.random.default_rng(0)
    starts = np.sort(rng.uniform(0, 30, 60))
    jobs = [Job(float(at), tuple(sorted(rng.integers(5, 60, 4).tolist())), ()) for at in starts]
    answer_s = ANSWER_SHARE * 0.055
    order_s = sum(parts_of(0.055, answer_s))
    ended = replay(Work(jobs), 8, 0.010, 0.002, order_s, whole_steps=True)
    made = counted(ended, 0.055 - order_s, answer_s)
    seen = [Job(j.start_s, j.tokens, tuple(m.tolist())) for j, m in zip(jobs, made)]
    fit = fit_engines([Alike(("w",), (Work(seen),), 8)])["w"]
    assert fit.order_s + fit.report_s == pytest.approx(0.055)
    assert fit.step_s(8) == pytest.approx(0.026, rel=0.03)
    assert fit.step_s(1) == pytest.approx(0.012, rel=0.15)


def test_uploads_go_one_at_a_time_in_a_fit() -> None:
    """What ends while an upload is unanswered is counted with the next one."""
    ends = [np.array([1.0, 1.2]), np.array([1.1, 2.0])]
    told = counted(ends, 0.3, 0.5)
    assert told[0].tolist() == pytest.approx([1.301, 1.801])
    assert told[1].tolist() == pytest.approx([1.801, 2.301])


def test_a_sequence_begins_with_a_whole_step() -> None:
    """What comes within a decode step begins at its end; a simulated engine has no steps."""
    jobs = [Job(0.0, (4,), ()), Job(0.15, (2,), ())]
    whole = replay(Work(jobs), 4, 0.1, 0.0, 0.0, whole_steps=True)
    assert [one.tolist() for one in whole] == [pytest.approx([0.4]), pytest.approx([0.4])]
    at_once = replay(Work(jobs), 4, 0.1, 0.0, 0.0)
    assert at_once[1].tolist() == pytest.approx([0.35])


def test_a_known_rate_is_not_fitted() -> None:
    """Workers that sleep by a profile keep it; only the delay is looked for."""
    jobs = [Job(float(k), (10, 10), (k + 0.02 * 10 + 0.1, k + 0.02 * 10 + 0.1)) for k in range(20)]
    fit = fit_engines([Alike(("a", "b"), (Work(jobs), Work(jobs)), 4, 100.0)])
    assert fit["a"] is fit["b"]
    assert fit["a"].per_sequence_s == 0.01
    assert fit["a"].order_s + fit["a"].report_s == pytest.approx(0.1)


def test_too_little_work_is_no_fit() -> None:
    """A worker with a handful of groups is left out."""
    jobs = [Job(float(k), (5,), (k + 0.5,)) for k in range(3)]
    assert fit_engines([Alike(("w",), (Work(jobs),), 4)]) == {}


def test_steps_are_drawn_by_their_kind() -> None:
    """A step that writes a checkpoint takes what such steps took, every other what plain ones took."""
    kinds = StepKinds(publish_period=2, checkpoint_every=10, total_steps=40)
    seen = [SeenStep(v, 5.0 if v % 10 == 0 else 1.0 + (v % 2 == 0), 100) for v in range(1, 31)]
    model, rng = fit_steps(seen, kinds), np.random.default_rng(0)
    assert {round(model.draw(v, 100.0, rng), 6) for v in (31, 33, 35)} == {1.0}
    assert {round(model.draw(v, 100.0, rng), 6) for v in (32, 34, 36)} == {2.0}
    assert round(model.draw(30, 100.0, rng), 6) == 5.0
    assert round(model.draw(40, 100.0, rng), 6) == 5.0


def test_steps_are_slower_while_a_snapshot_spreads_if_they_were() -> None:
    """A step begun while a snapshot spreads takes what such steps took; the mean is over both."""
    kinds = StepKinds(publish_period=4, checkpoint_every=100, total_steps=40)
    seen = [SeenStep(v, 2.0 if v % 4 == 1 else 1.0, 100, spreading=v % 4 == 1) for v in range(3, 31)]
    model, rng = fit_steps(seen, kinds), np.random.default_rng(0)
    assert {round(model.draw(v, 100.0, rng, True), 6) for v in range(31, 36)} == {2.0}
    assert {round(model.draw(v, 100.0, rng), 6) for v in range(31, 36)} == {1.0}
    assert model.mean_s == pytest.approx(np.mean([step.train_s for step in seen[2:]]))


def test_longer_batches_take_longer_where_length_explains_it() -> None:
    """Step times in proportion to the tokens are drawn in proportion to the tokens."""
    kinds = StepKinds(1, 100, 200)
    seen = [SeenStep(v, 0.001 * (1000 + 10 * (v % 7)), 1000 + 10 * (v % 7)) for v in range(1, 40)]
    model = fit_steps(seen, kinds)
    assert model.draw(50, 2000.0, np.random.default_rng(0)) == pytest.approx(2.0, rel=0.02)


def test_errors_are_signed_and_distances_are_not() -> None:
    """A simulation that is too fast has a positive error; equal histograms are at distance 0."""
    assert error("steps_per_s", 2.0, 2.5) == pytest.approx(0.25)
    assert error("learner_utilisation", 0.5, 0.4) == pytest.approx(-0.1)
    assert error("tail_p50_s", None, 1.0) is None
    assert error("steps_per_s", 0.0, 1.0) is None
    a, b = Measures(staleness=Counter({0: 5, 1: 5})), Measures(staleness=Counter({1: 5, 2: 5}))
    assert distances([a], [a]) == {"staleness_tv": 0.0, "staleness_w1": 0.0}
    assert distances([a], [b]) == {"staleness_tv": 0.5, "staleness_w1": 1.0}
    with pytest.raises(ValueError, match="without a finished step"):
        figures([Measures()])


def test_pauses_are_read_from_workers_logs(tmp_path: Path) -> None:
    """The pause of each swap is taken from the worker's own log."""
    log = tmp_path / "workers" / "w-0" / "worker.log"
    log.parent.mkdir(parents=True)
    line = "21:10:26 I version 3 live: transfer 0.61 s, check 0.01 s, pause 0.250 s\n"
    log.write_text("21:10:24 I joined run x as w-0\n" + line, encoding="utf-8")
    assert json.loads(json.dumps(swaps_of(tmp_path))) == {"w-0": {"3": 0.25}}
    assert isinstance(f.RunStarted(0.0), f.RunStarted)
