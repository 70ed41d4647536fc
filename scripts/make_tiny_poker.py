"""Make the tiny poker model of `assets/`: `python scripts/make_tiny_poker.py [--kind mixed] OUT`.

Trains a 0.41 million parameter Qwen3 on hands of scripted players, measures what it wins on held-out deals
when sampled at temperature 1 (what GRPO starts from), and writes model, tokenizer and a README that says
what it is. One seed, one result on one machine; a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from evaluate_turns import mean_and_error, played

from echo2.runtime.data import tiny, tiny_poker

HANDS, PLAYS = 512, 4

WHAT = {
    "mixed": """**Warm-started on two kinds of players**: half the hands are played at random (fold, call and
raise with equal odds), half by a rule that looks at the cards. RL can choose between behaviours that are
there: a good system test of several turns, not a demonstration of learning poker.""",
    "random": """**Warm-started on random actions**: fold, call and raise with equal odds whatever the cards.
It has seen the order of a hand and the spelling of three words, and no good play.""",
}

README = """# Tiny Qwen3 that has seen poker hands, warm start: {kind}

A Qwen3 of {parameters:,} parameters (hidden 128, 2 layers, head size 64, tied embeddings, float32, context
{context}) with a character tokenizer, made by
`scripts/make_tiny_poker.py --kind {kind} --steps {steps} --batch {batch} --hands {hands} --seed {seed}`.

{what}

| | |
|---|---|
| supervised steps x batch | {steps} x {batch}, of {hands} hands |
| final loss, mean of the last 20 steps, nats per token | {loss:.3f} |
| reward on {problems} held-out deals, {plays} plays each, temperature 1 | {reward:.4f} +- {error:.4f} |
| size of `model.safetensors` | {size:,} bytes |

Reward: chips won over a stack of 50 small blinds. Held out means: by a hash of the deal.
Licence: that of echo2.
"""


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=tiny_poker.KINDS, default="random")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hands", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = tiny_poker.model(args.seed)
    losses: list[float] = []

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 25 == 0:
            print(f"step {step:4d}  loss {loss:.3f}", file=sys.stderr)

    began = time.perf_counter()
    tiny_poker.warm_start(model, args.kind, args.steps, args.batch, args.hands, args.seed, report)
    print(f"warm start took {time.perf_counter() - began:.0f} s", file=sys.stderr)
    tiny.save(model, args.out, tiny_poker.tokenizer())
    reward, error = mean_and_error(played(args.out, "poker", {"instruction": ""}, HANDS, PLAYS))
    text = README.format(
        kind=args.kind,
        what=WHAT[args.kind],
        parameters=model.num_parameters(),
        context=tiny_poker.CONTEXT,
        steps=args.steps,
        batch=args.batch,
        hands=args.hands,
        seed=args.seed,
        loss=sum(losses[-20:]) / len(losses[-20:]),
        problems=HANDS,
        plays=PLAYS,
        reward=reward,
        error=error,
        size=(args.out / "model.safetensors").stat().st_size,
    )
    (args.out / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
