"""How small a delta of real optimiser steps is: `python -m benchmarks.delta_ratio [--smollm2 DIR]`.

The claim: 50 times smaller than the full snapshot or better at learning rate 1e-6, in bf16 published from
float32 weights. GRPO with AdamW on rollouts that the model samples itself (exact rewards): first some steps
at the lowest rate, that Adam's averages are those of the task, then from that one state a few steps at each
rate, every one published in bf16 and float32 and coded against the one before; those 2, 4, 8, ... steps
after the first also against the first. The tiny model (`assets/tiny-sort`) takes some minutes on one core;
for SmolLM2-135M (`scripts/make_smollm2.py`) have a GPU, or hours.
`experiments/records/delta_sizes.csv` is what both wrote.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

from benchmarks.grpo_steps import Actor, NothingToLearn, Subject
from echo2.runtime.data.tasks.addition import Addition
from echo2.runtime.data.tasks.digit_sort import DigitSort
from echo2.runtime.delta.codec import delta_pieces
from echo2.runtime.delta.layout import Bytes

RATES = (1e-6, 1e-5, 1e-4, 1e-3)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Row:
    """One delta. `step` counts from the state after the warm steps; `share_changed` is of the values."""

    model: str
    parameters: int
    dtype: str
    learning_rate: float
    step: int
    steps_apart: int
    share_changed: float
    full_bytes: int
    delta_bytes: int
    ratio: float
    task: str
    warm_steps: int
    rollouts_per_step: int
    reward_mean: float
    grad_norm: float
    basis: str
    measured: str
    script: str
    device: str
    torch: str
    zstandard: str


def compared(old: dict[str, Bytes], new: dict[str, Bytes], item: int) -> dict[str, Any]:
    """The measured columns of a delta."""
    total = sum(array.nbytes for array in new.values())
    small = sum(map(len, delta_pieces(old, new, dict.fromkeys(new, item), torch.get_num_threads())))
    word = f"u{item}"
    moved = sum(int(np.count_nonzero(old[n].view(word) != a.view(word))) for n, a in new.items())
    return {
        "share_changed": float(f"{moved / (total // item):.6g}"),
        "full_bytes": total,
        "delta_bytes": small,
        "ratio": float(f"{total / small:.6g}"),
    }


def measured(subject: Subject, args: argparse.Namespace) -> Iterator[Row]:
    """Every row of one model."""
    warm, device = args.warm, args.device
    actor = Actor(subject, args.seed, device)
    for at in range(warm):
        reward, norm = actor.step(min(RATES))
        print(f"{subject.name} warm {at + 1}/{warm}: reward {reward:.3f} norm {norm:.3g}", file=sys.stderr)
    constant = {
        "model": subject.name,
        "parameters": sum(p.numel() for p in actor.learner.model.parameters()),
        "task": subject.task.name,
        "warm_steps": warm,
        "rollouts_per_step": subject.groups * subject.group_size,
        "basis": "measured",
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "script": "benchmarks/delta_ratio.py",
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "zstandard": zstandard.__version__,
    }
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "warm.pt"
        actor.save(state)
        for rate in args.rates:
            actor.restore(state)
            yield from _at_rate(actor, rate, args.steps, constant)


def _at_rate(actor: Actor, rate: float, steps: int, constant: dict[str, Any]) -> Iterator[Row]:
    first = {name: actor.published(dtype) for name, dtype in DTYPES.items()}
    before = first
    for step in range(1, steps + 1):
        try:
            reward, norm = actor.step(rate)
        except NothingToLearn as reason:
            print(f"learning rate {rate:g} ends before step {step}: {reason}", file=sys.stderr)
            return
        now = {name: actor.published(dtype) for name, dtype in DTYPES.items()}
        for name, dtype in DTYPES.items():
            bases = {1: before} | ({step: first} if step.bit_count() == 1 else {})
            for apart, base in bases.items():
                found = compared(base[name], now[name], dtype.itemsize)
                yield Row(
                    dtype=name,
                    learning_rate=rate,
                    step=step,
                    steps_apart=apart,
                    reward_mean=round(reward, 4),
                    grad_norm=float(f"{norm:.4g}"),
                    **found,
                    **constant,
                )
        before = now


def summary(rows: list[Row]) -> Iterator[str]:
    """A line per model, dtype and rate: means over the steps, as a Markdown table."""
    most = max(row.steps_apart for row in rows)
    yield f"| model | published in | learning rate | changed by a step | times smaller | over {most} steps |"
    yield "|---|---|---:|---:|---:|---:|"
    keys = dict.fromkeys((row.model, row.dtype, row.learning_rate) for row in rows)
    for model, dtype, rate in keys:
        mine = [r for r in rows if (r.model, r.dtype, r.learning_rate) == (model, dtype, rate)]
        single = [r for r in mine if r.steps_apart == 1]
        share = sum(r.share_changed for r in single) / len(single)
        # bytes add up, ratios do not
        ratio = sum(r.full_bytes for r in single) / sum(r.delta_bytes for r in single)
        later = next((f"{r.ratio:,.1f}" for r in mine if r.steps_apart == most), "")
        yield f"| {model} | {dtype} | {rate:.0e} | {share:.2%} | {ratio:,.1f} | {later} |"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smollm2", type=Path, help="folder of SmolLM2-135M; left out: the tiny model only")
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--warm", type=int, default=30)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--spread", action="store_true", help="take SmolLM2's weights off their 4-bit grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tiny = Path(__file__).resolve().parent.parent / "assets" / "tiny-sort"
    subjects = [Subject("tiny-sort", tiny, DigitSort(), groups=16, group_size=8, max_tokens=10)]
    if args.smollm2:
        task = Addition(shots=3, smallest=10, largest=49)
        subjects.append(Subject("SmolLM2-135M", args.smollm2, task, 8, 8, max_tokens=6, spread=args.spread))
    rows: list[Row] = []
    for subject in subjects:
        for row in measured(subject, args):
            assert math.isfinite(row.ratio)
            rows.append(row)
            print(row, file=sys.stderr)
    print(*summary(rows), sep="\n")
    if args.out:
        with args.out.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, [f.name for f in dataclasses.fields(Row)], lineterminator="\n")
            table.writeheader()
            table.writerows(dataclasses.asdict(row) for row in rows)


if __name__ == "__main__":
    main()
