"""Digit sort: `50291>` is to be completed with `01259`. For tiny models with a character tokenizer.

A system test, not a study of sorting: the shipped checkpoint was warm-started on four behaviours of which
this is one, and RL mostly selects it (assets/tiny-sort/README.md).
"""

from __future__ import annotations

from echo2.errors import UserError
from echo2.runtime.data.task import (
    HELDOUT_SHARE,
    TRIES,
    Prompt,
    SingleTurn,
    check_split,
    in_split,
    ordinal_rng,
)


class DigitSort(SingleTurn):
    """Endless prompts of `min_digits` to `max_digits` digits; reward 1 for the exact answer, else 0."""

    name = "digit_sort"
    isolated = False
    size = None

    def __init__(
        self,
        seed: int = 0,
        min_digits: int = 3,
        max_digits: int = 8,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
    ) -> None:
        check_split(split)
        if not 1 <= min_digits <= max_digits <= 64:
            raise UserError(
                f"digit_sort: min_digits {min_digits} and max_digits {max_digits} must satisfy "
                "1 <= min_digits <= max_digits <= 64"
            )
        self._seed, self._digits = seed, (min_digits, max_digits)
        self._split, self._share = split, heldout_share

    def prompt(self, ordinal: int) -> Prompt:
        """The digits to sort; drawn again until they belong to the split."""
        rng = ordinal_rng(self.name, self._seed, ordinal)
        for _ in range(TRIES):
            digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(*self._digits)))
            if in_split(digits, self._split, self._share):
                return Prompt(ordinal, f"{digits}>", "".join(sorted(digits)))
        raise UserError(f"digit_sort: split {self._split!r} holds no problem of {self._digits} digits")

    def reward(self, prompt: Prompt, completion: str) -> float:
        """1 if the completion is the sorted digits, else 0."""
        return float(completion.strip() == prompt.truth)
