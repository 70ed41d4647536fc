"""Tokens per second of our engines against the bare library on the same prompts, in one run.

`python benchmarks/engine_overhead.py [transformers] [vllm]` prints one line for each engine: bare tokens/s,
ours, and the ratio (median and range over the rounds; bare and ours alternate, so both see the same load on
the machine). The model is a random Qwen3 of about 5 M parameters, so no download is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from echo2.runtime.rollout.engine import Engine
from echo2.runtime.rollout.request import GroupRequest, SamplingSettings, rollout_seed

GROUPS, GROUP_SIZE, PROMPT, VOCAB = 8, 8, 24, 4096


def build_model(path: Path) -> Any:
    """A random Qwen3 saved in `path`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


def prompt(group: int) -> tuple[int, ...]:
    """The prompt of a group."""
    return tuple((group * 31 + i * 7) % VOCAB for i in range(PROMPT))


async def ours(engine: Engine, tokens: int, first_group: int) -> int:
    """All groups through our engine; returns tokens made."""
    settings = SamplingSettings(max_tokens=tokens)

    async def one(group: int) -> int:
        request = GroupRequest(first_group + group, prompt(group), GROUP_SIZE, settings)
        async with aclosing(engine.generate(request)) as stream:
            return sum([len(rollout.token_ids) async for rollout in stream])

    return sum(await asyncio.gather(*(one(group) for group in range(GROUPS))))


async def bare_transformers(model: Any, tokens: int) -> int:
    """`generate` with plain sampling; it returns no log-probs, so ours does more work for a token."""
    import torch

    ids = torch.tensor([prompt(group) for group in range(GROUPS) for _ in range(GROUP_SIZE)])

    def run() -> int:
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
        return int(out[:, PROMPT:].numel())

    return await asyncio.to_thread(run)


async def bare_vllm(llm: Any, tokens: int, first: int) -> int:
    """AsyncLLM with what RL needs (a log-prob and a seed for each rollout) and nothing of ours."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(index: int) -> int:
        params = SamplingParams(
            temperature=1.0,
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            seed=rollout_seed(first, index),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        ids = {"prompt_token_ids": list(prompt(index // GROUP_SIZE))}
        made = 0
        async for output in llm.generate(ids, params, f"bare-{first}-{index}"):
            made = len(output.outputs[0].token_ids)
        return made

    return sum(await asyncio.gather(*(one(index) for index in range(GROUPS * GROUP_SIZE))))


async def rate(work: Callable[[], Awaitable[int]]) -> float:
    """Tokens per second of `work`."""
    began = time.perf_counter()
    made = await work()
    return made / (time.perf_counter() - began)


async def compare(name: str, bare: Callable[[int], Awaitable[int]], engine: Engine, args: Any) -> None:
    """Print bare and ours over `args.rounds` alternating rounds, after one of each to warm up."""
    bares: list[float] = []
    own: list[float] = []
    for number in range(args.rounds + 1):
        first = number * GROUPS
        pair = [
            (bares, lambda first=first: bare(first)),
            (own, lambda first=first: ours(engine, args.tokens, first)),
        ]
        for rates, work in pair if number % 2 else pair[::-1]:
            value = await rate(work)
            if number:
                rates.append(value)
    ratios = [mine / other for mine, other in zip(own, bares, strict=True)]
    print(
        f"{name}: bare {statistics.median(bares):.0f} tok/s, ours {statistics.median(own):.0f} tok/s, "
        f"ratio {statistics.median(ratios):.3f} "
        f"(rounds {min(ratios):.3f} to {max(ratios):.3f}, {args.rounds} rounds of "
        f"{GROUPS * GROUP_SIZE} x {args.tokens} tokens)",
        flush=True,
    )


async def run(args: Any) -> None:
    """Compare the engines asked for."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        model = build_model(path)
        if "transformers" in args.engines:
            from echo2.runtime.rollout.transformers_engine import TransformersEngine, TransformersSettings

            plain = TransformersEngine(TransformersSettings(path))
            await plain.start()
            await compare("transformers", lambda _: bare_transformers(model, args.tokens), plain, args)
            await plain.stop()
        if "vllm" in args.engines:
            from echo2.runtime.rollout.vllm_engine import VllmEngine, VllmSettings

            fast = VllmEngine(VllmSettings(path))
            await fast.start()
            # The same AsyncLLM: two would compete for the cores.
            await compare("vllm", lambda first: bare_vllm(fast._llm, args.tokens, first), fast, args)
            await fast.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="*", default=["transformers", "vllm"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
