"""Finding a task by name. Called by the driver, the evaluation and the judge process.

A new task is one class in one file, named by an entry point of group `echo2.tasks` in its own package:

    [project.entry-points."echo2.tasks"]
    my_task = "my_package.my_task:MyTask"

Then `my_task` works wherever a task is named; nothing in echo2 changes. `name:argument` hands the argument
to the class as its first parameter, where that has no default: `reasoning_gym:leg_counting`,
`math:problems.jsonl`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.task import Task
from echo2.traces.nearest import unknown

GROUP = "echo2.tasks"
BUILT_IN = {
    "digit_sort": "echo2.runtime.data.tasks.digit_sort:DigitSort",
    "addition": "echo2.runtime.data.tasks.addition:Addition",
    "noise": "echo2.runtime.data.tasks.noise:Noise",
    "reasoning_gym": "echo2.runtime.data.tasks.reasoning_gym:ReasoningGym",
    "math": "echo2.runtime.data.tasks.math_jsonl:MathJsonl",
    "poker": "echo2.runtime.data.tasks.poker:Poker",
}


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task by class ("module:Class") and options: enough to make the same task in another process."""

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Task:
        """Make the task. Raises UserError for an unknown option, or a class that is no task."""
        factory = _import(self.factory)
        try:
            inspect.signature(factory).bind(**self.options)
        except TypeError as error:
            raise _bad_options(self, factory, error) from None
        except ValueError:
            raise UserError(f"task {self.factory} is no task but a {factory!r}; name its class") from None
        task = factory(**self.options)
        if not isinstance(task, Task):
            raise UserError(
                f"task {self.factory} lacks a part of a task (name, isolated, deadline_s, size, prompt, "
                "reward, episode); derive it from echo2.runtime.data.task.SingleTurn"
            )
        return task


def known_tasks() -> dict[str, str]:
    """Every task's "module:Class" by name: built in, and from installed packages."""
    return {**{point.name: point.value for point in entry_points(group=GROUP)}, **BUILT_IN}


def task_spec(name: str, options: Mapping[str, Any] | None = None) -> TaskSpec:
    """The spec of a task by name ("name" or "name:argument"). Raises UserError offering the nearest names."""
    base, _, argument = name.partition(":")
    known = known_tasks()
    if base not in known:
        raise unknown("task", base, known, "a package adds its own by an entry point of group echo2.tasks")
    spec = TaskSpec(known[base], dict(options or {}))
    if not argument:
        return spec
    first = next(iter(inspect.signature(_import(spec.factory)).parameters.values()), None)
    if first is None or first.default is not first.empty:
        raise UserError(f"task {base} takes no argument, but {argument!r} was given; write {base!r}")
    return TaskSpec(spec.factory, {first.name: argument, **spec.options})


def load_task(name: str, **options: Any) -> Task:
    """Make a task by name."""
    return task_spec(name, options).load()


def _import(factory: str) -> Any:
    module, _, attribute = factory.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"task {factory} cannot be loaded: {error}; check the entry point and what it needs installed"
        ) from error


def _bad_options(spec: TaskSpec, factory: Any, error: TypeError) -> UserError:
    known = list(inspect.signature(factory).parameters)
    for name in spec.options:
        if name not in known:
            return unknown(f"option of task {spec.factory.rpartition(':')[2]}", name, known)
    return UserError(f"task {spec.factory.rpartition(':')[2]}: {error}; options: {', '.join(known)}")
