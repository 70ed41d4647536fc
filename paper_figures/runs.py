"""Runs the figures rest on: a shipped experiment with some keys changed, planned and simulated.

Called by the figure scripts of this folder. A run depends on the configuration, the seed and the code alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echo2 import config, scenario
from echo2.policy.plan_types import RunPlan
from echo2.policy.planner import settings_for, settle_run
from echo2.sim.run import SimResult, simulate

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


@dataclass(frozen=True)
class Outcome:
    """A plan and the simulation of it."""

    plan: RunPlan
    result: SimResult
    summary: dict[str, Any]


def outcome(
    experiment: str, sets: Sequence[str] = (), seed: int = 1, keep_log: bool = False, preempted: bool = True
) -> Outcome:
    """Plan `experiments/NAME.toml` with overrides like `run.staleness=3`, and simulate it with a seed.

    Where the staleness bound is too small to keep the learner busy, the best that can be done with it.
    `preempted` False leaves out the pools' availability traces.
    """
    loaded = config.load(EXPERIMENTS / f"{experiment}.toml", [*sets, f"seed={seed}"])
    wanted = loaded.config
    if not preempted:
        pools = tuple(pool.model_copy(update={"availability": None}) for pool in wanted.pool)
        wanted = wanted.model_copy(update={"pool": pools})
    built = scenario.build(wanted, loaded.base_dir)
    plan, _ = settle_run(replace(built.problem, best_effort=True))
    result = simulate(built.world(settings_for(built.problem, plan)), seed, keep_log=keep_log)
    return Outcome(plan, result, result.summary())


def mean(outcomes: Sequence[Outcome], name: str) -> float:
    """Mean over runs of a number of the summary."""
    return sum(float(one.summary[name]) for one in outcomes) / len(outcomes)
