"""A tiny Qwen3 with a character tokenizer: small enough to train with GRPO on a laptop's CPU.

Made by `scripts/make_tiny_model.py`, shipped in `assets/tiny-sort`, used by the demo and the tests. It is
saved as an ordinary Hugging Face directory, so every engine loads it like any other model. The parts that
need torch and transformers import them when called.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo2.errors import UserError
from echo2.runtime.data.tasks.addition import Addition
from echo2.runtime.data.tasks.digit_sort import DigitSort

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789>+-*=,. ()"
CONTEXT = 128
IGNORED = -100

Example = tuple[tuple[list[int], bool], ...]
"""A sequence in pieces: token ids, and whether they are learnt or context only."""

# Each behaviour turns the digits of a prompt into an answer. Digit sort rewards the first one only.
BEHAVIOURS: dict[str, Callable[[str], str]] = {
    "ascending": lambda digits: "".join(sorted(digits)),
    "descending": lambda digits: "".join(sorted(digits, reverse=True)),
    "copied": lambda digits: digits,
    "reversed": lambda digits: digits[::-1],
}


def character_tokenizer(characters: str = CHARACTERS, context: int = CONTEXT) -> PreTrainedTokenizerFast:
    """A tokenizer with one token a character; made from a vocabulary, nothing is fetched."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [PAD, EOS, UNKNOWN, *characters]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def tiny_qwen3(
    seed: int = 0, hidden: int = 128, layers: int = 2, tokenizer: PreTrainedTokenizerFast | None = None
) -> Qwen3ForCausalLM:
    """A freshly initialised Qwen3: head size 64 (vLLM's CPU kernels take 32 and 64, not 16), tied embeddings.

    0.41 million parameters by default; vocabulary and context are those of `tokenizer`.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = tokenizer or character_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]


def warm_start_example(rng: random.Random, kind: str, ordinal: int, seed: int) -> tuple[str, str]:
    """(prompt, completion) of one supervised example from the *train* split.

    `kind`: "mixed" draws one of the four behaviours with equal odds, "clean" always sorts, "addition" adds.
    """
    if kind == "addition":
        prompt = Addition(seed=seed).prompt(ordinal)
        return prompt.text, str(prompt.truth)
    prompt = DigitSort(seed=seed).prompt(ordinal)
    name = rng.choice(list(BEHAVIOURS)) if kind == "mixed" else "ascending"
    return prompt.text, BEHAVIOURS[name](prompt.text.removesuffix(">"))


WARM_STARTS = ("mixed", "clean", "addition")


def warm_start(
    model: Qwen3ForCausalLM,
    kind: str,
    steps: int,
    batch: int = 256,
    lr: float = 1e-3,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train on `steps` x `batch` examples in place: the completion and its end token are learnt."""
    if kind not in WARM_STARTS:
        raise UserError(f"warm start {kind!r} is not known; choose one of {', '.join(WARM_STARTS)}")
    tokenizer, rng = character_tokenizer(), random.Random(seed)

    def examples(step: int) -> list[Example]:
        pairs = [warm_start_example(rng, kind, step * batch + i, seed) for i in range(batch)]
        ends = tokenizer.eos_token_id
        return [((tokenizer.encode(a), False), ([*tokenizer.encode(b), ends], True)) for a, b in pairs]

    imitate(model, examples, steps, lr, report)


def imitate(
    model: Qwen3ForCausalLM,
    examples: Callable[[int], Sequence[Example]],
    steps: int,
    lr: float = 1e-3,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Cross entropy on the learnt pieces of the `examples` of each step, in place.

    AdamW, 20 steps of linear warm-up, then linear decay to a tenth. `report(step, loss in nats per token)`.
    """
    import torch

    pad = int(model.config.pad_token_id or 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    ramp = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
    )
    model.train()
    for step in range(steps):
        ids, labels = _padded(examples(step), pad)
        loss = model(input_ids=ids, attention_mask=(ids != pad).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ramp.step()
        report(step, float(loss.detach()))
    model.eval()  # type: ignore[no-untyped-call]


def save(model: Qwen3ForCausalLM, directory: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> None:
    """Write model and tokenizer as a Hugging Face directory."""
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id
    model.save_pretrained(directory)
    (tokenizer or character_tokenizer()).save_pretrained(directory)
    # safetensors writes files that only their owner may read; what ships must be readable by all.
    (directory / "model.safetensors").chmod(0o644)


def _padded(examples: Sequence[Example], pad: int) -> tuple[Any, Any]:
    """Right-padded token ids and labels, both (batch, longest)."""
    import torch

    longest = max(sum(len(ids) for ids, _ in example) for example in examples)
    found = torch.full((len(examples), longest), pad)
    labels = torch.full((len(examples), longest), IGNORED)
    for row, example in enumerate(examples):
        at = 0
        for ids, learnt in example:
            found[row, at : at + len(ids)] = torch.tensor(ids)
            if learnt:
                labels[row, at : at + len(ids)] = torch.tensor(ids)
            at += len(ids)
    return found, labels
