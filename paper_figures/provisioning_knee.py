"""Learner utilisation against provisioned throughput for several staleness bounds: where the knee is.

    python -m paper_figures.provisioning_knee --out DIR

The rule's knee, and points simulated with the scheduler, on the hand-made world of `overlap_timeline`.
Live points are those of the committed fidelity records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import steady_rate
from echo2.policy.links import LinkTable
from echo2.policy.settings import SchedulerSettings
from echo2.report import style
from echo2.sim.inputs import LearnerModel, SimWorker, WorldInputs
from echo2.sim.run import simulate
from paper_figures.output import finish, out_folder
from paper_figures.overlap_timeline import (
    BATCH,
    DECODE,
    DOWN_BPS,
    GROUP,
    LEARNER_BPS,
    LENGTHS,
    SNAPSHOT_BYTES,
    TRAIN_S,
    UP_BPS,
)

STEPS, WARM_UP, SEEDS = 60, 20, (0, 1)
WORKERS = (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20)


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


def utilisation(bound: Bound, workers: int, seed: int) -> float:
    """Training share of the time after the warm-up, simulated."""
    rate = steady_rate(DECODE, LENGTHS, 0.0)
    offers = [
        WorkerOffer(
            f"w{i:02d}", "pool", "GPU", "here", 1.0, rate.rollouts_per_s, rate.slots, rate.mean_s,
            rate.tail_s, UP_BPS, DOWN_BPS,
        )
        for i in range(workers)
    ]  # fmt: skip
    links = LinkTable(("here",), ((1e12,),), ((0.03,),), ((0.0,),), "here", LEARNER_BPS, LEARNER_BPS, 64)
    settings = SchedulerSettings(
        bound.S, bound.kappa, BATCH, GROUP, STEPS, TRAIN_S, SNAPSHOT_BYTES, SNAPSHOT_BYTES, 20.0, links,
        swap_pause_s=2.0, activation="all",
    )  # fmt: skip
    world = WorldInputs(
        settings, tuple(SimWorker(offer, DECODE) for offer in offers), LearnerModel(TRAIN_S), LENGTHS, 0.0
    )
    metrics = simulate(world, seed).world.metrics
    ends = metrics.step_end_s
    return sum(metrics.train_s[WARM_UP + 1 :]) / (ends[-1] - ends[WARM_UP])


def draw() -> Any:
    """One line a bound; the rule says utilisation is the provisioned share up to 1."""
    figure, axes = style.new_figure(4.0)
    each = steady_rate(DECODE, LENGTHS, 0.0).rollouts_per_s
    share = np.array(WORKERS) * each * TRAIN_S / BATCH
    axes.plot([0, 1, share[-1]], [0, 1, 1], color=style.LIGHT.ink, linewidth=1, label="provisioning rule")
    axes.axvline(1.0, color=style.LIGHT.faint, linewidth=1)
    for bound in BOUNDS:
        busy = [float(np.mean([utilisation(bound, n, seed) for seed in SEEDS])) for n in WORKERS]
        look = bound.look
        label = f"{look.label}, kappa = {bound.kappa}"
        axes.plot(share, busy, color=look.colour, linestyle=look.line, marker=look.marker, label=label)
    axes.set(
        xlabel="provisioned throughput, sum of mu over B / T_train",
        ylabel="learner utilisation, simulated",
        xlim=(0, share[-1] * 1.02),
        ylim=(0, 1.03),
    )
    axes.legend(loc="upper left")
    return figure


CAPTION = (
    f"Simulated: steps {WARM_UP + 1} to {STEPS}, mean of seeds {SEEDS[0]} and {SEEDS[-1]}, on one hand-made "
    f"world without traces (a step of {TRAIN_S:.0f} s on {BATCH} rollouts, equal workers, a snapshot of "
    f"{SNAPSHOT_BYTES / 1e9:.0f} GB; workers generate while it arrives). Black: the provisioning rule, "
    "utilisation = provisioned share up to 1, which needs rollouts to be fresh enough. Where S is too small "
    "for the time of dissemination, generation and queueing, no number of workers keeps the learner busy "
    "(S = 0 and 1); from S = 3 on the knee stands where the rule puts it."
)


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    with style.drawing():
        finish(draw(), "provisioning_knee", CAPTION, out)


if __name__ == "__main__":
    main()
