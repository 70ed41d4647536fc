"""Noise: the reward is a coin, drawn from the completion's text. For load tests: nothing is to be learnt.

Groups have variance, so the learner works as hard as on a real task, whatever the engine makes up.
"""

from __future__ import annotations

import hashlib

from echo2.runtime.data.task import Prompt, SingleTurn, ordinal_rng


class Noise(SingleTurn):
    """Endless prompts of `digits` digits; reward 0 or 1 by a hash of prompt and completion."""

    name = "noise"
    isolated = False
    size = None

    def __init__(self, seed: int = 0, digits: int = 6) -> None:
        self._seed, self._digits = seed, digits

    def prompt(self, ordinal: int) -> Prompt:
        """Digits and a `>`."""
        rng = ordinal_rng(self.name, self._seed, ordinal)
        return Prompt(ordinal, "".join(rng.choice("0123456789") for _ in range(self._digits)) + ">")

    def reward(self, prompt: Prompt, completion: str) -> float:
        """A coin that falls the same way for the same text."""
        return float(hashlib.sha256(f"{prompt.text}{completion}".encode()).digest()[0] & 1)
