"""The distribution rollouts are drawn from, shared by engines and learner. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echo2.errors import UserError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature, then top-k, then top-p: the order of vLLM and of Hugging Face `generate`.

    `top_k` 0 and `top_p` 1 switch the truncation off. Raises UserError for values that define no
    distribution; temperature 0 (greedy) has none, so its log-probs could not be trained on.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UserError(
                f"sampling temperature is {self.temperature}; it must be above 0 to train on what was "
                "sampled, set it to 1 if in doubt"
            )
        if self.top_k < 0:
            raise UserError(f"sampling top_k is {self.top_k}; use 0 for no limit or a count of at least 1")
        if not 0 < self.top_p <= 1:
            raise UserError(f"sampling top_p is {self.top_p}; it must be in (0, 1], 1 for no limit")

    @property
    def truncates(self) -> bool:
        """Whether top-k or top-p takes tokens out of the distribution."""
        return self.top_k > 0 or self.top_p < 1
