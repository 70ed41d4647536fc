"""What a task is: prompts with stable ordinals, and a verifier that turns a completion into a reward.

Written by whoever adds a task (one file, registered by entry point), read by the driver, the evaluation and
`verify`. The scheduler counts prompts 0, 1, 2, ... for as long as it runs; a task answers each ordinal with
the same prompt every time, on every machine, and says `DataExhausted` when there are no more.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from echo2.errors import UserError

SPLITS = ("train", "heldout")
HELDOUT_SHARE = 0.1
TRIES = 10_000


class DataExhausted(Exception):  # noqa: N818 - an end, not an error
    """The data set has no prompt of this ordinal: a clear end of the run. `size` prompts are all it has."""

    def __init__(self, task: str, ordinal: int, size: int) -> None:
        super().__init__(f"task {task} has {size} prompts, ordinals 0 to {size - 1}; {ordinal} was asked for")
        self.task, self.ordinal, self.size = task, ordinal, size


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem. `text` opens the episode, `truth` is what the verifier needs, `system` an instruction.

    `truth` is JSON-ready, for the verifier may run in another process.
    """

    ordinal: int
    text: str
    truth: object = None
    system: str = ""


class Episode(Protocol):
    """One play of a prompt. `turn` is told each completion and answers with the environment's next text.

    None ends the episode; then `reward` is due. A single-turn task ends with its first completion. The same
    prompt and completions give the same answers and the same reward, always and everywhere: the worker
    plays beside its engine, and the learner plays the episode again before it believes a word of it.
    """

    @property
    def first(self) -> Prompt:
        """What the model sees first."""
        ...

    def turn(self, completion: str) -> str | None:
        """The environment's answer to a completion, or None: the episode is over."""
        ...

    def reward(self) -> float:
        """The episode's reward, finished or cut short for want of room in the context."""
        ...


@runtime_checkable
class Task(Protocol):
    """A data-plane adapter. `size` is None when the prompts never end.

    `isolated` verifiers run in a process of their own that is killed at `deadline_s` seconds. One that is
    not must be plain string work that cannot hang, for it runs inside the learner's host process.
    """

    name: str
    isolated: bool
    deadline_s: float

    @property
    def size(self) -> int | None:
        """Prompts in all, None for endless."""
        ...

    def prompt(self, ordinal: int) -> Prompt:
        """The prompt of an ordinal. Raises DataExhausted beyond the last one."""
        ...

    def reward(self, prompt: Prompt, completion: str) -> float:
        """The reward of one completion (the text after the prompt): finite, by convention 0 to 1."""
        ...

    def episode(self, prompt: Prompt) -> Episode:
        """A new play of a prompt."""
        ...


class SingleTurnEpisode:
    """The play of a task without turns: one completion, then the verifier."""

    def __init__(self, task: Task, prompt: Prompt) -> None:
        self._task, self._prompt = task, prompt
        self._completion: str | None = None

    @property
    def first(self) -> Prompt:
        """What the model sees."""
        return self._prompt

    def turn(self, completion: str) -> str | None:
        """Take the one completion; there is no second turn."""
        if self._completion is not None:
            raise ValueError(f"task {self._task.name}: the episode of prompt {self._prompt.ordinal} is over")
        self._completion = completion
        return None

    def reward(self) -> float:
        """The verifier's reward of the completion."""
        if self._completion is None:
            raise ValueError(f"task {self._task.name}: prompt {self._prompt.ordinal} has no completion yet")
        return self._task.reward(self._prompt, self._completion)


class SingleTurn:
    """What single-turn tasks share: the episode, and defaults on the safe side."""

    name = ""
    isolated = True
    deadline_s = 5.0

    def episode(self, prompt: Prompt) -> Episode:
        """A new play of a prompt."""
        return SingleTurnEpisode(self, prompt)  # type: ignore[arg-type]


class SeveralTurns:
    """What tasks of several turns share: a task of this kind has `turns` above 1 and an `episode` of its own.

    `turns` bounds the completions of an episode, `turn_tokens` the tokens of one. An episode that needs more
    room than rollout.max_tokens is cut short after a turn of the model.
    """

    name = ""
    isolated = True
    deadline_s = 5.0
    turns = 1
    turn_tokens = 1

    def episode(self, prompt: Prompt) -> Episode:
        """A new play of a prompt."""
        raise NotImplementedError

    def reward(self, prompt: Prompt, completion: str) -> float:
        """The reward of an episode of one turn."""
        episode = self.episode(prompt)
        episode.turn(completion)
        return episode.reward()


def turns_of(task: Task) -> int:
    """The most completions an episode of the task has; 1 for single-turn tasks."""
    return int(getattr(task, "turns", 1))


def turn_tokens_of(task: Task) -> int:
    """The most tokens of one turn of the model in a task of several. Raises UserError below 1."""
    tokens = int(getattr(task, "turn_tokens", 0))
    if tokens < 1:
        raise UserError(
            f"task {task.name}: turn_tokens is {tokens}; a task of several turns needs at least 1"
        )
    return tokens


# ---- ordinals, splits and seeds, for those who write tasks ----------------------------------------------


def check_split(split: str) -> None:
    """Refuse an unknown split."""
    if split not in SPLITS:
        raise UserError(f"split is {split!r}; choose one of {', '.join(SPLITS)}")


def in_split(text: str, split: str, share: float = HELDOUT_SHARE) -> bool:
    """Whether a problem belongs to a split: by a hash of its text, so no problem is ever in both (ours).

    The hash holds out `share` of all *different* problems, whatever ordinal, seed or file they come from.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    held_out = int.from_bytes(digest, "big") < share * 2**64
    return held_out == (split == "heldout")


def ordinal_rng(task: str, seed: int, ordinal: int) -> random.Random:
    """A random source that depends on task, seed and ordinal alone: the same on every machine."""
    return random.Random(f"{task}:{seed}:{ordinal}")


class EpochOrder:
    """A finite data set read `epochs` times, each in another order fixed by `seed` (None: as filed)."""

    def __init__(self, task: str, rows: int, epochs: int, seed: int | None) -> None:
        if epochs < 1:
            raise UserError(f"task {task}: epochs is {epochs}; it must be at least 1")
        if rows < 1:
            raise UserError(f"task {task}: the data set has no rows for this split; check the file and split")
        self._task, self._rows, self._seed = task, rows, seed
        self.size = rows * epochs
        self._epoch = -1
        self._order: list[int] = []

    def row(self, ordinal: int) -> int:
        """The row of an ordinal. Raises DataExhausted beyond the last epoch."""
        if not 0 <= ordinal < self.size:
            raise DataExhausted(self._task, ordinal, self.size)
        epoch, place = divmod(ordinal, self._rows)
        if epoch != self._epoch:
            self._order = list(range(self._rows))
            if self._seed is not None:
                ordinal_rng(self._task, self._seed, epoch).shuffle(self._order)
            self._epoch = epoch
        return self._order[place]
