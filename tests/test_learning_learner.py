"""One optimiser step: its gradient, its metrics and its version."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from echo2.runtime.data.rollout import Rollout, Segment, Span
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.sampling import Sampling
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.testing import make_rollout, sample_groups, tiny_qwen3

PLAIN = LearnerSettings(learning_rate=1e-3, max_grad_norm=1e9)
PROMPTS = [[1, 2], [3, 4, 5, 6], [7]]


def drawn(model: PreTrainedModel, **kwargs: Any) -> list[Rollout]:
    """Three groups of four completions of different lengths, drawn from the model."""
    torch.manual_seed(5)
    rollouts: list[Rollout] = []
    for group, prompt in enumerate(PROMPTS):
        rollouts += sample_groups(
            model, [prompt], 4, 3 + 2 * group, lambda ids: float(sum(ids) % 7), first_group=group, **kwargs
        )
    return rollouts


def moved(rollouts: list[Rollout], by: float) -> list[Rollout]:
    """The same with all behaviour log-probs moved by a constant."""
    return [dataclasses.replace(r, logprobs=tuple(x + by for x in r.logprobs)) for r in rollouts]


def gradients(settings: LearnerSettings, rollouts: list[Rollout], **kwargs: Any) -> dict[str, Tensor]:
    """The gradient that the optimiser of a fresh learner is given for one step."""
    learner = Learner(tiny_qwen3(), settings, **kwargs)
    found: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        found.update({n: p.grad.clone() for n, p in learner.model.named_parameters() if p.grad is not None})

    learner.optimizer.register_step_pre_hook(keep)
    learner.step(rollouts)
    return found


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], factor: float = 1.0) -> None:
    """Gradients agree to float32 accuracy."""
    assert set(got) == set(wanted) and got
    for name, value in got.items():
        torch.testing.assert_close(value, wanted[name] * factor, rtol=1e-3, atol=2e-6)


def naive(rollouts: list[Rollout], aggregation: str) -> dict[str, Tensor]:
    """The GRPO gradient with plain Hugging Face logits, one sequence at a time, none of echo2's parts."""
    model = tiny_qwen3()
    total = torch.zeros(())
    tokens, sequences = sum(r.tokens for r in rollouts), len(rollouts)
    for rollout in rollouts:
        rewards = torch.tensor([r.reward for r in rollouts if r.group_id == rollout.group_id])
        advantage = (rollout.reward - rewards.mean()) / (rewards.std() + 1e-4)
        ids = torch.tensor([rollout.prompt_ids + rollout.token_ids])
        logp = model(ids).logits[0].log_softmax(-1)
        at = range(len(rollout.prompt_ids) - 1, ids.shape[1] - 1)
        picked = torch.stack([logp[t, ids[0, t + 1]] for t in at])
        ratio = (picked - torch.tensor(rollout.logprobs)).exp()
        losses = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        divisor = {"token": tokens, "sequence": sequences * rollout.tokens, "constant": sequences * 9}
        total = total + losses.sum() / divisor[aggregation]
    total.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_gradient_is_that_of_the_formula(aggregation: Any) -> None:
    """Off-policy by a mixed amount, the step's gradient equals a plain loop over sequences."""
    rollouts = drawn(tiny_qwen3())
    rollouts = moved(rollouts[:4], 0.3) + moved(rollouts[4:8], -0.5) + rollouts[8:]
    settings = dataclasses.replace(PLAIN, aggregation=aggregation, max_tokens=9)
    assert_same(gradients(settings, rollouts), naive(rollouts, aggregation))


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_micro_batches_do_not_change_the_gradient(aggregation: Any) -> None:
    """One micro-batch and four give the same gradient, whatever the aggregation."""
    rollouts = drawn(tiny_qwen3())
    one = dataclasses.replace(PLAIN, aggregation=aggregation, max_tokens=9)
    four = dataclasses.replace(one, token_budget=30)
    assert Learner(tiny_qwen3(), one).step(rollouts).micro_batches == 1
    assert Learner(tiny_qwen3(), four).step(rollouts).micro_batches == 4
    assert_same(gradients(one, rollouts), gradients(four, rollouts))


def test_gradient_checkpointing_does_not_change_the_gradient() -> None:
    """Recomputed activations give the same gradient."""
    rollouts = drawn(tiny_qwen3())
    recomputed = dataclasses.replace(PLAIN, gradient_checkpointing=True)
    assert_same(gradients(PLAIN, rollouts), gradients(recomputed, rollouts))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.2, top_k=5), Sampling(top_p=0.8)],
)
def test_learner_agrees_with_the_sampler(sampling: Sampling) -> None:
    """Recomputed log-probs equal those of Hugging Face's `generate` within 1e-4, truncation included."""
    model = tiny_qwen3()
    rollouts = drawn(model, sampling=sampling)
    learner = Learner(model, dataclasses.replace(PLAIN, sampling=sampling, token_budget=30))
    found = learner.logprobs(rollouts)
    for rollout in rollouts:
        assert found[rollout.rollout_id] == pytest.approx(rollout.logprobs, abs=1e-4)


def test_on_policy_metrics() -> None:
    """On the version's own rollouts the ratio is 1, nothing is clipped and the mismatch is 0."""
    learner = Learner(tiny_qwen3(), PLAIN)
    rollouts = drawn(learner.model)
    metrics = learner.step(rollouts)
    assert (metrics.version, learner.version) == (1, 1)
    assert metrics.ratio_mean == pytest.approx(1, abs=1e-4)
    assert metrics.ratio_max == pytest.approx(1, abs=1e-3)
    assert metrics.clip_share == 0
    assert metrics.mismatch_kl == pytest.approx(0, abs=1e-6)
    assert metrics.mismatch_tokens == metrics.tokens == sum(r.tokens for r in rollouts)
    assert metrics.loss_denominator == metrics.tokens
    assert metrics.staleness == {0: 12}
    assert metrics.reward_mean == pytest.approx(sum(r.reward for r in rollouts) / 12)
    assert metrics.entropy is not None and 0 < metrics.entropy < math.log(32)
    assert metrics.grad_norm is not None and metrics.grad_norm > 0
    json.dumps(metrics.as_dict(), allow_nan=False)


def test_off_policy_metrics_by_hand() -> None:
    """All behaviour log-probs lower by ln 2: ratios 2, KL 1 - ln 2, clipped exactly where A > 0."""
    learner = Learner(tiny_qwen3(), PLAIN)
    rollouts = moved(drawn(learner.model), -math.log(2))
    mean = {g: sum(r.reward for r in rollouts if r.group_id == g) / 4 for g in range(3)}
    above = sum(r.tokens for r in rollouts if r.reward > mean[r.group_id])
    metrics = learner.step(rollouts)
    assert metrics.ratio_mean == pytest.approx(2, rel=1e-3)
    assert metrics.behaviour_kl == pytest.approx(1 - math.log(2), rel=1e-3)
    assert metrics.clip_share == pytest.approx(above / metrics.tokens)


def test_mismatch_is_measured_on_fresh_rollouts_only() -> None:
    """Stale rollouts and those of several versions are in the staleness histogram, not in the mismatch."""
    learner = Learner(tiny_qwen3(), PLAIN, version=3)
    rollouts = drawn(learner.model)
    old = [dataclasses.replace(r, segments=(Segment(0, 1),)) for r in rollouts[:4]]
    mixed = [dataclasses.replace(r, segments=(Segment(0, 2), Segment(1, 3))) for r in rollouts[4:8]]
    new = [dataclasses.replace(r, segments=(Segment(0, 3),)) for r in rollouts[8:]]
    metrics = learner.step(moved(old + mixed, 1.0) + new)
    assert metrics.staleness == {0: 4, 1: 4, 2: 4}
    assert metrics.mismatch_tokens == sum(r.tokens for r in new)
    assert metrics.mismatch_kl == pytest.approx(0, abs=1e-6)
    assert metrics.behaviour_kl is not None and metrics.behaviour_kl > 0.1


def test_truncated_importance_sampling_scales_the_gradient() -> None:
    """Against an engine that reports a fourth of each probability the weight is 4, truncated to 2."""
    rollouts = moved(drawn(tiny_qwen3()), -math.log(4))
    ignored = dataclasses.replace(PLAIN, ratio_to="proximal", weight="none")
    plain = gradients(ignored, rollouts)
    assert_same(gradients(dataclasses.replace(ignored, weight="truncate"), rollouts), plain, 2.0)
    wide = dataclasses.replace(ignored, weight="truncate", weight_cap=5.0)
    assert_same(gradients(wide, rollouts), plain, 4.0)
    masked = dataclasses.replace(ignored, weight="mask")
    assert_same(gradients(masked, rollouts), plain, 0.0)
    assert Learner(tiny_qwen3(), masked).step(rollouts).capped_share == 1.0


def test_each_update_of_a_batch_is_a_version() -> None:
    """Three updates make three versions, and the later groups are trained one and two versions stale."""
    learner = Learner(tiny_qwen3(), PLAIN)
    metrics = learner.steps(drawn(learner.model), 3)
    assert [m.version for m in metrics] == [1, 2, 3] and learner.version == 3
    assert [m.staleness for m in metrics] == [{0: 4}, {1: 4}, {2: 4}]


def test_proximal_policy_is_the_one_before_the_first_update() -> None:
    """However wrong the engine's log-probs, unweighted decoupled PPO equals PPO against the true ones."""
    rollouts = drawn(tiny_qwen3())
    fast = dataclasses.replace(PLAIN, learning_rate=1e-2)
    true = Learner(tiny_qwen3(), fast)
    true_metrics = true.steps(rollouts, 3)
    decoupled = Learner(tiny_qwen3(), dataclasses.replace(fast, ratio_to="proximal", weight="none"))
    metrics = decoupled.steps(moved(rollouts, -0.7), 3)
    assert true_metrics[2].clip_share == metrics[2].clip_share != 0
    assert [m.loss for m in metrics] == pytest.approx([m.loss for m in true_metrics], abs=1e-3)


def test_zero_variance_groups_do_not_dilute() -> None:
    """A group of equal rewards changes the count, the reward mean and nothing of the gradient."""
    rollouts = drawn(tiny_qwen3())
    flat = [make_rollout(9, i, [4, 4], 1.0) for i in range(4)]
    metrics = Learner(tiny_qwen3(), PLAIN).step(rollouts + flat)
    assert (metrics.groups, metrics.zero_variance_groups) == (4, 1)
    assert (metrics.rollouts, metrics.trained_rollouts) == (16, 12)
    assert metrics.tokens == metrics.loss_denominator == sum(r.tokens for r in rollouts)
    assert_same(gradients(PLAIN, rollouts + flat), gradients(PLAIN, rollouts))


def test_a_batch_without_variance_is_a_step_that_moves_nothing() -> None:
    """The version grows, no weight moves, though Adam has momentum, and what was not measured is None."""
    learner = Learner(tiny_qwen3(), PLAIN)
    learner.step(drawn(learner.model))
    before = copy.deepcopy(learner.model.state_dict())
    metrics = learner.step([make_rollout(9, i, [4, 4], 1.0) for i in range(4)])
    assert learner.version == metrics.version == 2
    assert all(torch.equal(before[n], t) for n, t in learner.model.state_dict().items())
    assert metrics.loss is metrics.ratio_max is metrics.grad_norm is metrics.advantage_std is None
    json.dumps(metrics.as_dict(), allow_nan=False)


def test_tokens_of_the_environment_carry_no_gradient() -> None:
    """Tokens of its spans may have any recorded log-prob: neither count nor gradient changes."""
    drawn_alone = drawn(tiny_qwen3())
    rollouts = [dataclasses.replace(r, environment=(Span(1, 2),)) for r in drawn_alone]
    wrong = [dataclasses.replace(r, logprobs=(r.logprobs[0], -50.0, *r.logprobs[2:])) for r in rollouts]
    left, right = Learner(tiny_qwen3(), PLAIN), Learner(tiny_qwen3(), PLAIN)
    metrics = left.step(rollouts)
    assert metrics.tokens == sum(r.tokens - 1 for r in rollouts)
    assert metrics.loss == right.step(wrong).loss
    for name, tensor in left.model.state_dict().items():
        assert torch.equal(tensor, right.model.state_dict()[name])


def test_reference_pulls_back() -> None:
    """At the reference itself the KL and its gradient are 0; away from it a step lowers the KL."""
    rollouts = drawn(tiny_qwen3())
    bound = dataclasses.replace(PLAIN, kl_coefficient=100.0)
    assert_same(gradients(bound, rollouts, reference=tiny_qwen3()), gradients(PLAIN, rollouts))
    learner = Learner(tiny_qwen3(), bound, reference=tiny_qwen3(seed=1))
    found = [learner.step(rollouts).kl_reference for _ in range(4)]
    assert found[0] is not None and found[3] is not None and 0 < found[3] < found[0]


def test_warm_up_and_clipping() -> None:
    """The rate rises by version to its value, and the norm reported is the one before clipping."""
    learner = Learner(tiny_qwen3(), dataclasses.replace(PLAIN, warmup_steps=4, max_grad_norm=1e-3))
    metrics = [learner.step(drawn(learner.model)) for _ in range(5)]
    assert [m.learning_rate for m in metrics] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])
    assert metrics[0].grad_norm is not None and metrics[0].grad_norm > 1e-3


def test_any_causal_lm_is_scored() -> None:
    """A model with soft-capped logits is noticed and scored from its own logits."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        final_logit_softcapping=0.5,
        initializer_range=0.5,
        attn_implementation="eager",
        eos_token_id=None,
        bos_token_id=None,
    )
    model = Gemma2ForCausalLM(config).eval()
    rollouts = drawn(model)
    found = Learner(model, PLAIN).logprobs(rollouts)
    for rollout in rollouts:
        assert found[rollout.rollout_id] == pytest.approx(rollout.logprobs, abs=1e-4)
