"""How stale trained rollouts are: the histogram for several bounds, on two shipped experiments.

    python -m paper_figures.staleness_histograms --out DIR

Simulated, with the publication period that the planner chooses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from echo2.report import style
from paper_figures.output import finish, out_folder
from paper_figures.runs import Outcome, outcome

STEPS, SEED = 150, 1
BOUNDS = (1, 3, 6, 11)
EXPERIMENTS = {"qwen3-32b": "32B, data centres", "qwen3-8b-mixed-spot": "8B, mixed spot"}
DELTAS = ("model.delta_ratio=50",)


def draw() -> tuple[Any, dict[tuple[str, int], Outcome]]:
    """One row an experiment, one panel a bound."""
    found = {
        (name, S): outcome(name, [f"run.steps={STEPS}", f"run.staleness={S}", *DELTAS], SEED)
        for name in EXPERIMENTS
        for S in BOUNDS
    }
    figure, panels = style.new_figure(
        3.8, len(EXPERIMENTS), len(BOUNDS), sharey=True, width_ratios=(4, 4, 5, 7)
    )
    for row, (name, title) in zip(panels, EXPERIMENTS.items()):
        for axes, S in zip(row, BOUNDS):
            one = found[name, S]
            stale = one.summary["staleness"]
            counts = {int(value): count for value, count in stale["histogram"].items()}
            share = np.array([counts.get(v, 0) for v in range(S + 1)]) / max(1, sum(counts.values()))
            axes.bar(range(S + 1), share, 0.85, color=style.BLUE, edgecolor="white")
            axes.axvline(stale["mean"], color=style.VERMILLION, linestyle="--", linewidth=1.2)
            axes.axvline(S + 0.5, color=style.LIGHT.ink, linewidth=1.2)
            dropped = one.summary["dropped_share"]
            axes.set_title(f"S = {S}, kappa = {one.plan.kappa}\ndropped {dropped:.0%}", fontsize=7.5)
            axes.set_xticks(range(0, S + 1, 1 if S < 7 else 2))
            axes.set_xlim(-0.6, S + 0.6)
            axes.grid(axis="x", visible=False)
        row[0].set_ylabel(f"{title}\nshare of trained", fontsize=8)
    figure.supxlabel("staleness of trained rollouts (versions), simulated", fontsize=9)
    return figure, found


def caption(found: dict[tuple[str, int], Outcome]) -> str:
    """What the figure shows."""
    busy = "; ".join(
        f"{EXPERIMENTS[name]}, S = {S}: {one.summary['learner_utilisation']:.0%}"
        for (name, S), one in found.items()
    )
    return (
        f"Simulated, {STEPS} steps, seed {SEED}, experiments/qwen3-32b.toml and qwen3-8b-mixed-spot.toml "
        "with their prices, preemption traces and link shapes, snapshots 50 times smaller than full "
        "(lossless deltas; an assumption). Dashed: mean. Solid, at the right: the bound, which no trained "
        "rollout passes. The planner takes the publication period kappa that costs least, so that staleness "
        f"follows the period more than the bound. Learner utilisation, start-up included: {busy}."
    )


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    with style.drawing():
        figure, found = draw()
        finish(figure, "staleness_histograms", caption(found), out)


if __name__ == "__main__":
    main()
