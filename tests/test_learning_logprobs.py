"""Log-probs under the sampling distribution, whole and in blocks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from echo2.errors import UserError
from echo2.runtime.learning.logprobs import stats_of_hidden, stats_of_logits, truncated
from echo2.runtime.learning.sampling import Sampling

TEMPERED = Sampling(temperature=0.7)
SAMPLINGS = [
    TEMPERED,
    Sampling(top_k=3),
    Sampling(top_p=0.6),
    Sampling(temperature=1.3, top_k=7, top_p=0.8),
]


def probabilities(*values: float) -> torch.Tensor:
    """Logits [1, V] of a distribution."""
    return torch.tensor([values]).log()


def problem(rows: int = 9, vocab: int = 23, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """(hidden, weight, targets), the first two with gradients."""
    torch.manual_seed(seed)
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(vocab, 8, requires_grad=True)
    return hidden, weight, torch.randint(vocab, (rows,))


def test_temperature_by_hand() -> None:
    """Probabilities 0.8 and 0.2 at temperature 0.5 are squared: 0.64 / 0.68 and 0.04 / 0.68."""
    stats = stats_of_logits(probabilities(0.8, 0.2), torch.tensor([1]), Sampling(temperature=0.5))
    assert stats.logprobs.exp().item() == pytest.approx(0.04 / 0.68)
    p = 0.64 / 0.68
    assert stats.entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-6)


def test_top_k_by_hand() -> None:
    """Of 0.5, 0.3, 0.2 the best two are kept: 0.3 becomes 0.375."""
    stats = stats_of_logits(probabilities(0.5, 0.3, 0.2), torch.tensor([1]), Sampling(top_k=2))
    assert stats.logprobs.exp().item() == pytest.approx(0.375)


def test_top_p_by_hand() -> None:
    """Of 0.5, 0.3, 0.2 a nucleus of 0.7 keeps the first two: 0.5 becomes 0.625."""
    stats = stats_of_logits(probabilities(0.5, 0.3, 0.2), torch.tensor([0]), Sampling(top_p=0.7))
    assert stats.logprobs.exp().item() == pytest.approx(0.625)


def test_a_token_outside_the_support_has_a_finite_log_prob() -> None:
    """A sampled token that the policy would now cut is put back: 0.2 beside 0.5 and 0.3 again."""
    stats = stats_of_logits(probabilities(0.5, 0.3, 0.2), torch.tensor([2]), Sampling(top_k=2))
    assert stats.logprobs.exp().item() == pytest.approx(0.2)


@given(st.integers(0, 999), st.floats(0.3, 2), st.integers(1, 12), st.floats(0.05, 1))
@settings(max_examples=60, deadline=None)
def test_support_is_that_of_hugging_face(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    """For targets inside, the truncated logits equal those of Hugging Face's own warpers."""
    torch.manual_seed(seed)
    logits = torch.randn(4, 12) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k)])
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    wanted = warpers(torch.zeros(4, 1, dtype=torch.long), logits)
    got = truncated(logits, logits.argmax(dim=-1), Sampling(temperature, top_k, top_p))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("max_logits", [1, 23, 60, 10_000])
def test_blocks_change_neither_values_nor_gradients(sampling: Sampling, max_logits: int) -> None:
    """Log-probs, entropy and both gradients are the same for any block size as from whole logits."""
    hidden, weight, targets = problem()
    factor = torch.randn(9)
    whole = stats_of_logits(hidden @ weight.T, targets, sampling)
    wanted = torch.autograd.grad((whole.logprobs * factor).sum(), [hidden, weight])
    parts = stats_of_hidden(hidden, weight, targets, sampling, max_logits)
    got = torch.autograd.grad((parts.logprobs * factor).sum(), [hidden, weight])
    torch.testing.assert_close(parts.logprobs, whole.logprobs)
    torch.testing.assert_close(parts.entropy, whole.entropy)
    for mine, theirs in zip(got, wanted):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("sampling", [TEMPERED, Sampling(top_k=20)])
def test_bfloat16_states_with_float32_weights(sampling: Sampling) -> None:
    """As under autocast: log-probs are float32 and near the exact ones, gradients keep each input's type."""
    hidden, weight, targets = problem()
    half = hidden.detach().bfloat16().requires_grad_()
    wanted = stats_of_logits(half.float() @ weight.T, targets, sampling).logprobs
    got = stats_of_hidden(half, weight, targets, sampling, 60).logprobs
    torch.testing.assert_close(got, wanted, rtol=0, atol=0.05)
    by_state, by_weight = torch.autograd.grad(got.sum(), [half, weight])
    exact = torch.autograd.grad(wanted.sum(), [half, weight])
    assert (got.dtype, by_state.dtype, by_weight.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    torch.testing.assert_close(by_state, exact[0], rtol=0, atol=0.1)
    torch.testing.assert_close(by_weight, exact[1], rtol=0, atol=0.1)


def test_extreme_logits_stay_finite() -> None:
    """Logits of +-10,000 overflow neither the running maximum nor the entropy."""
    weight = torch.tensor([[1e4], [-1e4], [1e4]])
    stats = stats_of_hidden(torch.ones(1, 1), weight, torch.tensor([0]), Sampling(), 1)
    assert stats.logprobs.item() == pytest.approx(-math.log(2), abs=1e-3)
    assert math.isfinite(stats.entropy.item())


def test_streaming_holds_no_more_logits_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of logits, forward or backward, is larger than `max_logits`."""
    from echo2.runtime.learning import logprobs

    sizes: list[int] = []
    original = logprobs.linear

    def watched(*args: torch.Tensor) -> torch.Tensor:
        out = original(*args)
        sizes.append(out.numel())
        return out

    monkeypatch.setattr(logprobs, "linear", watched)
    for sampling in (TEMPERED, Sampling(top_k=3)):
        hidden, weight, targets = problem()
        logprobs.stats_of_hidden(hidden, weight, targets, sampling, 50).logprobs.sum().backward()
    assert sizes and max(sizes) <= 50


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_sampling_without_a_distribution_is_refused(values: dict[str, float], message: str) -> None:
    """Greedy decoding and senseless truncation are refused with the value."""
    with pytest.raises(UserError, match=message):
        Sampling(**values)  # type: ignore[arg-type]
