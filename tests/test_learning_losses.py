"""The terms of the loss against numbers worked by hand, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from echo2.runtime.learning.losses import (
    Denominator,
    aggregate,
    importance_ratio,
    importance_weight,
    kl_k3,
    ppo_clip,
)

LOGP = st.floats(-8, 0)


def log(*values: float) -> Tensor:
    """Log-probs [1, T] of probabilities."""
    return torch.tensor([values], dtype=torch.float64).log()


def denominator(kind: Any, tokens: int = 4, sequences: int = 2, max_tokens: int = 8) -> Denominator:
    """A denominator with small round numbers."""
    return Denominator(kind, tokens, sequences, max_tokens)


def test_ratio_is_policy_over_behaviour() -> None:
    """Probabilities 0.6 and 0.1 against 0.3 and 0.2 have the ratios 2 and 0.5."""
    assert importance_ratio(log(0.6, 0.1), log(0.3, 0.2)).tolist()[0] == pytest.approx([2.0, 0.5])


def test_an_absurd_ratio_stays_finite_with_its_gradient() -> None:
    """Log-probs 200 nats apart give a finite ratio and a gradient of 0, not NaN."""
    policy = torch.tensor([[0.0]], requires_grad=True)
    importance_ratio(policy, torch.tensor([[-200.0]])).sum().backward()
    assert policy.grad is not None and policy.grad.item() == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.0),  # inside: -r A, slope -A
        (1.25, 2.0, -2.5, -2.0),  # above 1.2 yet below 1.28: the bounds are not the same
        (0.75, -2.0, 1.6, 0.0),  # below 0.8 yet above 0.72
        (1.5, 2.0, -2.56, 0.0),  # above with A > 0: held at 1.28
        (1.5, -2.0, 3.0, 2.0),  # above with A < 0: the pessimistic side is not clipped
        (0.5, -2.0, 1.6, 0.0),  # below with A < 0: held at 0.8
        (0.5, 2.0, -1.0, -2.0),  # below with A > 0: not clipped
    ],
)
def test_clip_bounds_each_side_by_its_own_width(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    """With bounds 0.8 and 1.28 the loss is that worked by hand and clipped tokens have no gradient."""
    r = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    clipped = ppo_clip(r, torch.tensor([advantage], dtype=torch.float64), 0.2, 0.28)
    clipped.loss.sum().backward()
    assert clipped.loss.item() == pytest.approx(loss)
    assert r.grad is not None and r.grad.item() == pytest.approx(gradient)
    assert clipped.bound.item() == (gradient == 0.0)


def test_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    """On-policy, the gradient of the loss by the log-prob is -A."""
    policy = log(0.25).requires_grad_()
    ratio = importance_ratio(policy, policy.detach())
    ppo_clip(ratio, torch.tensor([3.0], dtype=torch.float64), 0.2, 0.28).loss.sum().backward()
    assert policy.grad is not None and policy.grad.item() == pytest.approx(-3.0)


def test_importance_weights_by_kind() -> None:
    """Ratios 0.5, 1.5 and 4 with cap 2: truncation holds the last at 2, the mask sets it to 0."""
    trainer, engine = log(0.1, 0.3, 0.8), log(0.2, 0.2, 0.2)
    got = {
        kind: importance_weight(trainer, engine, kind, 2.0).tolist()[0]  # type: ignore[arg-type]
        for kind in ("truncate", "mask", "none")
    }
    assert got["truncate"] == pytest.approx([0.5, 1.5, 2.0])
    assert got["mask"] == pytest.approx([0.5, 1.5, 0.0])
    assert got["none"] == [1.0, 1.0, 1.0]


def test_importance_weights_carry_no_gradient() -> None:
    """The weight is a constant: it does not require a gradient even when its input does."""
    trainer = log(0.3).requires_grad_()
    assert not importance_weight(trainer, log(0.2), "truncate", 2.0).requires_grad


def test_decoupled_ppo_by_hand() -> None:
    """Policy 0.36, proximal 0.3, behaviour 0.2, A = 1: weight 1.5 times ratio 1.2, loss -1.8, slope -1.8."""
    policy, proximal, behaviour = log(0.36).requires_grad_(), log(0.3), log(0.2)
    weight = importance_weight(proximal, behaviour, "truncate", 2.0)
    clipped = ppo_clip(
        importance_ratio(policy, proximal), torch.tensor([1.0], dtype=torch.float64), 0.2, 0.28
    )
    loss = weight * clipped.loss
    loss.sum().backward()
    assert loss.item() == pytest.approx(-1.8)
    assert policy.grad is not None and policy.grad.item() == pytest.approx(-1.8)
    # against the behaviour policy the same token has the ratio 1.8 and would be clipped
    assert ppo_clip(
        importance_ratio(policy, behaviour), torch.tensor([1.0], dtype=torch.float64), 0.2, 0.28
    ).bound.item()


def test_k3_by_hand() -> None:
    """Policy 0.2, reference 0.4: 2 - 1 - ln 2 = 0.306853; its slope by the log-prob is 1 - 2."""
    policy = log(0.2).requires_grad_()
    value = kl_k3(policy, log(0.4))
    value.sum().backward()
    assert value.item() == pytest.approx(1 - math.log(2))
    assert policy.grad is not None and policy.grad.item() == pytest.approx(-1.0)


def test_k3_is_unbiased() -> None:
    """Averaged over the policy's own tokens, k3 is the exact KL divergence of two distributions."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    estimate = (p * kl_k3(p.log(), q.log())).sum()
    assert estimate.item() == pytest.approx((p * (p / q).log()).sum().item())


@given(LOGP, LOGP)
def test_k3_is_never_negative(policy: float, reference: float) -> None:
    """k3 is >= 0 token by token, and 0 for equal log-probs."""
    value = kl_k3(torch.tensor(policy), torch.tensor(reference)).item()
    assert value >= 0 and (policy != reference or value == 0)


@pytest.mark.parametrize(("kind", "expected"), [("token", 2.75), ("sequence", 3.5), ("constant", 0.6875)])
def test_aggregations_differ_as_worked_by_hand(kind: str, expected: float) -> None:
    """Losses (1, 2, 3) and (5): token 11/4, sequence (2 + 5)/2, constant 11/(2 * 8)."""
    per_token = torch.tensor([[1.0, 2.0, 3.0], [5.0, 99.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert aggregate(per_token, mask, denominator(kind)).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("token", [[1 / 4] * 3, [1 / 4, 0, 0]]),
        ("sequence", [[1 / 6] * 3, [1 / 2, 0, 0]]),
        ("constant", [[1 / 16] * 3, [1 / 16, 0, 0]]),
    ],
)
def test_weight_of_a_token_by_aggregation(kind: str, weights: list[list[float]]) -> None:
    """The gradient shows what a token counts: by sequence a token of a short answer weighs more."""
    per_token = torch.ones(2, 3, requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    aggregate(per_token, mask, denominator(kind)).backward()
    assert per_token.grad is not None
    torch.testing.assert_close(per_token.grad, torch.tensor(weights))


def test_tokens_of_the_environment_do_not_count() -> None:
    """A masked token in the middle, even NaN, changes neither the value nor the gradient of the others."""
    per_token = torch.tensor([[1.0, math.nan, 3.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    loss = aggregate(per_token, mask, denominator("sequence", tokens=2, sequences=1))
    loss.backward()
    assert loss.item() == 2.0
    assert per_token.grad is not None and per_token.grad.tolist() == [[0.5, 0.0, 0.5]]


@given(st.integers(1, 5), st.sampled_from(["token", "sequence", "constant"]), st.integers(0, 99))
def test_shares_of_micro_batches_sum_to_the_loss(rows: int, kind: str, seed: int) -> None:
    """However the rows are divided, the shares sum to the loss of the whole."""
    torch.manual_seed(seed)
    per_token, mask = torch.randn(6, 4, dtype=torch.float64), torch.rand(6, 4) > 0.4
    whole = denominator(kind, int(mask.sum()) or 1, int(mask.any(1).sum()) or 1)
    parts = [aggregate(per_token[a : a + rows], mask[a : a + rows], whole) for a in range(0, 6, rows)]
    assert torch.stack(parts).sum().item() == pytest.approx(aggregate(per_token, mask, whole).item())


def test_an_empty_denominator_is_refused() -> None:
    """A loss over no token is an error, never NaN."""
    with pytest.raises(ValueError, match="no denominator"):
        aggregate(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool), denominator("token", tokens=0))
