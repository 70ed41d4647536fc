"""Mean reward of a model on a task's held-out problems, with its standard error over problems.

    python scripts/evaluate.py MODEL --task addition --option shots=3 [--tokenizer DIR] [--problems 64]

Samples at temperature 1 with Hugging Face `generate` and the task's own verifier; nothing of the training
loop is involved. The `heldout` split never holds a problem of the `train` split.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo2.runtime.data.encode import encode_prompt
from echo2.runtime.data.registry import load_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="where the tokenizer is, if not beside the model")
    parser.add_argument("--task", default="digit_sort")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the task")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--greedy", action="store_true")
    args = parser.parse_args()
    options = {key: json.loads(value) for key, _, value in (text.partition("=") for text in args.option)}
    task = load_task(args.task, split="heldout", **options)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or args.model)
    torch.manual_seed(0)
    means = [score(model, tokenizer, task, ordinal, args) for ordinal in range(args.problems)]
    error = statistics.stdev(means) / len(means) ** 0.5
    how = "greedy" if args.greedy else f"{args.samples} samples each at temperature 1"
    print(f"{statistics.fmean(means):.3f} +- {error:.3f} over {len(means)} held-out problems, {how}")


@torch.no_grad()
def score(model: Any, tokenizer: Any, task: Any, ordinal: int, args: argparse.Namespace) -> float:
    """Mean reward of the completions of one problem."""
    prompt = task.prompt(ordinal)
    ids = torch.tensor([encode_prompt(tokenizer, prompt, "plain")])
    count = 1 if args.greedy else args.samples
    out = model.generate(
        ids.repeat(count, 1),
        attention_mask=torch.ones(count, ids.shape[1], dtype=torch.long),
        do_sample=not args.greedy,
        temperature=None if args.greedy else 1.0,
        top_k=None if args.greedy else 0,
        top_p=None if args.greedy else 1.0,
        max_new_tokens=args.max_tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    texts = tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
    return statistics.fmean(task.reward(prompt, text) for text in texts)


if __name__ == "__main__":
    main()
