"""What the engine tests share: a tiny Qwen3, its reference log-probs, an event loop that outlives a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from echo2.runtime import vector_maths
from echo2.runtime.learning.sampling import Sampling
from echo2.runtime.rollout.engine import Engine
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, SamplingSettings

T = TypeVar("T")
VOCAB, CONTEXT = 97, 1024
DEADLINE_S = 180.0


class LoopThread:
    """An event loop in a thread, so that one engine serves many tests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, or TimeoutError: a test never hangs."""

        async def within() -> T:
            async with asyncio.timeout(DEADLINE_S):
                return await work

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(DEADLINE_S + 10)


def tiny_model(seed: int, tied: bool = True) -> Any:
    """A Qwen3 of 0.4 M parameters with weights peaked enough for log-probs to differ."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    vector_maths.settle()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config).eval()


def saved(model: Any, path: Path) -> Path:
    """`model` in directory `path`."""
    model.save_pretrained(path)
    return path


def reference_logprobs(model: Any, request: GroupRequest, rollout: GeneratedRollout) -> Any:
    """Log-probs of the rollout's tokens by one plain Hugging Face forward pass [tokens]."""
    import torch

    sampling = request.sampling.distribution
    ids = torch.tensor([[*request.prompt_ids, *rollout.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
    logits = logits / sampling.temperature
    if sampling.top_k:
        logits[logits < logits.topk(sampling.top_k, dim=-1).values[:, -1:]] = -torch.inf
    logp = logits.log_softmax(-1)
    return logp.gather(-1, torch.tensor(rollout.token_ids)[:, None])[:, 0]


def worst_error(model: Any, request: GroupRequest, rollouts: list[GeneratedRollout]) -> float:
    """Largest difference between recorded and reference log-probs."""
    import torch

    return max(
        float((torch.tensor(r.logprobs) - reference_logprobs(model, request, r)).abs().max())
        for r in rollouts
    )


def request(
    group_id: int,
    rollouts: int = 3,
    max_tokens: int = 12,
    prompt: tuple[int, ...] = (5, 17, 3, 80, 41),
    seed: int = 0,
    **sampling: Any,
) -> GroupRequest:
    """A group request with the tests' usual values."""
    stop = sampling.pop("stop_token_ids", ())
    settings = SamplingSettings(Sampling(**sampling), max_tokens, stop, seed)
    return GroupRequest(group_id, prompt, rollouts, settings)


async def collect(engine: Engine, wanted: GroupRequest) -> list[GeneratedRollout]:
    """All rollouts of a group, by index."""
    async with aclosing(engine.generate(wanted)) as stream:
        return sorted([r async for r in stream], key=lambda r: r.index)
