"""`validate(run) -> Validation`: calibrate on the first part of a live run, simulate the rest, compare.

Called by `echo2 validate` and by experiments/fidelity.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from echo2.config import Config, load
from echo2.errors import InfeasibleError, UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.planner import plan_run, settings_for
from echo2.policy.settings import SchedulerSettings
from echo2.scenario import Scenario, build
from echo2.validate.calibrate import LEAST_STEPS, Calibration, calibrate
from echo2.validate.closed_form import planned
from echo2.validate.compare import FIGURES, distances, error, figures
from echo2.validate.inputs import Matched, check_inputs
from echo2.validate.measure import Measures, measure
from echo2.validate.recorded import Recorded, read
from echo2.validate.tuning import tuned
from echo2.validate.world import CalibratedWorld

SHARE = 0.4
LEAST_REST = 12
PATIENCE = 20.0
FIRST_PART, TUNED_ON = 1000, 3
"""Seeds of the simulations that delays are tuned on: others than those that foretell."""


@dataclass(frozen=True)
class Row:
    """A metric in three columns; errors are signed, None where there is nothing to compare.

    `given_error`: of a simulation that is given the live step times, so that it shows what is left when the
    machine's own drift is taken out. Not a forecast.
    """

    metric: str
    text: str
    unit: str
    headline: bool
    live: float | None
    simulated: float | None
    planned: float | None
    error: float | None
    plan_error: float | None
    given_error: float | None


@dataclass(frozen=True)
class Validation:
    """How far the simulation of steps `first` to `last` is from the live run. `warnings`: what to doubt."""

    name: str
    path: str
    first: int
    last: int
    seeds: int
    inputs: tuple[Matched, ...]
    calibrated: dict[str, Any]
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def validate(path: Path, share: float = SHARE, seeds: int = 5, model: Path | None = None) -> Validation:
    """Validate a recorded run. Inputs that do not match and runs too short: UserError saying which."""
    run = read(path)
    config = load(run.config)
    built = build(config.config, config.base_dir)
    settings = _settings(built)
    matched = check_inputs(run, built, settings, model or _model_of(run, config.config))
    cut, last = span(run, share)
    calibration = calibrate(run.entries, run.settings, config.config, cut, run.pauses_s)
    calibration = tuned(
        calibration,
        run.entries,
        lambda trial: [_world(run, built, trial, FIRST_PART + seed, cut).entries for seed in range(TUNED_ON)],
    )
    live = measure(run.entries, run.settings, cut, last)
    steps_s = {fact.version: fact.train_s for fact, _ in run.entries if isinstance(fact, f.StepFinished)}
    simulated, given = (
        [measure(_world(run, built, c, seed, last).entries, run.settings, cut, last) for seed in range(seeds)]
        for c in (calibration, replace(calibration, known_s=steps_s))
    )
    active = _active(run, calibration)
    plan = planned(built.problem, run.settings, calibration, active)
    return Validation(
        name=config.config.name,
        path=str(path),
        first=cut + 1,
        last=last,
        seeds=seeds,
        inputs=tuple(matched),
        calibrated=_summary(calibration),
        rows=tuple(_rows(live, simulated, given, plan)),
        warnings=tuple(_warnings(run, live)),
    )


def _settings(built: Scenario) -> SchedulerSettings:
    """The scheduler's settings that `echo2 train` would use."""
    try:
        return settings_for(built.problem, plan_run(built.problem))
    except InfeasibleError as error:
        raise UserError(f"the run's configuration cannot be planned any more: {error}") from None


def _model_of(run: Recorded, config: Config) -> Path | None:
    """The model directory: where the configuration's path leads from the run, a folder above it, or here."""
    if config.train.model is None:
        return None
    name = Path(config.train.model)
    inner = Path(*(part for part in name.parts if part != "..")) if not name.is_absolute() else name
    places = [run.path / name, Path.cwd() / name, *(above / inner for above in run.path.resolve().parents)]
    return next((place for place in places if place.is_dir()), None)


def span(run: Recorded, share: float) -> tuple[int, int]:
    """(steps to calibrate from, last step). A run too short for both parts is refused.

    The share is of the steps after all workers that were started at the beginning had come up, as far as
    they came in the first half: an engine that loads for long says nothing before.
    """
    steps = [fact.version for fact, _ in run.entries if isinstance(fact, f.StepFinished)]
    if steps and steps[0] != 1:
        raise UserError(f"{run.path}: its log begins at step {steps[0]}; only a first life can be simulated")
    last, begun = len(steps), _begun(run, len(steps) // 2)
    cut = begun + round(share * (last - begun))
    if cut - begun < LEAST_STEPS or last - cut < LEAST_REST:
        need = begun + max(round(LEAST_STEPS / share) + 1, round(LEAST_REST / (1 - share)) + 1)
        before = f" after the first {begun}, in which workers came up" if begun else ""
        raise UserError(
            f"{run.path}: {last} steps are too few: {cut - begun} to calibrate from (at least {LEAST_STEPS}) "
            f"and {last - cut} to foretell (at least {LEAST_REST}){before}; record {need} steps or more"
        )
    return cut, last


def _begun(run: Recorded, most: int) -> int:
    """Steps finished when the last of the workers started at the beginning came up, up to `most`."""
    awaited: set[str] = set()
    version = begun = 0
    for fact, answers in run.entries:
        if isinstance(fact, f.StepFinished):
            version = fact.version
        elif isinstance(fact, f.WorkerJoined) and fact.worker_id in awaited and version <= most:
            awaited.discard(fact.worker_id)
            begun = version
        if version == 0:
            awaited |= {answer.worker_id for answer in answers if isinstance(answer, d.StartWorker)}
    return begun


def _world(
    run: Recorded, built: Scenario, calibration: Calibration, seed: int, steps: int
) -> CalibratedWorld:
    """A simulation of the run's first `steps` steps, done."""
    offers = {
        fact.offer.worker_id: fact.offer for fact, _ in run.entries if isinstance(fact, f.WorkerOffered)
    }
    inputs = built.world(run.settings)
    there = [worker for worker in inputs.workers if worker.offer.worker_id in offers]
    workers = tuple(replace(worker, offer=offers[worker.offer.worker_id]) for worker in there)
    world = CalibratedWorld(replace(inputs, settings=run.settings, workers=workers), calibration, seed, steps)
    world.run(PATIENCE * run.entries[-1][0].t_s + 60.0)
    if (done := len(world.metrics.train_s)) < steps:
        raise UserError(
            f"{run.path}: the simulation waits for {world.scheduler.waiting_for()} after {done} of {steps} "
            f"steps, {PATIENCE:g} times as long as the live run; calibrate from more steps with --calibrate"
        )
    return world


def _active(run: Recorded, calibration: Calibration) -> set[str]:
    """The workers that were up when the first part ended."""
    up: set[str] = set()
    for fact, _ in run.entries:
        if fact.t_s > calibration.until_s:
            break
        if isinstance(fact, f.WorkerJoined):
            up.add(fact.worker_id)
        elif isinstance(fact, f.WorkerLeft):
            up.discard(fact.worker_id)
    return up


def _rows(
    live: Measures, simulated: list[Measures], given: list[Measures], plan: dict[str, float | None]
) -> list[Row]:
    real, ours, told = figures([live]), figures(simulated), figures(given)
    apart, told_apart = distances([live], simulated), distances([live], given)
    rows = []
    for figure in FIGURES:
        name = figure.name
        said, was, by_plan = ours[name], real[name], plan.get(name)
        wrong = apart.get(name, error(name, was, said))
        rows.append(
            Row(
                metric=name,
                text=figure.text,
                unit=figure.unit,
                headline=figure.headline,
                live=None if name in apart else was,
                simulated=None if name in apart else said,
                planned=by_plan,
                error=wrong,
                plan_error=error(name, was, by_plan),
                given_error=told_apart.get(name, error(name, was, told[name])),
            )
        )
    return rows


def _summary(calibration: Calibration) -> dict[str, Any]:
    """The calibrated numbers, for people and machines."""
    tokens = [t for group in calibration.groups for t in group]
    delays = calibration.delays
    return {
        "steps": calibration.steps,
        "train_s": calibration.learner.mean_s,
        "train_cv": calibration.learner.cv,
        "train_s_per_token": calibration.learner.per_token_s,
        "groups": len(calibration.groups),
        "delay_s": 3 * delays.write_s + 2 * sum(delays.hop_s.values()) / len(delays.hop_s),
        "write_s": delays.write_s,
        "payload_bytes": sum(calibration.payloads) / len(calibration.payloads),
        "tokens_mean": sum(tokens) / max(1, len(tokens)),
        "workers": {
            name: {
                "step_s_of_one": model.engine.step_s(1),
                "step_s_per_sequence": model.engine.per_sequence_s,
                "hop_s": delays.hop_s[name],
                "fit_error_s": model.engine.error_s,
                "startup_s": model.startup_s,
                "spread_s": sum(model.spread_s.values()) / len(model.spread_s),
                "pause_s": model.pause_s,
            }
            for name, model in calibration.workers.items()
        },
    }


def _warnings(run: Recorded, live: Measures) -> list[str]:
    said = []
    if run.lives > 1:
        said.append(f"the run was resumed: only the first of its {run.lives} lives is validated")
    if live.steps < 100:
        said.append(f"p99 of {live.steps} step times is little more than their maximum")
    if any(isinstance(fact, f.WorkerLeft) and fact.cause != "stopped" for fact, _ in run.entries):
        said.append("workers were lost in the live run; the simulation loses none")
    return said
