"""Dissemination tail against the number of workers, every topology against the bound.

    python -m paper_figures.dissemination_tail --out DIR [--delta-ratio 50]

Planned times of one snapshot on the measured matrix of cloud regions, in several bandwidth regimes; the
scenario is the one of `benchmarks/broadcast_bound.py`. `--delta-ratio` sends a lossless delta so many times
smaller in place of the full snapshot.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.broadcast_bound import SIZE_BYTES, region_problem
from echo2.policy.broadcast import candidates
from echo2.report import style
from echo2.traces import regions
from paper_figures.output import finish

COUNTS = (2, 4, 8, 16, 32, 64, 128)
# Above this the LP bound takes long; the cut bound, which is no higher, stands in its place.
LP_UP_TO = 32
SEED = 0


@dataclass(frozen=True)
class Regime:
    """What the links allow: share of workers on home lines, and a cap on the learner's uplink."""

    title: str
    home_share: float = 0.0
    learner_bps: float = np.inf


REGIMES = (
    Regime("all in cloud regions"),
    Regime("learner behind 1 Gbit/s", learner_bps=1e9),
    Regime("half on home lines", home_share=0.5),
)


def tails(regime: Regime, size_bytes: float) -> dict[str, list[float]]:
    """Seconds until the last worker has the snapshot, by topology and for the bound, over `COUNTS`."""
    out: dict[str, list[float]] = {name: [] for name in (*style.TOPOLOGY, "bound")}
    for count in COUNTS:
        problem = region_problem(regions(), count, regime.home_share, SEED, size_bytes, regime.learner_bps)
        plans = candidates(problem, lp_bound=count <= LP_UP_TO)
        for name in style.TOPOLOGY:
            times = [plan.time_s for plan in plans if plan.topology == name]
            out[name].append(min(times, default=float("nan")))
        out["bound"].append(plans[0].bound_s)
    return out


def draw(size_bytes: float) -> Any:
    """One panel for each regime."""
    figure, panels = style.new_figure(3.7, columns=len(REGIMES), sharey=True)
    for axes, regime in zip(panels, REGIMES):
        seconds = tails(regime, size_bytes)
        for name, look in style.TOPOLOGY.items():
            axes.plot(
                COUNTS,
                seconds[name],
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                label=look.label,
            )
        axes.plot(COUNTS, seconds["bound"], color=style.LIGHT.ink, linestyle=":", linewidth=2, label="bound")
        axes.set(xscale="log", yscale="log", xlabel="workers", title=regime.title)
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axes.minorticks_off()
    low, high = panels[0].get_ylim()
    ticks = [m * 10.0**e for e in range(-3, 6) for m in (1, 3) if low <= m * 10.0**e <= high]
    panels[0].set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    panels[0].set_ylabel(f"dissemination tail (s), planned, {size_bytes / 1e9:.3g} GB")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def caption(size_bytes: float) -> str:
    """What the figure shows and rests on."""
    epoch, ratio = regions().epoch, SIZE_BYTES / size_bytes
    sent = f"a full snapshot of {SIZE_BYTES / 1e9:.0f} GB"
    if ratio > 1:
        sent = f"a delta of {size_bytes / 1e9:.3g} GB, {ratio:g} times smaller than the full snapshot,"
    return (
        f"Planned seconds until the last worker has {sent} "
        "(dissemination tail), by topology, and the bound that no plan can beat (linear program over the "
        f"measured pairs up to {LP_UP_TO} workers, the higher of fluid and cut bound beyond). Regional plans "
        "exist where regions hold several workers. Learner and workers are dealt out over the regions of "
        f"{epoch} (trace skyplane-{epoch}: measured capacity and RTT, list prices of egress). Middle: the "
        "learner's uplink is cut to 1 Gbit/s. Right: every other worker on average has a home line instead "
        "(uplink 20 to 40, downlink 200 to 400 Mbit/s, not measured, drawn with seed "
        f"{SEED}); there the slowest of these downlinks sets the bound. Nothing was sent."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("out/figures"), help="folder for PNG, PDF and caption"
    )
    parser.add_argument("--delta-ratio", type=float, default=1.0, help="send so many times fewer bytes")
    options = parser.parse_args()
    if not 1 <= options.delta_ratio <= 10_000:
        parser.error(f"--delta-ratio {options.delta_ratio:g} must be from 1 (full snapshots) to 10000")
    size_bytes = SIZE_BYTES / options.delta_ratio
    name = "dissemination_tail" + (f"_delta{options.delta_ratio:g}" if options.delta_ratio > 1 else "")
    with style.drawing():
        finish(draw(size_bytes), name, caption(size_bytes), options.out)


if __name__ == "__main__":
    main()
