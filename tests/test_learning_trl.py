"""Our loss beside TRL's own `GRPOTrainer._compute_loss` on the same tensors: value and gradient."""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from torch import Tensor

from echo2.runtime.learning.losses import (
    Denominator,
    aggregate,
    importance_ratio,
    importance_weight,
    kl_k3,
    ppo_clip,
)

logging.getLogger("trl").setLevel(logging.ERROR)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        from trl import GRPOTrainer
    except (ImportError, RuntimeError) as error:  # a part of TRL that does not fit what is installed
        pytest.skip(f"TRL is there but its GRPO trainer is not: {error}", allow_module_level=True)

TOLERANCE = 1e-6
MAX_TOKENS = 16
AGGREGATION = {"grpo": "sequence", "dr_grpo": "constant", "bnpo": "token", "dapo": "token"}


@dataclass(frozen=True)
class Tensors:
    """A batch of 6 completions of up to 9 tokens; log-probs [6, 9], in places far apart."""

    policy: Tensor
    proximal: Tensor
    behaviour: Tensor
    reference: Tensor
    advantages: Tensor
    mask: Tensor

    @classmethod
    def drawn(cls, seed: int, spread: float) -> Tensors:
        """Log-probs that differ by about `spread` nats."""
        make = torch.Generator().manual_seed(seed)

        def noise() -> Tensor:
            return torch.randn(6, 9, generator=make, dtype=torch.float64)

        policy = -noise().abs() - 0.1
        lengths = torch.tensor([9, 1, 4, 7, 2, 9])
        return cls(
            policy.requires_grad_(),
            (policy.detach() + spread * noise()).clamp(max=-1e-3),
            (policy.detach() + spread * noise()).clamp(max=-1e-3),
            (policy.detach() + spread * noise()).clamp(max=-1e-3),
            torch.randn(6, generator=make, dtype=torch.float64),
            torch.arange(9)[None, :] < lengths[:, None],
        )


def trl_loss(
    batch: Tensors, kind: str, low: float, high: float, beta: float, weight: Tensor | None
) -> Tensor:
    """TRL's loss with the model replaced by given log-probs; everything after them is TRL's code."""
    trainer: Any = object.__new__(GRPOTrainer)
    trainer.__dict__.update(
        loss_type=kind,
        epsilon_low=low,
        epsilon_high=high,
        beta=beta,
        use_vllm=weight is not None,
        vllm_importance_sampling_correction=weight is not None,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        max_completion_length=MAX_TOKENS,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda t: t, reduce=lambda t, reduction: t),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_a, **_k: (
            batch.policy,
            torch.zeros_like(batch.policy),
            None,
        ),
    )
    ids = torch.zeros(batch.mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.proximal,
        "ref_per_token_logps": batch.reference,
        "num_items_in_batch": batch.mask.sum(),
    }
    if weight is not None:
        inputs["importance_sampling_ratio"] = weight
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def our_loss(
    batch: Tensors, kind: str, low: float, high: float, beta: float, weight: Tensor | None
) -> Tensor:
    """The learner's composition of the terms."""
    ratio = importance_ratio(batch.policy, batch.proximal)
    loss = ppo_clip(ratio, batch.advantages, low, high).loss
    if weight is not None:
        loss = weight * loss
    if beta:
        loss = loss + beta * kl_k3(batch.policy, batch.reference)
    denominator = Denominator(
        AGGREGATION[kind],  # type: ignore[arg-type]
        tokens=int(batch.mask.sum()),
        sequences=len(batch.mask),
        max_tokens=MAX_TOKENS,
    )
    return aggregate(loss, batch.mask, denominator)


def difference(batch: Tensors, **settings: Any) -> tuple[float, float]:
    """Of the losses, and the largest of their gradients by the policy's log-probs."""
    both = [make(batch, **settings) for make in (trl_loss, our_loss)]
    gradients = [torch.autograd.grad(loss, batch.policy)[0] for loss in both]
    assert float(gradients[0].abs().max()) > 1e-3  # else nothing is compared
    return abs(float(both[0].detach() - both[1].detach())), float((gradients[0] - gradients[1]).abs().max())


@pytest.mark.parametrize("kind", AGGREGATION)
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (0.2, 0.2), (1.0, 1e9)], ids=["high", "same", "off"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_the_loss_is_that_of_trl(kind: str, low: float, high: float, beta: float, spread: float) -> None:
    """For every loss type, clip and KL weight, on-policy and off, value and gradient equal TRL's."""
    for seed in range(5):
        batch = Tensors.drawn(seed, spread)
        worst = difference(batch, kind=kind, low=low, high=high, beta=beta, weight=None)
        assert max(worst) < TOLERANCE


@pytest.mark.parametrize("kind", AGGREGATION)
@pytest.mark.parametrize(("mode", "cap"), [("truncate", 1.2), ("mask", 1.2)])
def test_truncated_importance_sampling_is_that_of_trl(kind: str, mode: Any, cap: float) -> None:
    """With TRL's token-level weights, truncated or masked above a cap, value and gradient are equal."""
    for seed in range(5):
        batch = Tensors.drawn(seed, 0.3)
        ours = importance_weight(batch.proximal, batch.behaviour, mode, cap)
        trls = trl_weight(batch, mode, cap)
        assert float((ours - trls)[batch.mask].abs().max()) < TOLERANCE
        assert bool((ours != importance_ratio(batch.proximal, batch.behaviour)).any())
        assert max(difference(batch, kind=kind, low=0.2, high=0.28, beta=0.04, weight=trls)) < TOLERANCE


def trl_weight(batch: Tensors, mode: str, cap: float) -> Tensor:
    """TRL's weights as `_generate_and_score_completions` makes them, which cannot be run without a model."""
    weight = torch.exp((batch.proximal - batch.behaviour) * batch.mask)
    return weight.clamp(max=cap) if mode == "truncate" else weight.masked_fill(weight > cap, 0.0)
