"""Runs the figures rest on: a shipped experiment with some keys changed, planned and simulated.

Called by the figure scripts of this folder. A run depends on the configuration, the seed and the code alone,
so none is done twice: within a figure, and among all figures that one `echo2 figures` draws.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from echo2 import config, scenario
from echo2.cli.figures import SHARED
from echo2.policy.plan_types import PlanProblem, RunPlan
from echo2.policy.planner import settings_for, settle_run
from echo2.policy.settings import SchedulerSettings
from echo2.sim.run import simulate

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
_made: dict[str, Any] = {}


@dataclass(frozen=True)
class Outcome:
    """A plan, the settings made of it, and its simulation: the summary, and each step's seconds and end."""

    plan: RunPlan
    settings: SchedulerSettings
    summary: dict[str, Any]
    train_s: tuple[float, ...]
    step_end_s: tuple[float, ...]

    def utilisation(self, after: int) -> float:
        """Training share of the time after so many steps."""
        return sum(self.train_s[after:]) / (self.step_end_s[-1] - self.step_end_s[after - 1])


def outcome(experiment: str, sets: Sequence[str] = (), seed: int = 1, preempted: bool = True) -> Outcome:
    """Plan `experiments/NAME.toml` with overrides like `run.staleness=3`, and simulate it with a seed.

    Where the staleness bound is too small to keep the learner busy, the best that can be done with it.
    `preempted` False leaves out the pools' availability traces.
    """
    wanted, base_dir = _wanted(experiment, [*sets, f"seed={seed}"])
    if not preempted:
        pools = tuple(pool.model_copy(update={"availability": None}) for pool in wanted.pool)
        wanted = wanted.model_copy(update={"pool": pools})
    key = f"{base_dir}\n{config.dumps(wanted)}".encode()
    return cast(Outcome, once(key, lambda: _simulated(wanted, base_dir, seed)))


def plan_of(experiment: str, sets: Sequence[str] = ()) -> RunPlan:
    """The plan alone, not simulated."""
    return planned(scenario.build(*_wanted(experiment, sets)).problem)


def _wanted(experiment: str, sets: Sequence[str]) -> tuple[config.Config, Path]:
    loaded = config.load(EXPERIMENTS / f"{experiment}.toml", sets)
    return loaded.config, loaded.base_dir


def planned(problem: PlanProblem) -> RunPlan:
    """The plan of a problem, best effort. Seeds do not enter it, so those of one setting share it."""
    wanted = replace(problem, best_effort=True)
    return cast(RunPlan, once(pickle.dumps(wanted), lambda: settle_run(wanted)[0]))


def _simulated(wanted: config.Config, base_dir: Path, seed: int) -> Outcome:
    built = scenario.build(wanted, base_dir)
    plan = planned(built.problem)
    settings = settings_for(built.problem, plan)
    result = simulate(built.world(settings), seed)
    metrics = result.world.metrics
    return Outcome(plan, settings, result.summary(), tuple(metrics.train_s), tuple(metrics.step_end_s))


def once(key: bytes, make: Callable[[], Any]) -> Any:
    """What `make` gives: made once by this process, and once by all that share a folder for such results."""
    name = hashlib.sha256(key).hexdigest()
    if name not in _made:
        folder = os.environ.get(SHARED)
        place = Path(folder) / name if folder else None
        if place is not None and place.is_file():
            _made[name] = pickle.loads(place.read_bytes())
        else:
            _made[name] = make()
            if place is not None:
                _put(place, _made[name])
    return _made[name]


def _put(place: Path, made: Any) -> None:
    """Whole or not at all: another process may look for it."""
    part = place.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(made))
    part.replace(place)


def mean(outcomes: Sequence[Outcome], name: str) -> float:
    """Mean over runs of a number of the summary."""
    return sum(float(one.summary[name]) for one in outcomes) / len(outcomes)
