"""Dissemination tail against the number of workers, every topology against the bound.

    python -m paper_figures.dissemination_tail --out DIR

Planned times of one full snapshot on the measured matrix of cloud regions; the scenario is the one of
`benchmarks/broadcast_bound.py`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.broadcast_bound import SIZE_BYTES, region_problem
from echo2.policy.broadcast import candidates
from echo2.report import style
from echo2.traces import regions
from paper_figures.output import finish, out_folder

COUNTS = (2, 4, 8, 16, 32, 64, 128)
HOME_SHARES = (0.0, 0.5)
TITLES = ("all workers in cloud regions", "half of the workers on home lines")
# Above this the LP bound takes long; the cut bound, which is no higher, stands in its place.
LP_UP_TO = 32
TICKS_S = (30, 100, 300, 1000, 3000, 10_000)
SEED = 0


def tails(home_share: float) -> dict[str, list[float]]:
    """Seconds until the last worker has the snapshot, by topology and for the bound, over `COUNTS`."""
    out: dict[str, list[float]] = {name: [] for name in (*style.TOPOLOGY, "bound")}
    for count in COUNTS:
        problem = region_problem(regions(), count, home_share, SEED)
        plans = candidates(problem, lp_bound=count <= LP_UP_TO)
        for name in style.TOPOLOGY:
            times = [plan.time_s for plan in plans if plan.topology == name]
            out[name].append(min(times, default=float("nan")))
        out["bound"].append(plans[0].bound_s)
    return out


def draw() -> Any:
    """Two panels, one for each share of home lines."""
    figure, panels = style.new_figure(3.7, columns=2, sharey=True)
    for axes, share, title in zip(panels, HOME_SHARES, TITLES):
        seconds = tails(share)
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
        axes.set(xscale="log", yscale="log", xlabel="workers", title=title)
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axes.set_yticks(TICKS_S, [f"{tick:,}" for tick in TICKS_S])
        axes.minorticks_off()
    panels[0].set_ylabel(f"dissemination tail (s), planned, {SIZE_BYTES / 1e9:.0f} GB")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def caption() -> str:
    """What the figure shows and rests on."""
    epoch = regions().epoch
    return (
        f"Planned seconds until the last worker has a full snapshot of {SIZE_BYTES / 1e9:.0f} GB "
        "(dissemination tail), by topology, and the bound that no plan can beat (linear program over the "
        f"measured pairs up to {LP_UP_TO} workers, the higher of fluid and cut bound beyond). Stripes lie on "
        "the bound, at right with the single tree on them; regional plans exist where regions hold several "
        f"workers. Learner and workers are dealt out over the regions of {epoch} (trace skyplane-{epoch}: "
        "measured capacity and RTT, list prices of egress). Right: every other worker on average has a home "
        "line instead (uplink 20 to 40, downlink 200 to 400 Mbit/s, not measured, drawn with seed "
        f"{SEED}). Nothing was sent."
    )


def main() -> None:
    out = out_folder(__doc__.splitlines()[0])
    with style.drawing():
        finish(draw(), "dissemination_tail", caption(), out)


if __name__ == "__main__":
    main()
