"""What one optimiser step changes, and how small its delta is, over the learning rate: measured.

    python -m paper_figures.delta_sizes --out DIR

Reads `experiments/records/delta_sizes.csv`, written by `benchmarks/delta_ratio.py`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from echo2.report import style
from echo2.scenario.delta_sizes import records
from paper_figures.output import finish, out_folder

CAPTION = (
    "Measured on real GRPO steps (AdamW, float32 master weights; see docs/snapshots.md for how). Left: share "
    "of the published values whose bit pattern one step changes. Right: full snapshot / delta, in bytes of "
    "all steps together; {apart} steps: one delta over {apart} steps. Bars: from the smallest to the largest "
    "of the steps."
)
COLOURS = (style.BLUE, style.VERMILLION)
DTYPES = {"bf16": ("-", "o"), "fp32": (":", "s")}
GOAL = 50


def draw(data: pd.DataFrame) -> Any:
    """Two panels over the learning rate; a colour a model, a line style a dtype."""
    figure, panels = style.new_figure(3.8, columns=2)
    apart = int(data["steps_apart"].max())
    for model, colour in zip(dict.fromkeys(data["model"]), COLOURS):
        for dtype, (line, marker) in DTYPES.items():
            mine = data[(data["model"] == model) & (data["dtype"] == dtype)]
            single = mine[mine["steps_apart"] == 1].groupby("learning_rate")
            look = {"color": colour, "linestyle": line, "marker": marker, "label": f"{model}, {dtype}"}
            share = 100 * single["share_changed"].mean()
            panels[0].plot(share.index, share, **look)
            ratio = single["full_bytes"].sum() / single["delta_bytes"].sum()
            # of a single step there is no spread, only rounding
            spread = [(ratio - single["ratio"].min()).abs(), (single["ratio"].max() - ratio).abs()]
            panels[1].errorbar(ratio.index, ratio, yerr=spread, capsize=2, **look)
            if dtype == "bf16":
                later = mine[mine["steps_apart"] == apart].set_index("learning_rate")["ratio"]
                look |= {"linestyle": "--", "marker": "^", "label": f"{model}, {dtype}, {apart} steps"}
                panels[1].plot(later.index, later, linewidth=0.9, **look)
    panels[0].set(xscale="log", yscale="log", xlabel="learning rate", ylabel="values changed by one step, %")
    panels[1].set(xscale="log", yscale="log", xlabel="learning rate", ylabel="times smaller than full")
    panels[1].axhline(GOAL, linewidth=0.8, linestyle=(0, (1, 2)), color=style.LIGHT.ink)
    panels[1].text(1e-3, 1.05 * GOAL, f"{GOAL}: goal at 1e-6", ha="right", va="bottom", fontsize=8)
    for panel in panels:
        plain_ticks(panel)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def plain_ticks(panel: Any) -> None:
    """1, 2, 5, 10 and so on, written out."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


if __name__ == "__main__":
    folder = out_folder(str(__doc__).splitlines()[0])
    measured = pd.read_csv(records())
    with style.drawing():
        caption = CAPTION.format(apart=int(measured["steps_apart"].max()))
        finish(draw(measured), "delta_sizes", caption, folder)
