"""Rollout lengths, decode steps, and the rates and drain times that follow from both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.generation import (
    DecodeModel,
    TokenLengths,
    drain_times,
    running_context,
    slots_that_fit,
    steady_rate,
)

GPU = DecodeModel((1, 8, 32, 64), (0.010, 0.012, 0.018, 0.027), (1e-6, 3e-6, 9e-6, 16e-6))


def skewed() -> TokenLengths:
    """Half the rollouts below 200 tokens, a tail to 4000."""
    return TokenLengths(np.array([1.0, 200, 1000]), np.array([200.0, 1000, 4000]), np.array([0.5, 0.4, 0.1]))


def test_moments_of_a_uniform_bin() -> None:
    """One bin from 0 to 6 has mean 3, mean square 12 and CV 1/sqrt(3)."""
    lengths = TokenLengths(np.array([0.0]), np.array([6.0]), np.array([2.0]))
    assert lengths.mean == pytest.approx(3.0)
    assert lengths.mean_square == pytest.approx(12.0)
    assert lengths.cv == pytest.approx(3**-0.5)


def test_quantiles_are_linear_within_a_bin_and_invert_the_shares() -> None:
    """Half of the mass lies below the edge of the first bin, and quantiles rise between edges."""
    lengths = skewed()
    assert lengths.quantile(np.array([0.25, 0.5, 0.7, 0.9, 1.0])) == pytest.approx(
        [100.5, 200.0, 600.0, 1000.0, 4000.0]
    )


def test_samples_have_the_mean_of_the_distribution() -> None:
    """Twenty thousand seeded draws average to the mean within 3 %, and none is shorter than one token."""
    draws = skewed().sample(np.random.default_rng(1), 20_000)
    assert draws.mean() == pytest.approx(skewed().mean, rel=0.03)
    assert draws.min() >= 1


def test_truncation_cuts_and_does_not_redraw() -> None:
    """Cut at 500 tokens nothing is longer, and the short half is untouched."""
    cut = skewed().truncated(500)
    assert cut.max == 500
    assert cut.quantile(0.25) == pytest.approx(skewed().quantile(0.25))
    assert cut.mean < skewed().mean


def test_decode_steps_interpolate_and_saturate() -> None:
    """Between measured batches a step is linear, beyond the last it grows with the batch."""
    base, slope = GPU.coefficients(20)
    assert base == pytest.approx(0.015)
    assert slope == pytest.approx(6e-6)
    assert GPU.step_s(128, 1000) == pytest.approx(2 * GPU.step_s(64, 1000))
    assert GPU.tokens_per_s(64, 500) == pytest.approx(64 / (0.027 + 16e-6 * 500))


def test_a_constant_rate_worker_shares_its_rate() -> None:
    """Its tokens/s do not depend on how many sequences run."""
    model = DecodeModel.constant_rate(100.0, 8)
    assert [model.tokens_per_s(n, 9.0) for n in (1, 3, 8)] == pytest.approx([100.0] * 3)


def test_context_is_length_biased() -> None:
    """Equal lengths are half done on average; a tail makes the running ones longer than half the mean."""
    assert running_context(TokenLengths.constant(100), 10) == pytest.approx(60.0)
    assert running_context(skewed(), 0) > skewed().mean / 2


def test_steady_rate_is_littles_law() -> None:
    """Rate times mean time is the number of sequences running."""
    rate = steady_rate(GPU, skewed(), 100, slots=16)
    assert rate.rollouts_per_s * rate.mean_s == pytest.approx(16)
    assert rate.tail_s > rate.mean_s


def test_slots_respect_the_kv_pool() -> None:
    """A pool for ten mean contexts runs ten sequences; one too small for the longest runs none."""
    lengths = TokenLengths.constant(100)
    assert slots_that_fit(DecodeModel((1,), (1,), (0,), kv_pool_tokens=1505), lengths, 100) == 10
    assert slots_that_fit(DecodeModel((1,), (1,), (0,), kv_pool_tokens=150), lengths, 100) == 0


def test_drain_of_equal_rollouts_is_one_step_each_token() -> None:
    """Equal rollouts that all fit end together, after their tokens at the mean context."""
    ends = drain_times(GPU, TokenLengths.constant(100), 50, rollouts=8, slots=8)
    assert ends == pytest.approx([100 * GPU.step_s(8, 100)] * 8)


def test_waiting_rollouts_start_as_others_end() -> None:
    """Three equal rollouts on two slots of a constant-rate worker: two end together, the third alone."""
    model = DecodeModel.constant_rate(10.0, 2)
    assert drain_times(model, TokenLengths.constant(10), 0, 3, 2) == pytest.approx([2.0, 2.0, 3.0])


@given(st.integers(1, 200), st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_draining_conserves_work(rollouts: int, slots: int) -> None:
    """A constant-rate worker drains in total tokens over rate, in ascending order, whatever the slots."""
    lengths = skewed()
    ends = drain_times(DecodeModel.constant_rate(100.0, slots), lengths, 0, rollouts, slots)
    tokens = lengths.quantile((np.arange(rollouts) + 0.5) / rollouts).sum()
    assert len(ends) == rollouts
    assert (np.diff(ends) >= 0).all()
    assert ends[-1] == pytest.approx(tokens / 100.0)
