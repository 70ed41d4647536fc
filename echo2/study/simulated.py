"""One simulated run of a configuration, in a process of its own or not. Called by `echo2 optimise`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from echo2.config import LoadedConfig
from echo2.policy.planner import settings_for, settle_run
from echo2.scenario import build
from echo2.study.objective import Outcome


def run_one(task: tuple[int, LoadedConfig]) -> tuple[int, Outcome]:
    """(the task's number, what came of it)."""
    from echo2.sim.run import simulate

    number, loaded = task
    built = build(loaded.config, loaded.base_dir)
    made, _ = settle_run(built.problem)
    found = simulate(built.world(settings_for(built.problem, made)), loaded.config.seed).summary()
    return number, outcome_of(found, len(made.chosen))


def outcome_of(summary: dict[str, Any], workers: int) -> Outcome:
    """An outcome from the summary of a simulation."""
    return Outcome(
        usd_per_step=summary["step_cost_usd"],
        steps_per_h=3600 * summary["steps_per_s"],
        wall_h=summary["wall_s"] / 3600,
        utilisation=summary["learner_utilisation"],
        staleness_mean=summary["staleness"]["mean"],
        workers=workers,
        complete=bool(summary["complete"]),
    )


def mean_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Means over seeds; complete when all are."""
    return replace(
        outcomes[0],
        usd_per_step=statistics.fmean(o.usd_per_step for o in outcomes),
        steps_per_h=statistics.fmean(o.steps_per_h for o in outcomes),
        wall_h=statistics.fmean(o.wall_h for o in outcomes),
        utilisation=statistics.fmean(o.utilisation for o in outcomes),
        staleness_mean=statistics.fmean(o.staleness_mean for o in outcomes),
        complete=all(o.complete for o in outcomes),
        seeds=len(outcomes),
    )
