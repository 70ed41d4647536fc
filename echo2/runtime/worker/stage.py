"""Where a worker plays tasks of several turns: the run's task and tokenizer, loaded when first needed.

Called by the groups. The learner names a task that is registered here; no code comes from it. It plays every
episode again, so what happens here decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.registry import task_spec
from echo2.runtime.data.task import Prompt, Task, turns_of
from echo2.runtime.data.turns import TurnRules
from echo2.runtime.data.verify import Verifier
from echo2.runtime.rollout.engine import Engine
from echo2.runtime.rollout.multi_turn import MultiTurn
from echo2.runtime.transport import messages as m


@dataclass(frozen=True, slots=True)
class _Loaded:
    verifier: Verifier
    tokenizer: Any


class Stage:
    """The last task played, kept: a run has one."""

    def __init__(self) -> None:
        self._loading = asyncio.Lock()
        self._play: m.Play | None = None
        self._loaded: _Loaded | None = None

    async def on(self, engine: Engine, order: m.Generate, model: Path) -> MultiTurn:
        """The engine with the environment of an order's task around it. Raises UserError without the task."""
        assert order.play is not None
        play = order.play
        async with self._loading:
            if self._loaded is None or self._play != play:
                self._leave()
                self._loaded = await asyncio.to_thread(_load, play, model)
                self._play = play
            loaded = self._loaded
        prompt = await asyncio.to_thread(_prompt, loaded.verifier.task, order.prompt)
        rules = TurnRules(
            loaded.tokenizer,
            play.template,
            frozenset(order.stop_token_ids),
            play.turn_tokens,
            order.max_tokens,
        )
        turns = turns_of(loaded.verifier.task)
        return MultiTurn(engine, rules, turns, partial(loaded.verifier.environment, prompt))

    def _leave(self) -> None:
        if self._loaded is not None:
            self._loaded.verifier.close()
        self._loaded = None


def _load(play: m.Play, model: Path) -> _Loaded:
    try:
        options = json.loads(play.options)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise UserError(
            f"options of task {play.task!r} are {play.options[:60]!r}; they must be a JSON object"
        )
    verifier = Verifier(task_spec(play.task, options))
    if turns_of(verifier.task) < 2:
        raise UserError(f"task {play.task!r} has single turns here; install the learner's version of it")
    return _Loaded(verifier, _tokenizer(model))


def _prompt(task: Task, ordinal: int) -> Prompt:
    """The prompt of an ordinal; whatever is wrong with it here is the group's failure, not the engine's."""
    try:
        return task.prompt(ordinal)
    except Exception as error:
        raise UserError(
            f"task {task.name}: prompt {ordinal} cannot be made here ({type(error).__name__}: {error}); "
            "install the learner's version of the task and its data"
        ) from error


def _tokenizer(model: Path) -> Any:
    """The tokenizer of a snapshot. Where that one is gone, a later one beside it has the same files."""
    from transformers import AutoTokenizer

    places = [model, *sorted(model.parent.glob("version-*"), reverse=True)]
    there = [place for place in places if (place / "config.json").is_file()]
    try:
        return AutoTokenizer.from_pretrained(there[0] if there else model, local_files_only=True)
    except Exception as error:  # the tokenizers library raises nothing more special
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the tokenizer of the snapshot at {model} cannot be loaded ({reason}); several turns need it"
        ) from error
