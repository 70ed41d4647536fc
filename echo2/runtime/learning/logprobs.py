"""Log-probs of sampled tokens under the sampling distribution, and its entropy, in bounded memory.

Called by the learner. Logits of N tokens over V entries are the largest tensor of a training step; here
never more than `max_logits` of them exist at a time. Without truncation the vocabulary is streamed in
column blocks (one log-sum-exp pass, recomputed in the backward pass); top-k and top-p need whole rows, so
there the tokens are taken in row blocks, recomputed likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from echo2.runtime.learning.sampling import Sampling


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Per token [N]: log-prob of the sampled token, and the distribution's entropy (nats, no gradient)."""

    logprobs: Tensor
    entropy: Tensor


def truncated(logits: Tensor, targets: Tensor, sampling: Sampling) -> Tensor:
    """Logits divided by the temperature, -inf outside the support of top-k and then top-p [N, V].

    The order and the ties are those of vLLM and Hugging Face: an entry equal to the k-th largest stays;
    top-p keeps the smallest set of the most probable entries with a sum of at least p. `targets` [N] always
    stay in (ours): a stale policy may have cut what was sampled, and log 0 has no gradient.
    """
    scaled = logits / sampling.temperature
    with torch.no_grad():
        out = torch.zeros_like(scaled, dtype=torch.bool)
        if 0 < sampling.top_k < scaled.shape[-1]:
            least = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
            out |= scaled < least
        if sampling.top_p < 1:
            ordered, index = scaled.masked_fill(out, -torch.inf).sort(dim=-1)
            beyond = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
            beyond[:, -1] = False
            out |= torch.zeros_like(out).scatter(-1, index, beyond)
        out.scatter_(-1, targets[:, None], False)
    return scaled.masked_fill(out, -torch.inf)


def stats_of_logits(logits: Tensor, targets: Tensor, sampling: Sampling) -> TokenStats:
    """Stats of N tokens from their whole logits [N, V]; `targets` [N]. In float32 whatever comes in."""
    scaled = truncated(logits.float(), targets, sampling)
    logp = scaled.log_softmax(dim=-1)
    with torch.no_grad():
        entropy = -torch.where(logp.isneginf(), 0.0, logp.exp() * logp).sum(dim=-1)
    return TokenStats(logp.gather(-1, targets[:, None])[:, 0], entropy)


def stats_of_hidden(
    hidden: Tensor, weight: Tensor, targets: Tensor, sampling: Sampling, max_logits: int
) -> TokenStats:
    """Stats of N tokens from last hidden states [N, H] and the LM head's weight [V, H].

    At most `max_logits` float32 logits (at least one row or one column) exist at a time, forward and
    backward. Gradients flow to `hidden` and `weight`.
    """
    rows, vocab = hidden.shape[0], weight.shape[0]
    if not sampling.truncates:
        columns = max(1, max_logits // max(rows, 1))
        logp, entropy = _Streamed.apply(  # type: ignore[no-untyped-call]
            hidden, weight, targets, sampling.temperature, columns
        )
        return TokenStats(logp, entropy)
    step = max(1, max_logits // vocab)

    def block(states: Tensor, head: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        stats = stats_of_logits(linear(states, head.to(states.dtype)), wanted, sampling)
        return stats.logprobs, stats.entropy

    parts = [
        checkpoint(block, hidden[at : at + step], weight, targets[at : at + step], use_reentrant=False)
        for at in range(0, rows, step)
    ]
    return TokenStats(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))


class _Streamed(torch.autograd.Function):
    """log softmax(h W' / T)[target] by blocks of columns.

    With running maximum m, s = sum exp(z - m), u = sum z exp(z - m): log-sum-exp = m + log s and
    entropy = log-sum-exp - u / s (Milakov and Gimelshein, arXiv 1805.02867, for s; u likewise, ours).
    Backward: d logp / d z_j = [j = target] - softmax(z)_j.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, columns: int
    ) -> tuple[Tensor, Tensor]:
        rows = hidden.shape[0]
        m = torch.full((rows,), -torch.inf, device=hidden.device)
        s, u, picked = torch.zeros_like(m), torch.zeros_like(m), torch.zeros_like(m)
        for at in range(0, weight.shape[0], columns):
            z = _block_logits(hidden, weight[at : at + columns], temperature)
            top = torch.maximum(m, z.amax(dim=-1))
            shrink = torch.exp(m - top)
            e = torch.exp(z - top[:, None])
            s, u, m = s * shrink + e.sum(-1), u * shrink + (e * z).sum(-1), top
            inside, local = _inside(targets, at, z.shape[1])
            picked = torch.where(inside, z.gather(-1, local[:, None])[:, 0], picked)
        lse = m + s.log()
        ctx.save_for_backward(hidden, weight, targets, lse)
        ctx.temperature, ctx.columns = temperature, columns
        entropy = lse - u / s
        ctx.mark_non_differentiable(entropy)
        return picked - lse, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, lse = ctx.saved_tensors
        by_row = (grads[0] / ctx.temperature)[:, None]
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)  # sums many blocks: not in bf16
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for at in range(0, weight.shape[0], ctx.columns):
            part = weight[at : at + ctx.columns]
            g = -torch.exp(_block_logits(hidden, part, ctx.temperature) - lse[:, None])
            inside, local = _inside(targets, at, g.shape[1])
            g.scatter_add_(-1, local[:, None], inside[:, None].to(g.dtype))
            g = (g * by_row).to(hidden.dtype)
            grad_hidden += g @ part.to(hidden.dtype)
            if grad_weight is not None:
                grad_weight[at : at + ctx.columns] = (g.T @ hidden).to(weight.dtype)
        return grad_hidden.to(hidden.dtype), grad_weight, None, None, None


def _block_logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return linear(hidden, weight.to(hidden.dtype)).float() / temperature


def _inside(targets: Tensor, at: int, width: int) -> tuple[Tensor, Tensor]:
    """Which targets fall into the columns from `at`, and their place there (0 for the others)."""
    inside = (targets >= at) & (targets < at + width)
    return inside, torch.where(inside, targets - at, 0)
