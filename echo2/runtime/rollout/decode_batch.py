"""Running sequences of the transformers engine: one KV cache, rows join and leave between decode steps.

Rows of different lengths share the cache right-aligned (left padding). Each row draws from its own random
stream, so what else runs beside it does not change its draws. Used from one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from echo2.errors import UserError
from echo2.runtime.data.rollout import Segment
from echo2.runtime.learning.logprobs import truncated
from echo2.runtime.learning.sampling import Sampling
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, rollout_seed

PREFILL_TOKENS = 16_384
"""Padded prompt tokens of one prefill at most (ours): bounds its activations."""


@dataclass(slots=True)
class Row:
    """One running sequence."""

    request: GroupRequest
    index: int
    draws: random.Random
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @classmethod
    def of(cls, request: GroupRequest, index: int) -> Row:
        """A row that has not begun, with the rollout's own random stream."""
        seed = rollout_seed(request.sampling.seed, index)
        return cls(request, index, random.Random(seed))

    def append(self, token: int, logprob: float, version: int) -> None:
        """Record a sampled token."""
        if not self.segments or self.segments[-1].version != version:
            self.segments.append(Segment(len(self.token_ids), version))
        self.token_ids.append(token)
        self.logprobs.append(logprob)

    @property
    def finish_reason(self) -> str | None:
        """Why it has ended, or None while it runs."""
        sampling = self.request.sampling
        if self.token_ids[-1] in sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= sampling.max_tokens else None

    def finished(self, reason: str) -> GeneratedRollout:
        """The rollout as it stands."""
        return GeneratedRollout(
            self.request.group_id,
            self.index,
            tuple(self.token_ids),
            tuple(self.logprobs),
            tuple(self.segments),
            reason,
        )


class DecodeBatch:
    """The rows that run and their KV cache. `admit` prefills, `step` makes one token for every row."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = model.device
        self.rows: list[Row] = []
        self._cache: DynamicCache | None = None
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=self._device)

    @torch.inference_mode()
    def admit(self, rows: list[Row], version: int) -> None:
        """Prefill the prompts of new rows (each prompt once) and sample their first tokens."""
        waiting = list(rows)
        while waiting:
            count, width = 0, 0
            prompts: dict[tuple[int, ...], int] = {}
            for row in waiting:
                prompt = row.request.prompt_ids
                wider = max(width, len(prompt))
                if count and (len(prompts) + (prompt not in prompts)) * wider > PREFILL_TOKENS:
                    break
                prompts.setdefault(prompt, len(prompts))
                count, width = count + 1, wider
            self._prefill(waiting[:count], prompts, width, version)
            waiting = waiting[count:]

    @torch.inference_mode()
    def step(self, version: int) -> None:
        """One more token for every row."""
        last = torch.tensor([[row.token_ids[-1]] for row in self.rows], device=self._device)
        positions = self._mask.sum(dim=1, keepdim=True)
        self._mask = pad(self._mask, (0, 1), value=1)
        out = self._model(
            input_ids=last,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        sample(out.logits[:, -1], self.rows, version)

    def take_finished(self) -> list[tuple[Row, GeneratedRollout]]:
        """Remove and return the rows that have ended."""
        done = [(row, row.finished(reason)) for row in self.rows if (reason := row.finish_reason)]
        if done:
            self.keep([i for i, row in enumerate(self.rows) if row.finish_reason is None])
        return done

    @torch.inference_mode()
    def keep(self, indices: list[int]) -> None:
        """Keep the rows at `indices`, drop the others, and the padding nobody needs any more."""
        if len(indices) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in indices]
        if not self.rows or self._cache is None:
            self._cache = None
            self._mask = self._mask[:0, :0]
            return
        at = torch.tensor(indices, device=self._device)
        mask = self._mask.index_select(0, at)
        first = int(mask.any(dim=0).int().argmax())
        self._mask = mask[:, first:]
        _change(self._cache, lambda tensor: tensor.index_select(0, at)[:, :, first:])

    def _prefill(
        self, rows: list[Row], prompts: dict[tuple[int, ...], int], width: int, version: int
    ) -> None:
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for prompt, at in prompts.items():
            ids[at, width - len(prompt) :] = torch.tensor(prompt)
            mask[at, width - len(prompt) :] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        cache = DynamicCache()
        out = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        of_row = torch.tensor([prompts[row.request.prompt_ids] for row in rows], device=self._device)
        _change(cache, lambda tensor: tensor.index_select(0, of_row))
        sample(out.logits[:, -1].index_select(0, of_row), rows, version)
        self._join(rows, cache, mask.index_select(0, of_row))

    def _join(self, rows: list[Row], cache: DynamicCache, mask: Tensor) -> None:
        """Put freshly prefilled rows below the running ones, both right-aligned."""
        if self._cache is None:
            self.rows, self._cache, self._mask = list(rows), cache, mask
            return
        width = max(mask.shape[1], self._mask.shape[1])
        more, new = width - self._mask.shape[1], width - mask.shape[1]
        self._mask = torch.cat([pad(self._mask, (more, 0)), pad(mask, (new, 0))])
        _change(cache, lambda tensor: pad(tensor, (0, 0, new, 0)))
        _change(self._cache, lambda tensor: pad(tensor, (0, 0, more, 0)))
        for mine, fresh in zip(_layers(self._cache), _layers(cache), strict=True):
            mine.keys = torch.cat([mine.keys, fresh.keys])
            mine.values = torch.cat([mine.values, fresh.values])
        self.rows.extend(rows)


def _layers(cache: DynamicCache) -> list[Any]:
    """The cache's layers, each with keys and values [rows, heads, tokens, head size]."""
    other = [layer for layer in cache.layers if not isinstance(layer, DynamicLayer)]
    if other:
        raise UserError(
            f"the transformers engine cannot batch this model's cache ({type(other[0]).__name__}); "
            "use the vllm engine"
        )
    return list(cache.layers)


def _change(cache: DynamicCache, change: Callable[[Tensor], Tensor]) -> None:
    for layer in _layers(cache):
        layer.keys, layer.values = change(layer.keys), change(layer.values)


def sample(logits: Tensor, rows: list[Row], version: int) -> None:
    """Draw one token for each row from its sampling distribution; logits [rows, V].

    Inverse transform of the float32 log-softmax (summed up in float64), one uniform a row and token.
    """
    by_distribution: dict[Sampling, list[int]] = {}
    for i, row in enumerate(rows):
        by_distribution.setdefault(row.request.sampling.distribution, []).append(i)
    for distribution, members in by_distribution.items():
        part = logits if len(members) == len(rows) else logits[members]
        logp = truncated(part.float(), part.argmax(dim=-1), distribution).log_softmax(dim=-1)
        total = logp.double().exp_().cumsum_(dim=-1)
        uniform = torch.tensor([[rows[i].draws.random()] for i in members], dtype=torch.float64)
        at = torch.searchsorted(total, uniform.to(total.device) * total[:, -1:], right=True)
        at.clamp_(max=logits.shape[-1] - 1)
        picked = logp.gather(-1, at)[:, 0].tolist()
        for i, token, logprob in zip(members, at[:, 0].tolist(), picked, strict=True):
            rows[i].append(token, logprob, version)
