"""What an engine is asked for and what it gives back: groups in, finished rollouts out.

Filled in by the worker from a `StartGroup` decision; every engine reads and writes these and nothing else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from echo2.errors import UserError
from echo2.runtime.data.rollout import Segment, Span, generated_tokens
from echo2.runtime.learning.sampling import Sampling


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How completions are sampled.

    `distribution` is the sampling distribution, the one behaviour log-probs are taken under; `top_k=1` is
    greedy (every log-prob 0). A completion ends at `max_tokens`, or with any of `stop_token_ids`, which is
    kept as its last token. `seed` is the group's: each rollout derives its own from it (`rollout_seed`).
    Raises UserError for values that cannot be sampled with.
    """

    distribution: Sampling = field(default_factory=Sampling)
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"sampling max_tokens is {self.max_tokens}; it must be at least 1")
        negative = [t for t in self.stop_token_ids if t < 0]
        if negative:
            raise UserError(f"sampling stop_token_ids holds {negative[0]}; token ids are 0 or more")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"sampling seed is {self.seed}; it must be in [0, 2^63)")


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One prompt to be completed `rollouts` times. `group_id` is unique among running groups."""

    group_id: int
    prompt_ids: tuple[int, ...]
    rollouts: int
    sampling: SamplingSettings


@dataclass(frozen=True, slots=True)
class GeneratedRollout:
    """One finished completion.

    `logprobs[t]` is the log-prob (nats, float32) of `token_ids[t]` under the distribution it was drawn from:
    after temperature, top-k and top-p, with the weights and the KV cache of that moment. After a swap that
    kept the KV cache no single version reproduces it, so it is never recomputed. `segments` say which
    version sampled from which token on. `finish_reason`: "stop" (a stop token), "length" (max_tokens) or
    "abort" (cut short by a swap). `environment` are the spans of several turns that no engine sampled.
    """

    group_id: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    segments: tuple[Segment, ...]
    finish_reason: str
    environment: tuple[Span, ...] = ()

    @property
    def generated(self) -> int:
        """Tokens that the engine sampled."""
        return generated_tokens(len(self.token_ids), self.environment)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What fits the model: entries of the vocabulary and tokens of context (prompt and completion)."""

    vocab_size: int
    context_tokens: int

    def check(self, request: GroupRequest) -> None:
        """Raise UserError, naming the group and the value, unless the engine can take `request`."""
        name, sampling = f"group {request.group_id}", request.sampling
        prompt, wanted = len(request.prompt_ids), sampling.max_tokens
        if request.rollouts < 1:
            raise UserError(f"{name} asks for {request.rollouts} rollouts; it must be at least 1")
        if not prompt:
            raise UserError(f"{name} has an empty prompt; a model needs at least one token to start from")
        if prompt + wanted > self.context_tokens:
            raise UserError(
                f"{name}: prompt of {prompt} tokens + max_tokens {wanted} = {prompt + wanted} exceeds the "
                f"context of {self.context_tokens}; shorten the prompt or lower max_tokens to at most "
                f"{max(0, self.context_tokens - prompt)}"
            )
        outside = [t for t in (*request.prompt_ids, *sampling.stop_token_ids) if not 0 <= t < self.vocab_size]
        if outside:
            raise UserError(
                f"{name}: token id {outside[0]} is outside the vocabulary [0, {self.vocab_size}); "
                "the tokenizer and the model do not belong together"
            )


def group_seed(run_seed: int, prompt: int, version: int) -> int:
    """The seed of a group, in [0, 2^63), from what is the same in a run that is stopped and resumed (ours).

    A prompt that is generated again with the same version, because its worker was lost, draws the same
    completions, so that a loss does not choose among them; with a newer version it draws new ones.
    """
    return _seed(f"{run_seed}:{prompt}:{version}")


def rollout_seed(seed: int, index: int) -> int:
    """The seed of a group's `index`-th rollout, in [0, 2^63): the same on any engine (ours)."""
    return _seed(f"{seed}:{index}")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
