"""What the learner refuses, and that a refused step leaves no trace."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.learning.learner import Learner, NonFiniteError
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.testing import make_rollout, tiny_qwen3

SETTINGS = LearnerSettings(learning_rate=1e-3, token_budget=8)


def batch() -> list[Rollout]:
    """Two groups of two, each rollout a micro-batch of two rows at most."""
    return [make_rollout(g, i, [3 + g, 4 + i], float(i)) for g in range(2) for i in range(2)]


def trained() -> Learner:
    """A learner after one good step, so that its optimiser has a state."""
    learner = Learner(tiny_qwen3(), SETTINGS)
    learner.step(batch())
    return learner


def trace(learner: Learner) -> tuple[Any, ...]:
    """All that a step changes."""
    return copy.deepcopy(
        (learner.version, learner.model.state_dict(), learner.optimizer.state_dict()["state"])
    )


def assert_untouched(learner: Learner, before: tuple[Any, ...]) -> None:
    """Version, weights and optimiser are bit-equal, and no gradient is left."""
    version, weights, state = trace(learner)
    assert version == before[0]
    assert all(torch.equal(weights[n], t) for n, t in before[1].items())
    assert all(torch.equal(state[i][k], t) for i, part in before[2].items() for k, t in part.items())
    assert all(p.grad is None for p in learner.model.parameters())


def test_a_loss_that_is_not_finite_stops_the_step() -> None:
    """A NaN log-prob is traced to its rollout alone; earlier micro-batches leave no gradient behind."""
    learner = trained()
    before = trace(learner)
    rollouts = batch()
    rollouts[3] = dataclasses.replace(rollouts[3], logprobs=(-1.0, math.nan))
    with pytest.raises(
        NonFiniteError, match=r"the loss of the step at version 1 is not finite.*rollouts 1:1:"
    ) as e:
        learner.step(rollouts)
    assert e.value.rollout_ids == ("1:1",)
    assert_untouched(learner, before)


def test_a_gradient_that_is_not_finite_stops_the_step() -> None:
    """An infinite gradient is traced to its micro-batch, and the learner trains on afterwards."""
    learner = trained()
    before = trace(learner)
    parameter = next(learner.model.parameters())
    calls: list[int] = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * math.inf if len(calls) == 2 else gradient

    handle = parameter.register_hook(spoil)
    with pytest.raises(NonFiniteError, match="the gradient of the step at version 1") as error:
        learner.step(batch())
    assert error.value.rollout_ids == ("1:0", "1:1")
    assert_untouched(learner, before)
    handle.remove()
    assert learner.step(batch()).version == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": math.nan}, "rollout 1:1 has reward nan"),
        ({"logprobs": (-1.0,)}, "rollout 1:1 has 1 log-probs for 2 tokens"),
        ({"token_ids": (3,) * 20, "logprobs": (-1.0,) * 20}, "rollout 1:1 is 22 tokens long"),
        (
            {"segments": make_rollout(0, 0, [3], 0.0, version=9).segments},
            "rollout 1:1 is of version 9, newer",
        ),
        ({"rollout_id": "1:0"}, "rollout 1:0 is in the batch twice"),
    ],
)
def test_bad_rollouts_stop_the_step(change: dict[str, Any], message: str) -> None:
    """A rollout that cannot be trained is named before anything is computed, also by a later update."""
    learner = trained()
    before = trace(learner)
    rollouts = batch()
    rollouts[3] = dataclasses.replace(rollouts[3], **change)
    for updates in (1, 2):
        with pytest.raises(UserError, match=message):
            learner.steps(rollouts, updates)
    assert_untouched(learner, before)


def test_an_empty_batch_and_uneven_updates_are_refused() -> None:
    """No rollouts, or groups that cannot be shared evenly, are errors with the numbers."""
    with pytest.raises(UserError, match="given no rollouts"):
        trained().step([])
    with pytest.raises(UserError, match="3 updates per batch cannot share 2 groups evenly"):
        trained().steps(batch(), 3)


def test_a_kl_term_needs_a_reference() -> None:
    """A KL coefficient without a reference model is refused."""
    with pytest.raises(UserError, match=r"kl_coefficient is 0\.1 but no reference"):
        Learner(tiny_qwen3(), dataclasses.replace(SETTINGS, kl_coefficient=0.1))


def test_half_precision_weights_are_refused() -> None:
    """bfloat16 weights would swallow small updates; the parameter and the fix are named."""
    with pytest.raises(UserError, match=r"is torch.bfloat16; .*dtype=torch.float32"):
        Learner(tiny_qwen3().to(torch.bfloat16), SETTINGS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"max_grad_norm": math.inf}, "max_grad_norm is inf"),
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"beta2": 1.0}, "beta2 is 1.0"),
        ({"aggregation": "mean"}, "aggregation is 'mean'; choose one of token, sequence, constant"),
        ({"aggregation": "constant"}, "max_tokens is 0 but aggregation is 'constant'"),
        ({"ratio_to": "old"}, "ratio_to is 'old'"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    """Each setting names its value and what is allowed."""
    with pytest.raises(UserError, match=message):
        LearnerSettings(**values)
