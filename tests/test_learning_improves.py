"""That a learner learns."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.testing import sample_groups, tiny_qwen3

WANTED = 7


def share_of_wanted(ids: Any) -> float:
    """Reward: the share of completion tokens that are the wanted one."""
    return sum(token == WANTED for token in ids) / len(ids)


@pytest.mark.parametrize(
    "variant",
    [{}, {"ratio_to": "proximal"}, {"advantage": "none", "aggregation": "constant", "max_tokens": 4}],
    ids=["grpo", "tis", "dr-grpo"],
)
def test_a_bandit_is_learnt_in_thirty_steps(variant: dict[str, Any]) -> None:
    """The wanted token's share rises from about chance (1/32) to above 0.8, with on-policy ratios of 1."""
    learner = Learner(tiny_qwen3(), LearnerSettings(learning_rate=3e-3, **variant))
    torch.manual_seed(0)
    found = []
    for _ in range(30):
        rollouts = sample_groups(
            learner.model, [[1, 2], [3, 4, 5]], 16, 4, share_of_wanted, version=learner.version
        )
        found.append(learner.step(rollouts))
    rewards = [metrics.reward_mean for metrics in found]
    assert statistics.fmean(rewards[:2]) < 0.15
    assert statistics.fmean(rewards[-5:]) > 0.8
    assert all(m.ratio_mean is None or abs(m.ratio_mean - 1) < 0.01 for m in found)
