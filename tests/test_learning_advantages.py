"""Group-relative advantages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.learning.advantages import group_advantages
from echo2.runtime.learning.testing import make_rollout

REWARDS = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=6), min_size=1, max_size=5)


def groups(*rewards: list[float]) -> list[Rollout]:
    """One group per list, one rollout per reward."""
    return [make_rollout(g, i, [3], r) for g, rs in enumerate(rewards) for i, r in enumerate(rs)]


def test_grpo_divides_by_the_sample_std() -> None:
    """Rewards 1, 0, 0, 1 have mean 0.5 and sample std sqrt(1/3), hence advantages of +-0.866025."""
    found = group_advantages(groups([1, 0, 0, 1]), "std", epsilon=0.0)
    expected = 0.5 / math.sqrt(1 / 3)
    assert list(found.values.values()) == pytest.approx([expected, -expected, -expected, expected])
    assert found.std == pytest.approx(expected)


def test_epsilon_is_added_to_the_std() -> None:
    """With epsilon 1 the divisor is std + 1."""
    found = group_advantages(groups([2, 0]), "std", epsilon=1.0)
    assert found.values["0:0"] == pytest.approx(1 / (math.sqrt(2) + 1))


def test_dr_grpo_only_centres() -> None:
    """Without the std the advantage is the reward minus the mean of its own group."""
    found = group_advantages(groups([4, 1, 1], [10, 20]), "none")
    assert found.values == {"0:0": 2, "0:1": -1, "0:2": -1, "1:0": -5, "1:1": 5}


def test_groups_without_variance_are_left_out_and_counted() -> None:
    """Equal rewards, or a group of one, give no advantage; the groups given stay the denominator."""
    found = group_advantages(groups([1, 1], [0, 1], [5]))
    assert set(found.values) == {"1:0", "1:1"}
    assert (found.groups, found.zero_variance, found.trained_groups) == (3, (0, 2), 1)


def test_nothing_to_train_has_no_std() -> None:
    """When every group is left out the std is None, not 0 and not NaN."""
    assert group_advantages(groups([1, 1])).std is None


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_names_its_rollout(reward: float) -> None:
    """A non-finite reward is refused with the rollout's id and the value."""
    with pytest.raises(UserError, match=rf"rollout 1:1 has reward {reward}"):
        group_advantages(groups([0, 1], [0, reward]))


def test_a_rollout_given_twice_is_refused() -> None:
    """Training a rollout twice in a batch is an error that names it."""
    with pytest.raises(UserError, match=r"rollout 0:0 is in the batch twice"):
        group_advantages([*groups([0, 1]), *groups([0, 1])])


@given(REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[list[float]]) -> None:
    """In each trained group the advantages sum to 0, and left-out and trained groups make up all groups."""
    for kind in ("std", "none"):
        found = group_advantages(groups(*rewards), kind)  # type: ignore[arg-type]
        for group in range(len(rewards)):
            inside = [v for name, v in found.values.items() if name.startswith(f"{group}:")]
            assert len(inside) in (0, len(rewards[group]))
            assert sum(inside) == pytest.approx(0, abs=1e-6)
            assert (not inside) == (group in found.zero_variance)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.floats(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(rewards: list[float], shift: float) -> None:
    """Advantages depend on differences of rewards only."""
    before = group_advantages(groups(rewards), "none").values
    after = group_advantages(groups([r + shift for r in rewards]), "none").values
    for name in set(before) & set(after):
        assert before[name] == pytest.approx(after[name], abs=1e-9)
