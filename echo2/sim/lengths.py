"""Rollout lengths, drawn from the length population per prompt.

The rollouts of prompt `p`, attempt `a` have the same lengths whatever the policy, the number of workers or
the order of events: two policies compared on one seed see the same work.
"""

from __future__ import annotations

import numpy as np

from echo2.policy.generation import TokenLengths

BLOCK = 256


class LengthSource:
    """Lengths of a group's rollouts by prompt ordinal and attempt."""

    def __init__(self, lengths: TokenLengths, group_size: int, seed: int) -> None:
        self._lengths = lengths
        self._group = group_size
        self._seed = seed
        self._blocks: dict[int, list[list[float]]] = {}

    def of(self, prompt: int, attempt: int) -> list[float]:
        """`group_size` lengths in tokens."""
        if attempt:
            rng = np.random.default_rng((self._seed, 1, prompt, attempt))
            return [float(x) for x in self._lengths.sample(rng, self._group)]
        block, row = divmod(prompt, BLOCK)
        rows = self._blocks.get(block)
        if rows is None:
            rng = np.random.default_rng((self._seed, 0, block))
            draws = self._lengths.sample(rng, BLOCK * self._group)
            rows = self._blocks[block] = draws.reshape(BLOCK, self._group).tolist()
        return rows[row]
