"""Any dataset of the reasoning-gym package by name: `reasoning_gym:leg_counting`. Endless, made as asked."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.task import (
    HELDOUT_SHARE,
    Prompt,
    SingleTurn,
    check_split,
    in_split,
)
from echo2.traces.nearest import unknown

INSTRUCTION = "Think it through, then give the final answer alone between <answer> and </answer>."
# Datasets make item i from seed + i. Tries for one ordinal lie this far apart, beyond any run's ordinals.
STRIDE = 2**32
TRIES = 1000


class ReasoningGym(SingleTurn):
    """Prompts and the verifier of one reasoning-gym dataset; rewards as the dataset scores them, 0 to 1.

    `options` go to the dataset (its own difficulty settings). The answer is what stands between the last
    <answer> tags, or the whole completion where there are none.
    """

    deadline_s = 10.0
    size = None

    def __init__(
        self,
        dataset: str,
        seed: int = 0,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        instruction: str = INSTRUCTION,
        options: dict[str, Any] | None = None,
    ) -> None:
        check_split(split)
        self.name = f"reasoning_gym:{dataset}"
        self._dataset_name, self._seed, self._options = dataset, seed, dict(options or {})
        self._split, self._share, self._instruction = split, heldout_share, instruction
        # Now rather than at the first prompt: an unknown name is the user's mistake and cheap to find.
        self._dataset.config.validate()

    def prompt(self, ordinal: int) -> Prompt:
        """The question; the next candidate is taken until one belongs to the split."""
        for attempt in range(TRIES):
            place = ordinal + attempt * STRIDE
            entry = self._dataset[place]
            if in_split(entry["question"], self._split, self._share):
                return Prompt(ordinal, entry["question"], {"place": place}, self._instruction)
        raise UserError(
            f"task {self.name}: no problem of split {self._split!r} in {TRIES} tries; the dataset has too "
            "few different problems, make it harder by its options"
        )

    def reward(self, prompt: Prompt, completion: str) -> float:
        """The dataset's own score of the answer."""
        assert isinstance(prompt.truth, dict)
        extract = importlib.import_module("reasoning_gym.utils").extract_answer
        answer = extract(completion) or completion.strip()
        return float(self._dataset.score_answer(answer, self._dataset[prompt.truth["place"]]))

    @cached_property
    def _dataset(self) -> Any:
        try:
            package = importlib.import_module("reasoning_gym")
            names = importlib.import_module("reasoning_gym.factory").DATASETS
        except ImportError:
            raise UserError(
                f"task {self.name} needs the package reasoning-gym, which is not installed; "
                "pip install reasoning-gym"
            ) from None
        if self._dataset_name not in names:
            raise unknown("reasoning-gym dataset", self._dataset_name, names)
        try:
            return package.create_dataset(self._dataset_name, seed=self._seed, **self._options)
        except (TypeError, AssertionError, ValueError) as error:
            raise UserError(
                f"task {self.name}: options {self._options} are refused ({error}); correct them"
            ) from error
