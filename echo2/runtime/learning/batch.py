"""Rollouts to padded tensors: micro-batches of similar lengths under a token budget.

Called by the learner. Sequences are `prompt + completion + padding`; position t predicts token t + 1, so
everything per token has one column less than `input_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout

NO_SINGLE_VERSION = -1


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B sequences padded to L tokens.

    `input_ids`, `attention_mask` [B, L]; `mask` [B, L-1] is True where the predicted token is one the
    policy chose, and `behaviour` [B, L-1] is its recorded log-prob there, 0 elsewhere; `advantages` [B];
    `versions` [B] is the version that generated the whole sequence, -1 when several did.
    """

    rollout_ids: tuple[str, ...]
    input_ids: Tensor
    attention_mask: Tensor
    mask: Tensor
    behaviour: Tensor
    advantages: Tensor
    versions: Tensor

    @property
    def targets(self) -> Tensor:
        """The token that each position predicts [B, L-1]."""
        return self.input_ids[:, 1:]

    @property
    def tokens(self) -> int:
        """Tokens that count in the loss."""
        return int(self.mask.sum())

    @property
    def sequences(self) -> int:
        """Sequences with at least one token that counts."""
        return int(self.mask.any(dim=1).sum())

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        names = ("input_ids", "attention_mask", "mask", "behaviour", "advantages", "versions")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def micro_batches(
    rollouts: Sequence[Rollout],
    advantages: Mapping[str, float],
    token_budget: int,
) -> list[MicroBatch]:
    """Micro-batches of the rollouts that have an advantage, longest first.

    `token_budget` bounds rows x padded length of each (tokens). What an environment wrote is context
    only. Raises UserError, naming the rollout, for one that is empty, longer than the budget or whose
    log-probs do not match its tokens.
    """
    chosen = [rollout for rollout in rollouts if rollout.rollout_id in advantages]
    for rollout in chosen:
        _check(rollout, token_budget)
    chosen.sort(key=_length, reverse=True)
    parts: list[list[Rollout]] = []
    for rollout in chosen:
        if not parts or (len(parts[-1]) + 1) * _length(parts[-1][0]) > token_budget:
            parts.append([])
        parts[-1].append(rollout)
    return [_pad(part, advantages) for part in parts]


def _length(rollout: Rollout) -> int:
    return len(rollout.prompt_ids) + len(rollout.token_ids)


def _check(rollout: Rollout, token_budget: int) -> None:
    name, tokens = rollout.rollout_id, len(rollout.token_ids)
    if not rollout.prompt_ids or not tokens:
        raise UserError(
            f"rollout {name} has {len(rollout.prompt_ids)} prompt and {tokens} completion tokens; training "
            "needs at least one of each, drop it at the door"
        )
    if len(rollout.logprobs) != tokens:
        raise UserError(
            f"rollout {name} has {len(rollout.logprobs)} log-probs for {tokens} tokens; it needs one each, "
            "check the engine"
        )
    if _length(rollout) > token_budget:
        raise UserError(
            f"rollout {name} is {_length(rollout)} tokens long with its prompt, above the learner's token "
            f"budget of {token_budget} per micro-batch; raise the budget or lower the completion limit"
        )


def _pad(part: list[Rollout], advantages: Mapping[str, float]) -> MicroBatch:
    rows, width = len(part), _length(part[0])
    input_ids = torch.zeros(rows, width, dtype=torch.long)
    attention_mask = torch.zeros(rows, width, dtype=torch.long)
    mask = torch.zeros(rows, width - 1, dtype=torch.bool)
    behaviour = torch.zeros(rows, width - 1)
    for row, rollout in enumerate(part):
        length, start = _length(rollout), len(rollout.prompt_ids) - 1
        input_ids[row, :length] = torch.tensor(rollout.prompt_ids + rollout.token_ids)
        attention_mask[row, :length] = 1
        mask[row, start : length - 1] = torch.tensor(rollout.chosen, dtype=torch.bool)
        behaviour[row, start : length - 1] = torch.tensor(rollout.logprobs)
    return MicroBatch(
        rollout_ids=tuple(rollout.rollout_id for rollout in part),
        input_ids=input_ids,
        attention_mask=attention_mask,
        mask=mask,
        # what an environment wrote has no behaviour log-prob, whatever was recorded there
        behaviour=torch.where(mask, behaviour, 0.0),
        advantages=torch.tensor([advantages[rollout.rollout_id] for rollout in part]),
        versions=torch.tensor([_single_version(rollout) for rollout in part]),
    )


def _single_version(rollout: Rollout) -> int:
    versions = {segment.version for segment in rollout.segments}
    return versions.pop() if len(versions) == 1 else NO_SINGLE_VERSION
