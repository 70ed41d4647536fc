"""The terms of the GRPO loss as pure functions of tensors, each with its formula and source.

Called by the learner for each micro-batch. Shapes: B sequences, T token positions. `mask` [B, T] is True
for the tokens the policy chose; prompts, padding and tokens that an environment wrote are False and never
count. Log-probs are natural logarithms under the sampling distribution. Loss terms are to be minimised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]
Weighting = Literal["none", "truncate", "mask"]

# exp of more than this overflows into gradients of 0 * inf; a token so far off carries no information.
MAX_LOG_RATIO = 20.0


def importance_ratio(new: Tensor, old: Tensor) -> Tensor:
    """r = pi_new / pi_old = exp(new - old) per token; any equal shapes. (PPO, arXiv 1707.06347, section 3)

    The difference of log-probs is held within +-20 (as verl does): beyond it r is constant, its gradient 0.
    """
    return torch.exp((new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


@dataclass(frozen=True, slots=True)
class Clipped:
    """Per-token loss [B, T] and where the clip bound it, which is where its gradient is zero [B, T]."""

    loss: Tensor
    bound: Tensor


def ppo_clip(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Clipped:
    """Clipped surrogate per token: -min(r A, clip(r, 1 - low, 1 + high) A).

    PPO, arXiv 1707.06347, equation 7; separate bounds: DAPO "clip-higher", arXiv 2503.14476, equation 10.
    `ratio` [B, T]; `advantages` [B], one per sequence.
    """
    advantage = advantages[:, None]
    clipped = ratio.clamp(1 - low, 1 + high)
    loss = -torch.minimum(ratio * advantage, clipped * advantage)
    over = (ratio > 1 + high) & (advantage > 0)
    under = (ratio < 1 - low) & (advantage < 0)
    return Clipped(loss, over | under)


def importance_weight(trainer: Tensor, engine: Tensor, kind: Weighting, cap: float) -> Tensor:
    """Weight w = pi_trainer / pi_engine per token, a constant for the gradient (detached).

    "truncate": min(w, cap), truncated importance sampling (Ionides 2008; for the mismatch of trainer and
    engine: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
    "mask": w where w <= cap, else 0: what AReaL's code does with its cap. "none": 1.

    With `trainer` the proximal policy and `engine` the behaviour policy this is the factor in front of the
    clipped term in decoupled PPO (AReaL, arXiv 2505.24298, section 5.2; Hilton et al., arXiv 2110.00641):
    w * ppo_clip(pi / pi_proximal). At staleness 0 the proximal policy is the behaviour policy as the
    trainer computes it, so the same factor corrects the mismatch alone.
    """
    weight = importance_ratio(trainer.detach(), engine.detach())
    if kind == "truncate":
        return weight.clamp(max=cap)
    if kind == "mask":
        return torch.where(weight <= cap, weight, 0.0)
    return torch.ones_like(weight)


def kl_k3(policy: Tensor, reference: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) per token: exp(d) - 1 - d with d = reference - policy, >= 0.

    k3 of Schulman, "Approximating KL divergence" (2020); GRPO, arXiv 2402.03300, equation 4. Unbiased in
    value for tokens drawn from `policy`; on stale tokens it is an approximation, as in GRPO.
    """
    d = (reference - policy).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(d) - d


@dataclass(frozen=True, slots=True)
class Denominator:
    """What the summed loss of a whole batch is divided by, whatever its micro-batches.

    `tokens`: trained tokens; `sequences`: sequences with at least one; `max_tokens`: the constant length
    of Dr. GRPO. All are those of the batch, not of a micro-batch.
    """

    aggregation: Aggregation
    tokens: int
    sequences: int
    max_tokens: int

    @property
    def value(self) -> float:
        """The divisor; for "sequence" it follows the division of each sequence by its own length."""
        if self.aggregation == "token":
            return float(self.tokens)
        if self.aggregation == "sequence":
            return float(self.sequences)
        return float(self.sequences * self.max_tokens)


def aggregate(per_token: Tensor, mask: Tensor, denominator: Denominator) -> Tensor:
    """This micro-batch's share of the batch loss, a scalar; shares of all micro-batches sum to the loss.

    "token":    sum_it l_it / sum_i n_i            DAPO, arXiv 2503.14476, equation 8
    "sequence": (1/B) sum_i (1/n_i) sum_t l_it     GRPO, arXiv 2402.03300, equation 3
    "constant": sum_it l_it / (B L)                Dr. GRPO, arXiv 2503.20783, section 3.2 (L = max_tokens)

    `per_token` and `mask` [B, T]; n_i counts the True of row i, and a row without any counts for nothing.
    """
    if denominator.value <= 0:
        raise ValueError(f"a loss over {denominator} has no denominator")
    kept = torch.where(mask, per_token, 0.0)
    if denominator.aggregation == "sequence":
        kept = kept / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return kept.sum() / denominator.value
