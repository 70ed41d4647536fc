"""Addition: `37+85=` is to be completed with `122`. For tiny models; `shots` helps pretrained ones."""

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
    """Endless sums of two numbers below 10^`digits`; reward 1 for the exact sum, else 0.

    `smallest` and `largest` narrow the numbers (0: below 10^`digits`).

    With `shots`, so many worked sums as questions and answers, the same for every prompt, stand before it;
    then the first line of the completion counts, for a model that goes on with questions of its own.
    """

    name = "addition"
    isolated = False
    size = None

    def __init__(
        self,
        seed: int = 0,
        digits: int = 2,
        shots: int = 0,
        smallest: int = 0,
        largest: int = 0,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
    ) -> None:
        check_split(split)
        if not 1 <= digits <= 18:
            raise UserError(f"addition: digits is {digits}; it must be 1 to 18")
        if not 0 <= shots <= 64:
            raise UserError(f"addition: shots is {shots}; it must be 0 to 64")
        self._seed, self._digits = seed, digits
        self._range = (smallest, largest or 10**digits - 1)
        if not 0 <= smallest <= self._range[1] < 10**18:
            raise UserError(
                f"addition: smallest {smallest} and largest {largest} must satisfy 0 <= smallest <= largest"
            )
        rng = ordinal_rng("addition shots", 0, digits)
        pairs = [(rng.randint(*self._range), rng.randint(*self._range)) for _ in range(shots)]
        self._shots = "".join(f"Q: {a} + {b}\nA: {a + b}\n\n" for a, b in pairs)
        self._split, self._share = split, heldout_share

    def prompt(self, ordinal: int) -> Prompt:
        """The sum to work out; drawn again until it belongs to the split."""
        rng = ordinal_rng(self.name, self._seed, ordinal)
        for _ in range(TRIES):
            a, b = (rng.randint(*self._range) for _ in range(2))
            if in_split(f"{a}+{b}", self._split, self._share):
                text = f"{self._shots}Q: {a} + {b}\nA:" if self._shots else f"{a}+{b}="
                return Prompt(ordinal, text, str(a + b))
        raise UserError(f"addition: split {self._split!r} holds no sum of {self._digits}-digit numbers")

    def reward(self, prompt: Prompt, completion: str) -> float:
        """1 if the completion is the sum, else 0."""
        answer = completion.strip()
        if self._shots:
            answer = answer.partition("\n")[0].strip()
        return float(answer == prompt.truth)
