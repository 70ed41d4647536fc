"""How well simulation and plan foretell live runs: every recorded run of the fidelity matrix.

    python -m paper_figures.fidelity_scatter --out DIR

Reads `experiments/fidelity/results.json`, written by `experiments/fidelity/table.py` from the records.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from echo2.report import style
from paper_figures.output import finish, out_folder

RESULTS = Path(__file__).parent.parent / "experiments" / "fidelity" / "results.json"
PANELS = {
    "steps_per_s": "steps/s",
    "learner_utilisation": "learner utilisation",
    "staleness_mean": "staleness, mean (versions)",
    "step_cost_usd": "USD a step",
}
ENGINES = {
    "simulated": style.Look("engines that sleep", style.BLUE, marker="o"),
    "transformers": style.Look("transformers", style.ORANGE, marker="^"),
    "vllm": style.Look("vLLM", style.VERMILLION, marker="D"),
}
BAND = 0.05


def engine_of(name: str) -> str:
    """Which engines a cell has, by its name."""
    return "vllm" if "vllm" in name else "transformers" if "-hf" in name else "simulated"


def draw(results: dict[str, Any]) -> Any:
    """A panel a metric: live across, simulated up; plans as small grey crosses."""
    figure, grid = style.new_figure(6.2, 2, 2)
    for axes, (metric, label) in zip(np.ravel(grid), PANELS.items()):
        rows = {name: result["rows"][metric] for name, result in results.items() if metric in result["rows"]}
        most = 1.08 * max(row["live"] or 0.0 for row in rows.values())
        axes.fill_between(
            [0, most], [0, most * (1 - BAND)], [0, most * (1 + BAND)], color=style.LIGHT.faint, lw=0
        )
        axes.plot([0, most], [0, most], color=style.LIGHT.ink, linewidth=0.8)
        planned = [(r["live"], r["planned"]) for r in rows.values() if r.get("planned") is not None]
        if planned:
            axes.plot(*zip(*planned), "x", color=style.GREY, markersize=4, label="closed-form plan")
        for engine, look in ENGINES.items():
            dots = [
                (row["live"], row["simulated"])
                for name, row in rows.items()
                if engine_of(name) == engine and row["simulated"] is not None
            ]
            if dots:
                axes.plot(
                    *zip(*dots), look.marker, color=look.colour, label=f"simulated: {look.label}", alpha=0.8
                )
        axes.set(xlabel=f"{label}, live", ylabel=f"{label}, foretold", xlim=(0, most), ylim=(0, most))
    figure.legend(*np.ravel(grid)[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def caption(results: dict[str, Any]) -> str:
    """What the figure shows."""
    errors = [
        abs(result["rows"]["steps_per_s"]["error"])
        for result in results.values()
        if result["rows"]["steps_per_s"]["error"] is not None
    ]
    cells = {name.rpartition("-seed")[0] for name in results}
    return (
        f"Live against foretold: {len(results)} live runs of {len(cells)} configurations on one "
        "shared 2-core machine. Coloured: simulated with the same scheduler after calibration on the first "
        "part of the run, compared over the rest; crosses: the closed-form plan on the same numbers. Line: "
        f"equal; grey: within 5 %. Size of the error in steps/s: mean {np.mean(errors):.1%}, median "
        f"{np.median(errors):.1%}, P99 {np.percentile(errors, 99):.1%}. docs/fidelity.md has all metrics and "
        "says what explains the worst."
    )


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    with style.drawing():
        finish(draw(results), "fidelity_scatter", caption(results), out)


if __name__ == "__main__":
    main()
