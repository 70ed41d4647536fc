"""The learner's settings, checked when made. No torch here, so that a configuration can hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from echo2.errors import UserError
from echo2.runtime.learning.sampling import Sampling


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How rollouts become an update. Defaults: GRPO with DAPO's clip and token-level loss.

    Loss: `advantage` "std" or "none" (Dr. GRPO); `aggregation` "token", "sequence" or "constant" (then
    `max_tokens`, the completion limit, is the normaliser); `clip_low`, `clip_high` around a ratio of 1;
    `kl_coefficient` times k3 to a reference (0: none).

    `ratio_to` "behaviour": the clipped ratio is policy / engine's recorded log-probs. "proximal": it is
    policy / the trainer's own policy at the start of the batch, and `weight` says what stands in front:
    "truncate" is TIS at staleness 0 and decoupled PPO above, "mask" drops tokens above `weight_cap`,
    "none" ignores the difference (biased; for comparison).

    Optimiser: AdamW (`beta1`, `beta2`, `adam_epsilon`, `weight_decay` on matrices only), learning rate
    rising linearly over `warmup_steps` versions, gradient norm clipped to `max_grad_norm`.
    Memory: `token_budget` padded tokens per micro-batch; `max_logits` float32 logits at a time.
    """

    learning_rate: float = 1e-6
    warmup_steps: int = 0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    advantage: Literal["std", "none"] = "std"
    aggregation: Literal["token", "sequence", "constant"] = "token"
    max_tokens: int = 0
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coefficient: float = 0.0
    ratio_to: Literal["behaviour", "proximal"] = "behaviour"
    weight: Literal["none", "truncate", "mask"] = "truncate"
    weight_cap: float = 2.0
    token_budget: int = 16384
    max_logits: int = 1 << 26
    gradient_checkpointing: bool = False
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        for name, low, why in (
            ("learning_rate", 0.0, "it is the step size"),
            ("max_grad_norm", 0.0, "use a large value such as 1e9 for no clipping"),
            ("adam_epsilon", 0.0, "1e-8 is usual"),
            ("clip_low", 0.0, "0.2 is usual; 1 lets the ratio fall freely"),
            ("clip_high", 0.0, "0.28 is usual"),
            ("weight_cap", 0.0, "2 is usual"),
            ("token_budget", 1.0, "it must hold the longest prompt and completion"),
            ("max_logits", 0.0, "it bounds memory, 4 bytes each"),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > low):
                raise UserError(f"learner {name} is {value}; it must be above {low:g}: {why}")
        for name in ("warmup_steps", "weight_decay", "kl_coefficient"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"learner {name} is {value}; it must be 0 (off) or above")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise UserError(f"learner {name} is {value}; it must be in [0, 1)")
        self._check_choices()

    def _check_choices(self) -> None:
        for name, allowed in (
            ("advantage", ("std", "none")),
            ("aggregation", ("token", "sequence", "constant")),
            ("ratio_to", ("behaviour", "proximal")),
            ("weight", ("none", "truncate", "mask")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise UserError(f"learner {name} is {value!r}; choose one of {', '.join(allowed)}")
        if self.clip_low > 1:
            raise UserError(
                f"learner clip_low is {self.clip_low}; it must be at most 1, a ratio is never below 0"
            )
        if self.aggregation == "constant" and self.max_tokens < 1:
            raise UserError(
                f"learner max_tokens is {self.max_tokens} but aggregation is 'constant'; set it to the "
                "completion limit, which is the normaliser of Dr. GRPO"
            )
