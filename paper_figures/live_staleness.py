"""Reward against updates for five staleness bounds, live: every run of the committed sweep.

    python -m paper_figures.live_staleness --out DIR

Reads `experiments/live/records/staleness.csv`, written by `experiments/live/staleness_sweep.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from echo2.report import style
from paper_figures.output import finish, out_folder

RECORDS = Path(__file__).parent.parent / "experiments" / "live" / "records" / "staleness.csv"
SMOOTHING = 0.1
USD_PER_H = 0.12
"""Learner and worker of `experiments/live/staleness.toml`: made-up prices of this machine."""
CAPTION = (
    "Live GRPO on the digit-sort task (tiny Qwen3, 256 rollouts a step, learning rate 2e-4, snapshot every "
    "step, one worker with the transformers engine on the same 2-core machine). Left: reward over updates, "
    "exponentially smoothed (0.1), thin: each of five seeds, thick: their mean; 100 updates in every run. "
    "Middle: the same over wall time and, in proportion to it, USD at made-up prices, the mean of seeds 1 to "
    "3; the machine was shared, so these times are rough, and seeds 4 and 5, run on a busier one, are left "
    "out. Right: staleness the trained rollouts had, mean over updates 51-100. Design, rates and seeds were "
    "fixed before they were run and nothing was tuned afterwards. A system test: RL selects among behaviours "
    "of a warm-started model. The paper finds S up to 6 stable and 11 possibly unstable; ours differs: "
    "at equal updates reward falls from S = 1 on, at 3 already. S = 0 is below S = 1 in every seed, for "
    "which we have no explanation yet."
)


def draw() -> Any:
    """Three panels: reward over updates, over wall time, and measured staleness by bound."""
    data = pd.read_csv(RECORDS)
    runs = data.groupby(["S", "seed"])["reward"]
    data["smooth"] = runs.transform(lambda reward: reward.ewm(alpha=SMOOTHING, adjust=False).mean())
    figure, panels = style.new_figure(3.7, columns=3, width_ratios=(1.25, 1.25, 0.8))
    bounds = sorted(data["S"].unique())
    for bound, look in zip(bounds, style.TOPOLOGY.values()):
        mine = data[data["S"] == bound]
        for _, run in mine.groupby("seed"):
            panels[0].plot(run["step"], run["smooth"], color=look.colour, linewidth=0.5, alpha=0.5)
        line = {"color": look.colour, "linestyle": look.line, "label": f"S = {bound}"}
        mean = mine.groupby("step")["smooth"].mean()
        panels[0].plot(mean.index, mean, **line)
        early = mine[mine["seed"] <= 3].groupby("step")[["wall_s", "smooth"]].mean()
        panels[1].plot(early["wall_s"] / 60, early["smooth"], **line)
    panels[0].set(xlabel="updates", ylabel="reward, live")
    panels[0].legend()
    panels[1].set(xlabel="wall time (min)")
    usd = panels[1].secondary_xaxis(
        "top", functions=(lambda m: 1e3 * m * USD_PER_H / 60, lambda u: u * 60 / USD_PER_H / 1e3)
    )
    usd.set_xlabel("thousandths of a USD")
    late = data[data["step"] > 50].groupby("S")["staleness_mean"].mean()
    panels[2].plot(late.index, late, marker="o", color=style.LIGHT.ink)
    panels[2].plot(bounds, bounds, linestyle=":", color=style.LIGHT.ink, label="S")
    panels[2].set(xlabel="staleness bound S", ylabel="mean staleness, live")
    panels[2].legend()
    return figure


if __name__ == "__main__":
    folder = out_folder(str(__doc__).splitlines()[0])
    with style.drawing():
        finish(draw(), "live_staleness", CAPTION, folder)
