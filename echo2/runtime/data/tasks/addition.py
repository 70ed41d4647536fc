"""Addition: `37+85=` is to be completed with `122`. For tiny models with a character tokenizer."""

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


class Addition(SingleTurn):
    """Endless sums of two numbers below 10^`digits`; reward 1 for the exact sum, else 0."""

    name = "addition"
    isolated = False
    size = None

    def __init__(
        self, seed: int = 0, digits: int = 2, split: str = "train", heldout_share: float = HELDOUT_SHARE
    ) -> None:
        check_split(split)
        if not 1 <= digits <= 18:
            raise UserError(f"addition: digits is {digits}; it must be 1 to 18")
        self._seed, self._digits = seed, digits
        self._split, self._share = split, heldout_share

    def prompt(self, ordinal: int) -> Prompt:
        """The sum to work out; drawn again until it belongs to the split."""
        rng = ordinal_rng(self.name, self._seed, ordinal)
        for _ in range(TRIES):
            a, b = (rng.randrange(10**self._digits) for _ in range(2))
            if in_split(f"{a}+{b}", self._split, self._share):
                return Prompt(ordinal, f"{a}+{b}=", str(a + b))
        raise UserError(f"addition: split {self._split!r} holds no sum of {self._digits}-digit numbers")

    def reward(self, prompt: Prompt, completion: str) -> float:
        """1 if the completion is the sum, else 0."""
        return float(completion.strip() == prompt.truth)
