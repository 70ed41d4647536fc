"""Training, dissemination and generation on one time axis: synchronous, one-step-off, S = 3, S = 6.

    python -m paper_figures.overlap_timeline --out DIR

Simulated with the scheduler on one hand-made world, so that only S, kappa and the reading differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from echo2.policy.decisions import StartGroup
from echo2.policy.facts import RolloutFinished
from echo2.policy.generation import FloatArray
from echo2.policy.provision import Reading
from echo2.report import style
from echo2.sim.run import SimResult, simulate
from paper_figures.hand_made import (
    BATCH,
    DECODE,
    DOWN_BPS,
    LEARNER_BPS,
    LENGTHS,
    SNAPSHOT_BYTES,
    TRAIN_S,
    world,
)
from paper_figures.output import finish, out_folder

WORKERS, STEPS, SEED = 14, 40, 0
FROM_STEP, WINDOW_S = 14, 720.0


@dataclass(frozen=True)
class Case:
    """One row of the figure."""

    title: str
    S: int
    kappa: int
    reading: Reading


CASES = (
    Case("synchronous, S = 0", 0, 1, "stall"),
    Case("one-step-off, S = 1", 1, 1, "stall"),
    Case("S = 3, kappa = 1", 3, 1, "overlap"),
    Case("S = 6, kappa = 2", 6, 2, "overlap"),
)


def run(case: Case) -> SimResult:
    """The hand-made world under one setting."""
    return simulate(world(WORKERS, case.S, case.kappa, STEPS, case.reading), SEED, keep_log=True)


def spans(result: SimResult, kind: str, begin: float) -> list[tuple[float, float]]:
    """(start, length) in minutes since `begin` of the spans of a kind, one a version."""
    by_version: dict[int, tuple[float, float]] = {}
    for name, _, start, seconds, version in result.world.timeline.spans:
        if name == kind:
            first, last = by_version.get(version, (start, start))
            by_version[version] = (min(first, start), max(last, start + seconds))
    return [((a - begin) / 60, (b - a) / 60) for a, b in by_version.values() if b > begin]


def running(result: SimResult, at_s: FloatArray) -> FloatArray:
    """Rollouts running at these times, (times,)."""
    times, counts = [-np.inf], [0]
    for fact, answers in result.world.entries:
        change = -1 if isinstance(fact, RolloutFinished) else 0
        change += sum(answer.rollouts for answer in answers if isinstance(answer, StartGroup))
        if change:
            times.append(fact.t_s)
            counts.append(counts[-1] + change)
    return np.array(counts, dtype=float)[np.searchsorted(times, at_s, side="right") - 1]


def draw_case(axes: Any, case: Case, result: SimResult) -> None:
    """Three strips: learner, snapshots, running rollouts."""
    begin = result.world.metrics.step_end_s[FROM_STEP]
    idle = style.IDLE["rollouts"]
    axes.broken_barh(
        [(0, WINDOW_S / 60)],
        (2.1, 0.8),
        facecolor=idle.colour,
        hatch=idle.hatch,
        label="bubble: learner idle",
    )
    axes.broken_barh(
        spans(result, "train", begin), (2.1, 0.8), facecolor=style.BLUE, edgecolor="white", label="training"
    )
    axes.broken_barh(
        spans(result, "receive", begin), (1.1, 0.8), facecolor=style.SKY, hatch=style.SENDING.hatch,
        edgecolor="white", linewidth=0.4, label="dissemination",
    )  # fmt: skip
    seconds = np.arange(0.0, WINDOW_S + 1.0, dtype=np.float64)
    level = 0.05 + 0.85 * running(result, begin + seconds) / (WORKERS * DECODE.max_running)
    axes.fill_between(seconds / 60, 0.05, level, color=style.GREEN, lw=0, label="rollouts running")
    axes.set_yticks([2.5, 1.5, 0.5], ["learner", "snapshot", "workers"])
    axes.set(xlim=(0, WINDOW_S / 60), ylim=(0, 3))
    axes.grid(axis="y", visible=False)
    axes.set_title(f"{case.title}: learner works {steady_utilisation(result):.0%} of the time")


def steady_utilisation(result: SimResult) -> float:
    """Training share of the time after the first `FROM_STEP` steps."""
    ends = result.world.metrics.step_end_s
    return sum(result.world.metrics.train_s[FROM_STEP + 1 :]) / (ends[-1] - ends[FROM_STEP])


def draw() -> Any:
    """Four panels on one time axis."""
    figure, panels = style.new_figure(5.4, rows=len(CASES), sharex=True)
    for axes, case in zip(panels, CASES):
        draw_case(axes, case, run(case))
    panels[-1].set_xlabel(f"time (min) since the end of step {FROM_STEP + 1}, simulated")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def caption() -> str:
    """What the figure shows and rests on."""
    return (
        f"Simulated. One hand-made world, no trace: a step of {TRAIN_S:.0f} s on {BATCH} rollouts of "
        f"{LENGTHS.mean:,.0f} tokens on average (up to {LENGTHS.max:,.0f}), {WORKERS} equal workers, a "
        f"snapshot of {SNAPSHOT_BYTES / 1e9:.0f} GB from {LEARNER_BPS / 1e9:.0f} Gbit/s to workers of "
        f"{DOWN_BPS / 1e9:.0f} Gbit/s. Only the staleness bound S, the publication period kappa and whether "
        "workers stop for a snapshot (S = 0 and 1) or generate on (S = 3 and 6) differ. Orange is the "
        "bubble; the height of the green area is the share of the workers' slots in use. Step times do not "
        f"vary; lengths are drawn with seed {SEED}."
    )


def main() -> None:
    out = out_folder(__doc__.splitlines()[0])
    with style.drawing():
        finish(draw(), "overlap_timeline", caption(), out)


if __name__ == "__main__":
    main()
