"""What most commands begin with: read the configuration, build the scenario, plan the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import InfeasibleError, UserError

if TYPE_CHECKING:
    from echo2.config import LoadedConfig
    from echo2.policy.plan_types import RunPlan
    from echo2.scenario import Scenario


def configuration(path: Path, sets: Sequence[str] | None, seed: int | None = None) -> LoadedConfig:
    """The checked configuration with its overrides."""
    from echo2.config import load

    overrides = list(sets or ())
    return load(path, overrides if seed is None else [*overrides, f"seed={seed}"])


def print_resolved(loaded: LoadedConfig) -> None:
    """What `--dry-run` prints: the configuration with its defaults filled in, after all look-ups."""
    from echo2.config import dumps

    scenario(loaded)
    sys.stdout.write(dumps(loaded.config))


def scenario(loaded: LoadedConfig) -> Scenario:
    """The scenario of a configuration; a mistake is blamed on the option or the file that made it."""
    from echo2.scenario import build

    try:
        return build(loaded.config, loaded.base_dir)
    except InfeasibleError:
        raise
    except UserError as error:
        raise UserError(loaded.blame(str(error))) from None


def plan_anyhow(built: Scenario) -> tuple[RunPlan, str]:
    """The plan; where S cannot keep the learner busy, the best that can be done, and what is the matter."""
    from echo2.policy.planner import plan_run

    try:
        return plan_run(built.problem), ""
    except InfeasibleError as error:
        return plan_run(replace(built.problem, best_effort=True)), str(error)
