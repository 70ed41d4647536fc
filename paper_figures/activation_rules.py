"""Which workers to rent: cost-aware activation against three plain rules and the bound.

    python -m paper_figures.activation_rules --out DIR

Simulated under real price and preemption traces, on the shipped pools of many kinds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from echo2.report import style
from paper_figures.output import finish, out_folder
from paper_figures.runs import Outcome, outcome

STEPS, SEEDS = 150, (1, 2, 3, 4, 5)
EXPERIMENTS = {
    "qwen3-8b-mixed-spot": "8B, mixed spot",
    "consumer-home": "8B, home lines",
    "qwen3-32b": "32B, data centres",
}
RULES = {
    "cost": style.Look("cost-aware (echo2)", style.BLUE, ""),
    "random": style.Look("random", style.ORANGE, "//"),
    "fastest": style.Look("fastest first", style.GREEN, "\\\\"),
    "all": style.Look("all on", style.VERMILLION, ".."),
}


def bound_usd(one: Outcome) -> float:
    """USD a step no choice of workers goes below: learner, and the plan's LP bound, without idling."""
    activation = one.plan.activation
    hours = one.settings.train_s / 3600.0
    return (one.settings.learner_usd_per_h + float(activation["bound_usd_per_h"])) * hours


def draw() -> tuple[Any, dict[str, dict[str, list[Outcome]]]]:
    """Left: USD a step by rule, every run a dot. Right: learner utilisation of the same runs."""
    found = {
        name: {
            rule: [outcome(name, [f"run.steps={STEPS}", f'policy.activation="{rule}"'], s) for s in SEEDS]
            for rule in RULES
        }
        for name in EXPERIMENTS
    }
    figure, (cost, busy) = style.new_figure(4.0, columns=2)
    width = 0.8 / len(RULES)
    for k, (rule, look) in enumerate(RULES.items()):
        at = np.arange(len(EXPERIMENTS)) + (k - (len(RULES) - 1) / 2) * width
        for axes, name in ((cost, "step_cost_usd"), (busy, "learner_utilisation")):
            each = np.array([[one.summary[name] for one in found[e][rule]] for e in EXPERIMENTS])
            axes.bar(at, each.mean(axis=1), 0.9 * width, color=look.colour, hatch=look.hatch,
                     edgecolor="white", label=look.label)  # fmt: skip
            for column in each.T:
                axes.plot(at, column, ".", color=style.LIGHT.ink, markersize=2.5)
    for i, name in enumerate(EXPERIMENTS):
        bound = float(np.mean([bound_usd(one) for one in found[name]["cost"]]))
        cost.plot([i - 0.45, i + 0.45], [bound, bound], ":", color=style.LIGHT.ink, linewidth=2,
                  label="bound (LP)" if i == 0 else None)  # fmt: skip
    cost.set(ylabel="USD a step, simulated")
    busy.set(ylabel="learner utilisation, simulated", ylim=(0, 1.02))
    for axes in (cost, busy):
        axes.set_xticks(range(len(EXPERIMENTS)), list(EXPERIMENTS.values()))
        axes.grid(axis="x", visible=False)
    figure.legend(*cost.get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure, found


def caption(found: dict[str, dict[str, list[Outcome]]]) -> str:
    """What the figure shows."""

    def factor(name: str, rule: str) -> float:
        usd = {r: np.mean([one.summary["step_cost_usd"] for one in found[name][r]]) for r in (rule, "cost")}
        return float(usd[rule] / usd["cost"])

    lines = "; ".join(
        f"{name}: random {factor(name, 'random'):.2f}, fastest {factor(name, 'fastest'):.2f}, "
        f"all {factor(name, 'all'):.2f}"
        for name in EXPERIMENTS
    )
    return (
        f"Simulated, {STEPS} steps with start-up, seeds {SEEDS[0]} to {SEEDS[-1]} (dots), on the shipped "
        "experiments with their prices, preemption traces (Bamboo) and link shapes. The rules "
        "differ only in which offers are rented: least cost that feeds the learner, random order, fastest "
        "first, or all. Dotted: learner at full utilisation plus the LP bound of the covering "
        f"problem, without egress and start-up; no rule can go below it. "
        f"Cost as a multiple of the cost-aware rule's: {lines}."
    )


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    with style.drawing():
        figure, found = draw()
        finish(figure, "activation_rules", caption(found), out)


if __name__ == "__main__":
    main()
