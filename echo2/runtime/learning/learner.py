"""The learner: rollouts in, one optimiser step and one version out.

Called by the live driver, which decides what is trained and when. Nothing here waits, samples or decides.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from echo2.errors import UserError
from echo2.policy.staleness import staleness
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.learning.advantages import GroupAdvantages, group_advantages
from echo2.runtime.learning.batch import MicroBatch, micro_batches
from echo2.runtime.learning.losses import (
    Denominator,
    aggregate,
    importance_ratio,
    importance_weight,
    kl_k3,
    ppo_clip,
)
from echo2.runtime.learning.metrics import StepMetrics, Tally
from echo2.runtime.learning.preparation import adamw, check_dtype, switch_off_dropout
from echo2.runtime.learning.ranks import Ranks, whole
from echo2.runtime.learning.scorer import Scorer
from echo2.runtime.learning.settings import LearnerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class NonFiniteError(UserError):
    """A loss or gradient is NaN or infinite. The step was not made; `rollout_ids` are the suspects."""

    def __init__(self, what: str, rollout_ids: Sequence[str], version: int) -> None:
        super().__init__(
            f"{what} of the step at version {version} is not finite; the weights are unchanged. It came from "
            f"rollouts {', '.join(rollout_ids)}: drop their groups, or lower the learning rate if it recurs"
        )
        self.rollout_ids = tuple(rollout_ids)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one optimiser step trains on; `micros` are this rank's share of the `micro_batches`.

    `proximal[i]` belongs to `micros[i]`; empty: the policy itself.
    """

    rollouts: Sequence[Rollout]
    advantages: GroupAdvantages
    micros: list[MicroBatch]
    proximal: list[Tensor]
    denominator: Denominator
    micro_batches: int


class Learner:
    """GRPO on a Hugging Face causal LM. `version` counts the optimiser steps finished and never goes back.

    The model is trained where it lies: float32 weights always, bfloat16 autocast on CUDA (that path has
    not been run on a GPU). Dropout is switched off, since a random mask would make every ratio noise.
    A model sharded by `fsdp.shard` is trained by all its ranks, each given the same rollouts.
    `reference` is the frozen model of the KL term. Raises UserError for settings that do not fit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: LearnerSettings,
        *,
        reference: PreTrainedModel | None = None,
        version: int = 0,
    ) -> None:
        if settings.kl_coefficient > 0 and reference is None:
            raise UserError(
                f"learner kl_coefficient is {settings.kl_coefficient} but no reference model is given; "
                "give one or set it to 0"
            )
        check_dtype(model)
        self.ranks = Ranks.of(model)
        self.model = model
        self.settings = settings
        self.version = version
        switch_off_dropout(model)
        model.train()
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        self.optimizer = adamw(model, settings)
        self._score = Scorer(model, settings.sampling, settings.max_logits)
        self._score_reference: Scorer | None = None
        if reference is not None:
            reference.requires_grad_(False).train(False)
            self._score_reference = Scorer(reference, settings.sampling, settings.max_logits)

    def step(self, rollouts: Sequence[Rollout]) -> StepMetrics:
        """Train once on whole groups; the version grows by one.

        Tokens that an environment wrote are context and nothing else. A batch whose groups all have zero
        variance moves no weight and yet counts as a step: it was consumed.
        Raises UserError (NonFiniteError) naming the rollouts for input that cannot be trained on; weights,
        optimiser and version are then untouched.
        """
        return self.steps(rollouts, 1)[0]

    def steps(self, rollouts: Sequence[Rollout], updates: int) -> list[StepMetrics]:
        """Train `updates` times, each on its share of the groups in the order given; one version each.

        The proximal policy is the one before the first update. All input is checked before that. Should a
        later update fail, the earlier ones stand and are counted in `version`.
        """
        batches = [self._prepare(part) for part in _split(rollouts, updates)]
        if updates > 1 and self.settings.ratio_to == "proximal":
            for batch in batches:
                batch.proximal.extend(self._logprobs(micro) for micro in batch.micros)
        return [self._update(batch) for batch in batches]

    def logprobs(self, rollouts: Sequence[Rollout]) -> dict[str, tuple[float, ...]]:
        """The policy's log-prob of each token a policy chose, by rollout id: to compare with an engine."""
        everyone = {rollout.rollout_id: 0.0 for rollout in rollouts}
        found: dict[str, tuple[float, ...]] = {}
        for micro in micro_batches(rollouts, everyone, self.settings.token_budget):
            micro = micro.to(self.model.device)
            scored = self._logprobs(micro)
            for row, name in enumerate(micro.rollout_ids):
                found[name] = tuple(scored[row][micro.mask[row]].tolist())
        return found

    @torch.no_grad()
    def _logprobs(self, micro: MicroBatch) -> Tensor:
        return self._score(micro).logprobs

    def _prepare(self, rollouts: Sequence[Rollout]) -> _Batch:
        settings = self.settings
        if not rollouts:
            raise UserError("a learner step was given no rollouts; it needs at least one whole group")
        for rollout in rollouts:
            if rollout.newest_version > self.version:
                raise UserError(
                    f"rollout {rollout.rollout_id} is of version {rollout.newest_version}, newer than the "
                    f"learner's {self.version}; two learners are counting versions, resume from the newer one"
                )
        advantages = group_advantages(rollouts, settings.advantage)
        micros = micro_batches(rollouts, advantages.values, settings.token_budget)
        denominator = Denominator(
            settings.aggregation,
            tokens=sum(micro.tokens for micro in micros),
            sequences=sum(micro.sequences for micro in micros),
            max_tokens=settings.max_tokens,
        )
        counting = [micro for micro in micros if micro.tokens]
        mine = [micro.to(self.model.device) for micro in self.ranks.share(counting)]
        return _Batch(rollouts, advantages, mine, [], denominator, len(counting))

    def _update(self, batch: _Batch) -> StepMetrics:
        began = time.perf_counter()
        tally, loss = Tally(), 0.0
        rate = self.settings.learning_rate * min(1.0, (self.version + 1) / max(self.settings.warmup_steps, 1))
        norm = None
        try:
            for index, micro in enumerate(batch.micros):
                proximal = batch.proximal[index] if batch.proximal else None
                loss += self._accumulate(micro, proximal, batch.denominator, tally)
            if batch.micros:
                norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        loss = self.ranks.total([loss])[0]
        tally.gather(self.ranks)
        trained_on = self.version
        self.version += 1
        return _metrics(batch, tally, trained_on, loss, norm, rate, time.perf_counter() - began)

    def _accumulate(
        self, micro: MicroBatch, proximal: Tensor | None, denominator: Denominator, tally: Tally
    ) -> float:
        """Add the gradient of one micro-batch; returns its share of the loss."""
        per_token = self._per_token_loss(micro, proximal, tally)
        bad = ~torch.where(micro.mask, per_token, 0.0).isfinite().all(dim=1)
        names = [name for name, is_bad in zip(micro.rollout_ids, bad.tolist()) if is_bad]
        if names := self.ranks.suspects(names):
            raise NonFiniteError("the loss", names, self.version)
        loss = aggregate(per_token, micro.mask, denominator)
        # FSDP averages gradients over the ranks, and the shares are to be summed
        torch.autograd.backward(loss * self.ranks.size)
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not math.isfinite(whole(norm)):
            raise NonFiniteError("the gradient", self.ranks.suspects(micro.rollout_ids), self.version)
        return float(loss.detach())

    def _per_token_loss(self, micro: MicroBatch, proximal: Tensor | None, tally: Tally) -> Tensor:
        settings = self.settings
        stats = self._score(micro)
        policy, old = stats.logprobs, micro.behaviour
        weight = torch.ones_like(policy)
        capped = torch.zeros_like(micro.mask)
        if settings.ratio_to == "proximal":
            # before the first update of a batch the proximal policy is the policy itself
            old = policy.detach() if proximal is None else proximal
            weight = importance_weight(old, micro.behaviour, settings.weight, settings.weight_cap)
            if settings.weight != "none":
                capped = importance_ratio(old, micro.behaviour) > settings.weight_cap
        clipped = ppo_clip(
            importance_ratio(policy, old), micro.advantages, settings.clip_low, settings.clip_high
        )
        loss = weight * clipped.loss
        if self._score_reference is not None:
            with torch.no_grad():
                reference = self._score_reference(micro).logprobs
            divergence = kl_k3(policy, reference)
            tally.add("kl_reference", divergence, micro.mask)
            if settings.kl_coefficient > 0:
                loss = loss + settings.kl_coefficient * divergence
        tally.add_policy(policy, micro.behaviour, micro.mask, micro.versions == self.version)
        tally.add_clip(clipped, capped, micro.mask)
        tally.add("entropy", stats.entropy, micro.mask)
        return loss


def _metrics(
    batch: _Batch, tally: Tally, version: int, loss: float, norm: float | None, rate: float, seconds: float
) -> StepMetrics:
    lags = Counter(staleness(version, rollout.oldest_version) for rollout in batch.rollouts)
    return StepMetrics(
        version=version + 1,
        rollouts=len(batch.rollouts),
        groups=batch.advantages.groups,
        zero_variance_groups=len(batch.advantages.zero_variance),
        trained_rollouts=batch.denominator.sequences,
        tokens=tally.tokens,
        micro_batches=batch.micro_batches,
        aggregation=batch.denominator.aggregation,
        loss_denominator=batch.denominator.value,
        loss=loss if batch.micros else None,
        reward_mean=statistics.fmean(rollout.reward for rollout in batch.rollouts),
        advantage_std=batch.advantages.std,
        ratio_mean=tally.mean("ratio"),
        ratio_max=tally.ratio_max if tally.tokens else None,
        clip_share=tally.mean("clip"),
        capped_share=tally.mean("capped"),
        entropy=tally.mean("entropy"),
        mismatch_kl=tally.mean("mismatch_kl"),
        mismatch_tokens=tally.mismatch_tokens,
        behaviour_kl=tally.mean("behaviour_kl"),
        kl_reference=tally.mean("kl_reference"),
        grad_norm=norm,
        learning_rate=rate,
        staleness=dict(sorted(lags.items())),
        seconds=seconds,
    )


def _split(rollouts: Sequence[Rollout], updates: int) -> list[list[Rollout]]:
    """Equal numbers of whole groups per update, in order of first appearance."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group_id, []).append(rollout)
    if updates < 1 or len(groups) % updates:
        raise UserError(
            f"{updates} updates per batch cannot share {len(groups)} groups evenly; choose a divisor of it"
        )
    members, share = list(groups.values()), len(groups) // updates
    parts = [members[at : at + share] for at in range(0, len(members), share)] if members else [[]]
    return [[rollout for group in part for rollout in group] for part in parts]
