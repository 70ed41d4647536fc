"""Learner utilisation against provisioned throughput for several staleness bounds: where the knee is.

    python -m paper_figures.provisioning_knee --out DIR

Left: predicted and simulated, in the hand-made world. Right: predicted, simulated and live, in the world of
`experiments/live/knee.toml`; the live points are those of `experiments/live/knee.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from echo2 import config
from echo2.report import style
from echo2.sim.run import simulate
from paper_figures import hand_made
from paper_figures.output import finish, out_folder
from paper_figures.runs import EXPERIMENTS, outcome, plan_of, planned

STEPS, WARM_UP, SEEDS = 60, 20, (0, 1)
WORKERS = (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20)
RECORDS = EXPERIMENTS / "live" / "records" / "knee.csv"
LIVE_WORKERS, LIVE_STEPS, LIVE_SEEDS = (1, 2, 3, 4, 5, 6, 7), 40, (1, 2)
# A line has its knee where the learner is first this busy.
KNEE = 0.98


@dataclass(frozen=True)
class Bound:
    """A staleness bound and the publication period used with it."""

    S: int
    kappa: int
    look: style.Look


BOUNDS = (
    Bound(0, 1, style.Look("S = 0", style.GREY, line=":", marker="s")),
    Bound(1, 1, style.Look("S = 1", style.ORANGE, line="--", marker="^")),
    Bound(3, 1, style.Look("S = 3", style.SKY, line="-.", marker="D")),
    Bound(6, 2, style.Look("S = 6", style.BLUE, line="-", marker="o")),
    Bound(11, 4, style.Look("S = 11", style.PURPLE, line="-", marker="v")),
)


def simulated(bound: Bound, workers: int) -> float:
    """Training share of the time after the warm-up in the hand-made world, mean over the seeds."""
    found = []
    for seed in SEEDS:
        metrics = simulate(hand_made.world(workers, bound.S, bound.kappa, STEPS), seed).world.metrics
        ends = metrics.step_end_s
        found.append(sum(metrics.train_s[WARM_UP + 1 :]) / (ends[-1] - ends[WARM_UP]))
    return float(np.mean(found))


def live_world(row: Any, workers: int, train_s: float) -> list[str]:
    """Keys that make `experiments/live/knee.toml` the world of a live run, with its measured step time."""
    return [
        f"run.staleness={row.S}", f"run.publish_period={row.kappa}", f"run.steps={LIVE_STEPS}",
        f"pool.local.count={workers}", f"learner.step_s={train_s:.4f}",
    ]  # fmt: skip


def as_live(row: Any) -> float:
    """Learner utilisation of a live run as simulated, over the same steps and on, mean over the seeds."""
    sets = live_world(row, row.workers, row.train_s)
    ones = [outcome("live/knee", sets, seed) for seed in LIVE_SEEDS]
    return float(np.mean([one.utilisation(row.first_step - 1) for one in ones]))


def predicted(axes: Any, look: style.Look, share: Sequence[float], busy: Sequence[float]) -> None:
    """The line of the model, and its knee, where it has one, as a bar across it."""
    axes.plot(share, busy, color=look.colour, linestyle=look.line, linewidth=1.2)
    knee = next((i for i, value in enumerate(busy) if value >= KNEE), None)
    if knee is not None:
        bar = {"markersize": 17, "markeredgewidth": 2.2, "zorder": 1.5}
        axes.plot(share[knee], busy[knee], "|", color=look.colour, **bar)


def rule(axes: Any, most: float) -> None:
    """The provisioning rule alone: the provisioned share, up to 1."""
    axes.plot([0, 1, most], [0, 1, 1], color=style.LIGHT.ink, linewidth=0.9)
    axes.axvline(1.0, color=style.LIGHT.faint, linewidth=1)
    axes.set(xlim=(0, most), ylim=(0, 1.04), xlabel="provisioned over needed throughput")


def draw_hand_made(axes: Any) -> None:
    """A line a bound as predicted, hollow marks as simulated."""
    share = [n * hand_made.RATE.rollouts_per_s * hand_made.TRAIN_S / hand_made.BATCH for n in WORKERS]
    for bound in BOUNDS:
        plans = [planned(hand_made.problem(n, bound.S, bound.kappa, STEPS)) for n in WORKERS]
        predicted(axes, bound.look, share, [plan.learner_utilisation for plan in plans])
        busy = [simulated(bound, n) for n in WORKERS]
        axes.plot(share, busy, bound.look.marker, color=bound.look.colour, markerfacecolor="white")
    rule(axes, 1.02 * share[-1])
    axes.set(ylabel="learner utilisation", title="steps of a minute, simulated")


def draw_live(axes: Any, live: pd.DataFrame) -> None:
    """The same, with the live runs as filled marks; each simulated with its own measured step time."""
    each = float((live["rollouts_per_s"] / live["workers"]).mean())
    batch, train_s = int(live["rollouts_per_step"].iloc[0]), float(live["train_s"].mean())
    share = [n * each * train_s / batch for n in LIVE_WORKERS]
    for bound in BOUNDS:
        mine = live[live["S"] == bound.S]
        if mine.empty:
            continue
        look, rows = bound.look, list(mine.itertuples())
        plans = [plan_of("live/knee", live_world(rows[0], n, train_s)) for n in LIVE_WORKERS]
        predicted(axes, look, share, [plan.learner_utilisation for plan in plans])
        at = mine["rollouts_per_s"] * mine["train_s"] / batch
        busy = [as_live(row) for row in rows]
        axes.plot(at, busy, look.marker, color=look.colour, markerfacecolor="none", markersize=9)
        axes.plot(at, mine["utilisation"], look.marker, color=look.colour, markeredgecolor=style.LIGHT.ink)
    rule(axes, max(1.02 * share[-1], 1.02 * float((live["rollouts_per_s"] * live["train_s"] / batch).max())))
    axes.set(title=f"steps of {train_s:.1f} s, live and simulated")


def legend(figure: Any) -> None:
    """A look a bound, then what lines and marks mean."""
    from matplotlib.lines import Line2D

    def key(label: str, colour: str = style.LIGHT.ink, **how: Any) -> Any:
        return Line2D([], [], color=colour, label=label, **how)

    keys = [
        key(f"{bound.look.label}, kappa = {bound.kappa}", bound.look.colour, linestyle=bound.look.line,
            marker=bound.look.marker)
        for bound in BOUNDS
    ]  # fmt: skip
    keys += [
        key("provisioning rule", linewidth=0.9),
        key("predicted", linewidth=1.2, linestyle="--"),
        key("predicted knee", linestyle="", marker="|", markersize=12, markeredgewidth=2.2),
        key("simulated", linestyle="", marker="o", markerfacecolor="white"),
        key("live", linestyle="", marker="o"),
    ]
    figure.legend(handles=keys, loc="outside upper left", ncols=5)


def draw(live: pd.DataFrame) -> Any:
    """Two panels on one utilisation axis."""
    figure, panels = style.new_figure(4.3, columns=2, sharey=True)
    draw_hand_made(panels[0])
    draw_live(panels[1], live)
    legend(figure)
    return figure


def caption(live: pd.DataFrame) -> str:
    """What the figure shows and rests on, with how far live is from the simulation."""
    row, world = live.iloc[0], config.load(EXPERIMENTS / "live" / "knee.toml").config
    off = 100 * (live["utilisation"] - [as_live(run) for run in live.itertuples()]).abs()
    return (
        "Lines: predicted by the planner's steady state; bar across a line: its knee, the first number of "
        f"workers to keep the learner {KNEE:.0%} busy (S = 0 and 1 have none). Hollow: simulated with the "
        "scheduler. Black: the provisioning rule alone, utilisation = provisioned share up to 1, which needs "
        "rollouts to be fresh enough: where S is too small for the time of dissemination, generation and "
        "queueing, no number of workers keeps the learner busy. Left: a hand-made world without traces (a "
        f"step of {hand_made.TRAIN_S:.0f} s on {hand_made.BATCH} rollouts, equal workers, a snapshot of "
        f"{hand_made.SNAPSHOT_BYTES / 1e9:.0f} GB; workers generate while it arrives), steps {WARM_UP + 1} "
        f"to {STEPS}, mean of seeds {SEEDS[0]} and {SEEDS[-1]}. Right, filled: {len(live)} live runs "
        f"(experiments/live/knee.py, recorded {row['recorded'][:10]} on 2 cores, other work held back; "
        f"seed {row['seed']}, steps S + 3 to {live['last_step'].min()}-{live['last_step'].max()}): a real "
        "learner on a tiny model, "
        f"{row['rollouts_per_step']} rollouts of {world.rollout.tokens:.0f} tokens a step in "
        f"{live['train_s'].min():.2f} to {live['train_s'].max():.2f} s; 2 to 6 workers of a set rate whose "
        f"engines only sleep, links shaped to {world.pool[0].downlink_mbps:g} Mbit/s. Hollow there: the same "
        "configuration simulated, with the measured step time and nothing else of the live run, steps S + 3 "
        f"to {LIVE_STEPS}, mean of seeds {LIVE_SEEDS[0]} and {LIVE_SEEDS[-1]}: {off.mean():.1f} points of "
        f"100 from live on average, {off.max():.1f} at most. The control plane, which it leaves out, takes "
        "about 0.1 s for a batch to come round, and that shows where S = 1 binds."
    )


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    live = pd.read_csv(RECORDS)
    with style.drawing():
        finish(draw(live), "provisioning_knee", caption(live), out)


if __name__ == "__main__":
    main()
