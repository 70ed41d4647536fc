"""What must be alike for runs to be compared at all: the learner step that is paid for is the same one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echo2.errors import UserError
from echo2.study.results import Run

# A step of another batch, model or length is another step, and in a shorter run start-up weighs more.
WORKLOAD = (
    "model.name",
    "model.snapshot_gb",
    "batch.rollouts_per_step",
    "batch.group_size",
    "rollout.lengths",
    "rollout.tokens",
    "rollout.max_tokens",
    "rollout.prompt_tokens",
    "run.steps",
)
LIVE_TOO = ("train.task", "train.model")
FIXES = {
    "world": "one is simulated, the other live: `echo2 validate RUN` holds a live run against its simulation",
    "version": "they are results of different code: run both again with one version",
}


def check_comparable(runs: Sequence[Run], what: str, despite: Sequence[str] = ()) -> None:
    """Refuse runs of different workloads: UserError with the key and its values. `despite`: accepted keys."""
    known = ("world", "version", *WORKLOAD, *LIVE_TOO)
    for key in despite:
        if key not in known:
            raise UserError(f"--despite {key}: must be one of {', '.join(known)}")
    for key in known:
        if key in despite or (key in LIVE_TOO and not all(run.world == "live" for run in runs)):
            continue
        values = {_shown(value): run for run in runs if (value := _value(run, key)) != ""}
        if len(values) > 1:
            pair = " and ".join(list(values)[:2])
            fix = FIXES.get(key, f"give runs that share it, or accept it with --despite {key}")
            raise UserError(f"{what}: cannot be compared: {key} differs ({pair}); {fix}")


def _value(run: Run, key: str) -> Any:
    """Empty where a run does not say."""
    if key == "world":
        return run.world
    return run.version if key == "version" else run.config.get(key, None)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
