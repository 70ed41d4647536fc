"""Heterogeneity and churn: learner utilisation under real preemption traces, alike and unlike workers.

    python -m paper_figures.churn --out DIR

Simulated on the pools of experiments/qwen3-8b-mixed-spot.toml.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from echo2.report import style
from paper_figures.output import finish, out_folder
from paper_figures.runs import Outcome, outcome

STEPS, SEEDS = 150, (1, 2, 3)
EXPERIMENT = "qwen3-8b-mixed-spot"
POOLS = (
    "rtx4090-vast", "rtx5090-salad", "rtx5090-runpod", "l40s-verda", "pro6000-verda", "a100-jarvis",
    "a100-gcp", "h100-vast", "h100-dataoorts",
)  # fmt: skip
TRACES = {
    "none": "nothing preempted",
    "frontiercs-us-west-2a-v100-1": "V100, us-west-2a",
    "frontiercs-us-west-2b-k80-8": "K80 x 8, us-west-2b",
    "bamboo-p3": "p3 (Bamboo)",
    "bamboo-g4dn": "g4dn (Bamboo)",
}
LOOKS = {
    "unlike": style.Look("nine pools, unlike GPUs and links", style.BLUE, ""),
    "alike": style.Look("same rate in all pools", style.ORANGE, "//"),
}


def sets(trace: str, kind: str) -> list[str]:
    """The overrides of one case: every pool under one trace; alike pools decode at one rate."""
    found = [f"run.steps={STEPS}", "model.delta_ratio=50"]
    for pool in POOLS:
        if trace != "none":
            found.append(f'pool.{pool}.availability="{trace}"')
        if kind == "alike":
            found += [f"pool.{pool}.tokens_per_s=4000", f"pool.{pool}.slots=32"]
    return found


def draw() -> tuple[Any, dict[tuple[str, str], list[Outcome]]]:
    """Left: utilisation. Right: USD a step. One group of bars a trace."""
    found = {
        (trace, kind): [
            outcome(EXPERIMENT, sets(trace, kind), seed, preempted=trace != "none") for seed in SEEDS
        ]
        for trace in TRACES
        for kind in LOOKS
    }
    figure, panels = style.new_figure(3.9, columns=2)
    for axes, name, label in (
        (panels[0], "learner_utilisation", "learner utilisation, simulated"),
        (panels[1], "step_cost_usd", "USD a step, simulated"),
    ):
        for k, (kind, look) in enumerate(LOOKS.items()):
            at = np.arange(len(TRACES)) + (k - 0.5) * 0.4
            each = np.array([[one.summary[name] for one in found[trace, kind]] for trace in TRACES])
            axes.bar(at, each.mean(axis=1), 0.36, color=look.colour, hatch=look.hatch, edgecolor="white",
                     label=look.label)  # fmt: skip
            for column in each.T:
                axes.plot(at, column, ".", color=style.LIGHT.ink, markersize=2.5)
        axes.set_xticks(range(len(TRACES)), list(TRACES.values()), rotation=35, ha="right", fontsize=7.5)
        axes.set_ylabel(label)
        axes.grid(axis="x", visible=False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure, found


def caption(found: dict[tuple[str, str], list[Outcome]]) -> str:
    """What the figure shows, with the preemptions seen."""
    seen = "; ".join(
        f"{TRACES[trace]}: {np.mean([one.summary['preemptions'] for one in found[trace, 'unlike']]):.0f}"
        for trace in TRACES
    )
    return (
        f"Simulated, {STEPS} steps with start-up, seeds {SEEDS[0]} to {SEEDS[-1]} (dots): "
        f"experiments/{EXPERIMENT}.toml with every pool under one recorded availability trace, and with "
        "snapshots 50 times smaller than full (an assumption). Blue: GPUs and links as they are; orange: "
        "every worker decodes 4,000 tokens/s with 32 sequences. Preemptions in a run, mean "
        f"over seeds, unlike GPUs: {seen}."
    )


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    with style.drawing():
        figure, found = draw()
        finish(figure, "churn", caption(found), out)


if __name__ == "__main__":
    main()
