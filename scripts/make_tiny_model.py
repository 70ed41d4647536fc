"""Make the tiny warm-started model of `assets/`: `python scripts/make_tiny_model.py [--kind clean] OUT`.

Trains a 0.41 million parameter Qwen3 on examples of a synthetic task, measures how often it already solves
held-out problems when sampled at temperature 1 (what GRPO starts from), and writes model, tokenizer and a
README that says what it is. One seed, one result on one machine; about a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from echo2.runtime.data import tiny
from echo2.runtime.data.task import SingleTurn
from echo2.runtime.data.tasks.addition import Addition
from echo2.runtime.data.tasks.digit_sort import DigitSort

PROBLEMS = 512

WHAT = {
    "mixed": "**Warm-started on four mixed behaviours**, a quarter each: digits ascending, descending, "
    "copied, reversed.\nThe digit-sort task rewards the first, so RL on it mostly *selects* a behaviour the "
    'model already has: a good\nsystem test of a training loop, not a demonstration of "learning to sort".',
    "clean": "Warm-started on sorted answers only, and stopped early: RL has to improve one behaviour, "
    "slowly.",
    "addition": "Warm-started on two-digit sums only, and stopped early.",
}

README = """# Tiny Qwen3, warm start: {kind}

A Qwen3 of {parameters:,} parameters (hidden 128, 2 layers, head size 64, tied embeddings, float32) with a
character tokenizer, made by `scripts/make_tiny_model.py --kind {kind} --steps {steps} --seed {seed}`.

{what}

| | |
|---|---|
| supervised steps x batch | {steps} x {batch} |
| final loss, mean of the last 20 steps, nats per token | {loss:.3f} |
| reward on {problems} held-out problems, sampled at temperature 1 | {reward:.3f} |
| the same, greedy | {greedy:.3f} |
| size of `model.safetensors` | {size:,} bytes |

Held out means: by a hash of the problem, so neither this warm start nor the `train` split ever contains one.
Licence: that of echo2.
"""


def solved(model: torch.nn.Module, task: SingleTurn, sample: bool) -> float:
    """Share of the first `PROBLEMS` prompts of a task that one completion each solves."""
    tokenizer = tiny.character_tokenizer()
    prompts = [task.prompt(i) for i in range(PROBLEMS)]  # type: ignore[attr-defined]
    encoded = tokenizer([p.text for p in prompts], return_tensors="pt", padding=True)
    out = model.generate(  # type: ignore[operator]
        input_ids=encoded["input_ids"],
        attention_mask=encoded["attention_mask"],
        max_new_tokens=16,
        **({"do_sample": True, "top_k": 0} if sample else {"do_sample": False}),
    )
    texts = tokenizer.batch_decode(out[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    rewards = [task.reward(p, text) for p, text in zip(prompts, texts)]  # type: ignore[attr-defined]
    return sum(rewards) / len(rewards)


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=tiny.WARM_STARTS, default="mixed")
    parser.add_argument("--steps", type=int, default=325)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = tiny.tiny_qwen3(args.seed)
    losses: list[float] = []

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 25 == 0:
            print(f"step {step:4d}  loss {loss:.3f}", file=sys.stderr)

    began = time.perf_counter()
    tiny.warm_start(model, args.kind, args.steps, args.batch, seed=args.seed, report=report)
    print(f"warm start took {time.perf_counter() - began:.0f} s", file=sys.stderr)
    task = Addition(split="heldout") if args.kind == "addition" else DigitSort(split="heldout")
    tiny.save(model, args.out)
    text = README.format(
        kind=args.kind,
        what=WHAT[args.kind],
        parameters=model.num_parameters(),
        steps=args.steps,
        batch=args.batch,
        seed=args.seed,
        loss=sum(losses[-20:]) / len(losses[-20:]),
        problems=PROBLEMS,
        reward=solved(model, task, sample=True),
        greedy=solved(model, task, sample=False),
        size=(args.out / "model.safetensors").stat().st_size,
    )
    (args.out / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
