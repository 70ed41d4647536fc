"""A tiny model and rollouts of it, for tests of whatever feeds or follows the learner.

Sampling is Hugging Face `generate`, and the behaviour log-probs are taken from its own scores, so that
what the learner computes is compared with something it did not make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from echo2.runtime.data.rollout import Rollout, Segment, rollout_id
from echo2.runtime.learning.sampling import Sampling


def tiny_qwen3(seed: int = 0, vocab: int = 32, hidden: int = 64, tied: bool = True) -> PreTrainedModel:
    """A two-layer Qwen3 with random weights (spread wide enough that tokens differ), float32, on CPU.

    Sets torch to one thread: a model this small gains nothing from more, and OpenMP threads that spin while
    they wait made the same test 18 times slower on a busy machine.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]


def make_rollout(
    group_id: int,
    index: int,
    token_ids: Sequence[int],
    reward: float,
    *,
    prompt_ids: Sequence[int] = (1, 2),
    logprobs: Sequence[float] | None = None,
    version: int = 0,
) -> Rollout:
    """A rollout written by hand; log-probs default to -1 for every token."""
    return Rollout(
        rollout_id=rollout_id(group_id, index),
        group_id=group_id,
        index=index,
        prompt=group_id,
        attempt=0,
        worker_id="test",
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs if logprobs is not None else [-1.0] * len(token_ids)),
        segments=(Segment(0, version),),
        finish_reason="length",
        reward=reward,
    )


def sample_groups(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    tokens: int,
    reward: Callable[[Sequence[int]], float],
    *,
    version: int = 0,
    first_group: int = 0,
    sampling: Sampling | None = None,
) -> list[Rollout]:
    """`group_size` completions of exactly `tokens` tokens for each prompt, judged by `reward`.

    Uses torch's global generator; prompts may differ in length.
    """
    sampling = sampling or Sampling()
    rollouts = []
    for place, prompt in enumerate(prompts):
        ids = torch.tensor([list(prompt)] * group_size)
        with torch.no_grad():
            out = model.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                return_dict_in_generate=True,
                output_scores=True,
            )
        chosen = out.sequences[:, ids.shape[1] :]
        scores = torch.stack(out.scores, dim=1).log_softmax(dim=-1)
        logprobs = scores.gather(-1, chosen[:, :, None])[:, :, 0]
        for index in range(group_size):
            picked = chosen[index].tolist()
            rollouts.append(
                make_rollout(
                    first_group + place,
                    index,
                    picked,
                    reward(picked),
                    prompt_ids=prompt,
                    logprobs=logprobs[index].tolist(),
                    version=version,
                )
            )
    return rollouts
