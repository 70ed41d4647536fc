"""The capacity rule, the staleness it allows, margins and the bound that nothing beats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.policy.capacity import (
    check_publish_period,
    effective_rate,
    fresh_share,
    largest_publish_period,
    required_rate,
    safety_margin,
    serial_step_s,
    smallest_feasible_staleness,
    upper_bound_steps_per_s,
    worst_lag,
)
from echo2.policy.generation import TokenLengths

lags = st.floats(0.0, 20.0)


def test_stall_follows_the_paper() -> None:
    """kappa*B / (kappa*T_train - T_bcast): 3*100 rollouts in 300 - 100 s."""
    need = required_rate("stall", 100, 3, 100.0, 100.0)
    assert need.feasible
    assert need.rollouts_per_s == pytest.approx(1.5)
    assert need.term == "broadcast"
    assert need.slack_s == pytest.approx(200.0)


def test_overlap_pays_only_the_swap() -> None:
    """While a snapshot arrives generation goes on, so only the pause of 10 s in 200 s is made up for."""
    need = required_rate("overlap", 100, 2, 100.0, 150.0, 10.0)
    assert need.rollouts_per_s == pytest.approx(1.0 / 0.95)
    assert need.term == "swap"
    assert required_rate("overlap", 100, 2, 100.0, 150.0).term == "learner"


@pytest.mark.parametrize(
    ("reading", "broadcast_s", "pause_s", "term", "words"),
    [
        ("stall", 840.0, 0.0, "broadcast", "T_bcast 840 s >= kappa*T_train 300 s: 2.8x too slow; kappa >= 9"),
        (
            "overlap",
            840.0,
            0.0,
            "broadcast",
            "T_bcast 840 s > kappa*T_train 300 s: 2.8x too slow; kappa >= 9",
        ),
        ("stall", 300.0, 0.0, "broadcast", "no time left to generate; kappa >= 4"),
        (
            "overlap",
            10.0,
            450.0,
            "swap",
            "swap pause 450 s >= kappa*T_train 300 s: 1.5x too slow; kappa >= 5",
        ),
    ],
)
def test_an_infeasible_plan_names_the_term(
    reading: str, broadcast_s: float, pause_s: float, term: str, words: str
) -> None:
    """The answer says which term breaks, by how much, and which kappa would fit."""
    need = required_rate(reading, 100, 3, 100.0, broadcast_s, pause_s)  # type: ignore[arg-type]
    assert not need.feasible
    assert math.isinf(need.rollouts_per_s)
    assert need.term == term
    assert need.slack_s <= 0
    assert words in need.reason


def test_a_broadcast_of_exactly_one_period_fits_only_with_overlap() -> None:
    """T_bcast = kappa*T_train is feasible while generating, and leaves no time when workers stop."""
    assert required_rate("overlap", 100, 3, 0.1, 0.1 + 0.1 + 0.1).feasible
    assert not required_rate("stall", 100, 3, 0.1, 0.1 + 0.1 + 0.1).feasible


@given(st.integers(1, 12), lags, lags, lags)
def test_largest_period_is_the_largest(S: int, b: float, g: float, q: float) -> None:
    """The period found keeps the bound and the next longer one does not."""
    kappa = largest_publish_period(S, b, g, q)
    assert kappa == 0 or worst_lag(kappa, b, g, q) <= S
    assert worst_lag(kappa + 1, b, g, q) > S


@given(lags, lags, lags, st.sampled_from(["stall", "overlap"]))
def test_smallest_staleness_is_the_smallest(b: float, g: float, q: float, reading: str) -> None:
    """Some period keeps the S found without queueing snapshots; none keeps S - 1."""

    def possible(S: int) -> bool:
        longest = largest_publish_period(S, b, g, q)
        return any(b <= k + 1e-9 if reading == "overlap" else b < k - 1e-9 for k in range(1, longest + 1))

    S = smallest_feasible_staleness(b, g, q, reading)  # type: ignore[arg-type]
    assert possible(S)
    assert not possible(S - 1)


def test_whole_ratios_survive_floating_point() -> None:
    """A lag of 2.9999999999999996 steps counts as 3, as (0.1 + 0.2) * 10 should."""
    b = 1.0 - 1e-16
    assert worst_lag(1, 0.7, 0.2, 0.1) == 2
    assert largest_publish_period(4, b, 1.0, 1.0) == 1
    assert smallest_feasible_staleness((0.1 + 0.2) * 10, 0.0, 0.0) == 6


@given(st.integers(0, 15), st.integers(1, 20))
def test_the_period_check_is_the_gates_arithmetic(S: int, kappa: int) -> None:
    """A period is refused exactly if some batch k has no multiple of kappa in k-S..k."""
    deadlocks = any(not any(v % kappa == 0 for v in range(max(0, k - S), k + 1)) for k in range(60))
    if deadlocks:
        with pytest.raises(UserError, match=f"at most S \\+ 1 = {S + 1}"):
            check_publish_period(S, kappa)
    else:
        check_publish_period(S, kappa)


def test_fresh_share_of_a_uniform_length() -> None:
    """Lengths uniform on 0..100 cut at 50: half end, with a third of the tokens; the rate is 2/3."""
    share = fresh_share(TokenLengths(np.array([0.0]), np.array([100.0]), np.ones(1)), 0.1, 5.0)
    assert share.rollouts == pytest.approx(0.5)
    assert share.tokens == pytest.approx(12.5 / 37.5)
    assert share.useful_rate == pytest.approx(0.5 * 50 / 37.5)


def test_fresh_share_at_its_ends() -> None:
    """No budget makes nothing fresh; a budget for the longest rollout makes all of it fresh."""
    lengths = TokenLengths.constant(100)
    assert fresh_share(lengths, 0.1, 0.0).useful_rate == 0
    assert fresh_share(lengths, 0.1, 9.9).rollouts == 0
    assert fresh_share(lengths, 0.1, 10.0) == fresh_share(lengths, 0.1, 1e9)
    assert fresh_share(lengths, 0.1, 10.0).useful_rate == pytest.approx(1.0)


@given(st.floats(0.1, 400.0))
def test_fresh_share_agrees_with_sampled_lengths(cut: float) -> None:
    """The closed form matches the same quantities over many equally likely lengths."""
    lengths = TokenLengths(np.array([1.0, 20.0]), np.array([20.0, 300.0]), np.array([3.0, 1.0]))
    tokens = lengths.quantile((np.arange(40_000) + 0.5) / 40_000)
    share = fresh_share(lengths, 1.0, cut)
    ended = (tokens <= cut).mean()
    assert share.rollouts == pytest.approx(ended, abs=1e-3)
    assert share.useful_rate == pytest.approx(
        ended * tokens.mean() / np.minimum(tokens, cut).mean(), abs=5e-3
    )


def test_margin_is_one_without_variance_and_grows_with_each() -> None:
    """No variance, no margin; rate, length and time down each raise it, more workers lower it."""
    assert safety_margin(0.0, 512, 0.0, 1.0, 10) == 1.0
    base = safety_margin(0.1, 512, 1.0, 0.99, 10)
    assert base > 1
    assert safety_margin(0.3, 512, 1.0, 0.99, 10) > base
    assert safety_margin(0.1, 512, 2.0, 0.99, 10) > base
    assert safety_margin(0.1, 512, 1.0, 0.92, 10) > base
    assert safety_margin(0.1, 512, 1.0, 0.99, 40) < base
    assert safety_margin(0.1, 4096, 1.0, 0.99, 10) < base


def test_margin_covers_the_quantile_it_promises() -> None:
    """Against sampled demand and supply the 95 % margin is met in 93 to 97 % of the periods."""
    rng = np.random.default_rng(0)
    workers, rollouts, up = 24, 256, 1 / (1 + 0.5 * 600 / 3600)
    margin = safety_margin(0.15, rollouts, 1.0, up, workers)
    demand = rng.exponential(1.0, (4000, rollouts)).mean(axis=1)
    rates = rng.normal(1.0, 0.15, (4000, workers)) * (rng.random((4000, workers)) < up)
    supply = rates.mean(axis=1) / up
    assert 0.93 <= (supply * margin >= demand).mean() <= 0.97


@given(st.integers(0, 12), st.floats(0.1, 50), st.floats(0.1, 50), st.floats(0, 50), st.floats(0, 50))
@settings(max_examples=60)
def test_the_bound_is_the_least_of_its_terms(
    S: int, train_s: float, rate: float, broadcast_s: float, tail_s: float
) -> None:
    """No term is below the bound, the named one equals it, and a larger S never lowers it."""
    value, term = upper_bound_steps_per_s(S, 8, train_s, rate, broadcast_s, tail_s)
    terms = {
        "learner": 1 / train_s,
        "rollouts": rate / 8,
        "freshness": (S + 1) / (broadcast_s + tail_s + train_s),
    }
    assert value == pytest.approx(terms[term])
    assert value <= min(terms.values()) * (1 + 1e-12)
    assert upper_bound_steps_per_s(S + 1, 8, train_s, rate, broadcast_s, tail_s)[0] >= value


def test_on_policy_bound_is_the_serial_step() -> None:
    """With S = 0 and enough rate the bound is one serial step."""
    value, term = upper_bound_steps_per_s(0, 8, 10.0, 1e9, 5.0, 20.0)
    assert 1 / value == pytest.approx(serial_step_s(5.0, 20.0, 10.0))
    assert term == "freshness"


def test_effective_rate_multiplies_its_shares() -> None:
    """Fresh, up and not paused: the shares multiply, and a pause of the whole time leaves nothing."""
    assert effective_rate(10.0, 0.5, 0.8, 0.25) == pytest.approx(3.0)
    assert effective_rate(10.0, pause_share=2.0) == 0.0
