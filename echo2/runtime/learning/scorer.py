"""Runs a causal LM over a micro-batch and scores the tokens that were sampled.

Called by the learner for the policy and for the reference. Only positions that count reach the LM head.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.nn.functional import linear

from echo2.runtime.learning.batch import MicroBatch
from echo2.runtime.learning.logprobs import TokenStats, stats_of_hidden, stats_of_logits
from echo2.runtime.learning.sampling import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# set by `fsdp.shard`, since a sharded model's body cannot be run by itself
PLAIN_HEAD = "echo2_plain_head"


class Scorer:
    """Log-probs and entropy of a micro-batch's tokens, [B, L-1] each and 0 where the mask is False.

    The LM head is applied in blocks (`logprobs.stats_of_hidden`) when the model is "body, then a linear
    head without bias", which is tried once on a few tokens; for any other model (soft-capped or scaled
    logits, a head with bias) whole logits are taken from the model.

    On CPU everything is float32. On CUDA the body runs under bfloat16 autocast with float32 weights and
    float32 log-softmax; that path has not been run on a GPU.
    """

    def __init__(self, model: PreTrainedModel, sampling: Sampling, max_logits: int) -> None:
        self.model = model
        self.sampling = sampling
        self.max_logits = max_logits
        known: bool | None = getattr(model, PLAIN_HEAD, None)
        self.plain_head = plain_head(model) if known is None else known
        self._stats: Callable[..., tuple[Tensor, Tensor]]
        self._stats = self._of_hidden if self.plain_head else self._of_logits
        if self.plain_head and isinstance(model, FSDPModule):
            # FSDP gathers the head's weight only around a forward method of the model itself
            forward: Any = model
            forward.echo2_stats = self._of_hidden
            register_fsdp_forward_method(model, "echo2_stats")
            self._stats = forward.echo2_stats

    def __call__(self, micro: MicroBatch) -> TokenStats:
        """Score one micro-batch; gradients flow unless they are switched off outside."""
        inputs: dict[str, Any] = {
            "input_ids": micro.input_ids,
            "attention_mask": micro.attention_mask,
            "use_cache": False,
        }
        logprobs, entropy = self._stats(inputs, micro.mask, micro.targets[micro.mask])
        return TokenStats(_spread(logprobs, micro.mask), _spread(entropy, micro.mask))

    def _of_hidden(self, inputs: dict[str, Any], mask: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with self._autocast():
            states = self.model.base_model(**inputs).last_hidden_state
        weight = _head(self.model).weight
        stats = stats_of_hidden(states[:, :-1][mask], weight, targets, self.sampling, self.max_logits)
        return stats.logprobs, stats.entropy

    def _of_logits(self, inputs: dict[str, Any], mask: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with self._autocast():
            logits = self.model(**inputs).logits
        stats = stats_of_logits(logits[:, :-1][mask], targets, self.sampling)
        return stats.logprobs, stats.entropy

    def _autocast(self) -> AbstractContextManager[object]:
        if self.model.device.type != "cuda":
            return nullcontext()
        return torch.autocast("cuda", torch.bfloat16)


def _head(model: PreTrainedModel) -> Any:
    return model.get_output_embeddings()  # type: ignore[no-untyped-call]


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=values.dtype, device=mask.device).masked_scatter(mask, values)


@torch.no_grad()
def plain_head(model: PreTrainedModel) -> bool:
    """Whether the model's logits are its body's last hidden states times the LM head's weight."""
    head = _head(model)
    if not isinstance(head, nn.Linear) or head.bias is not None or model.base_model is model:
        return False
    ids = torch.arange(min(4, head.weight.shape[0]), device=model.device)[None]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits
    mine = linear(hidden, head.weight.to(hidden.dtype))
    return mine.shape == logits.shape and torch.allclose(mine, logits, rtol=1e-4, atol=1e-4)
