"""How echo2 is put together: three planes, one scheduler, two worlds.

    python -m paper_figures.architecture --out DIR

A drawing; nothing in it is measured.
"""

from __future__ import annotations

from typing import Any

from echo2.report import style
from paper_figures.output import finish, out_folder

Box = tuple[float, float, float, float]

SCHEDULER: Box = (3.9, 2.55, 2.2, 1.2)
LIVE: dict[str, Box] = {
    "learning plane\nGRPO, versions, checkpoints": (7.05, 4.35, 2.8, 0.95),
    "data plane\ntasks, rewards, ledger": (7.05, 2.7, 2.8, 0.95),
    "rollout plane\nvLLM or transformers workers,\nsnapshots through relays": (7.05, 0.75, 2.8, 1.25),
}
SIMULATED: dict[str, Box] = {
    "simulated learner\nstep times": (0.15, 4.35, 2.8, 0.95),
    "length, price and\npreemption traces": (0.15, 2.7, 2.8, 0.95),
    "simulated workers and network\nbandwidth traces, chunks or fluid": (0.15, 0.75, 2.8, 1.25),
}
POLICY = ("capacity", "staleness", "broadcast", "activation")


def box(axes: Any, at: Box, text: str, colour: str, bold: bool = False) -> None:
    """A box with centred text."""
    x, y, width, height = at
    axes.add_patch(_rectangle(at, colour))
    weight = "bold" if bold else "normal"
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5, weight=weight)


def _rectangle(at: Box, colour: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    x, y, width, height = at
    return FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0.02,rounding_size=0.08", facecolor=colour + "33",
        edgecolor=colour, linewidth=1.4,
    )  # fmt: skip


def arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    """An arrow with its label above its middle."""
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "color": style.LIGHT.ink, "lw": 1.2})
    if text:
        middle = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
        axes.annotate(text, middle, xytext=(0, 4), textcoords="offset points", ha="center", fontsize=7.5)


def draw() -> Any:
    """Simulation to the left, the live runtime to the right, the scheduler between them."""
    figure, axes = style.new_figure(3.9)
    axes.set(xlim=(0, 10), ylim=(0, 6.2))
    axes.axis("off")
    axes.text(1.7, 5.75, "simulation (SimPy)", ha="center", weight="bold", color=style.LIGHT.ink)
    axes.text(8.3, 5.75, "live (torch, vLLM)", ha="center", weight="bold", color=style.LIGHT.ink)
    for text, at in SIMULATED.items():
        box(axes, at, text, style.ORANGE)
    for text, at in LIVE.items():
        box(axes, at, text, style.GREEN)
    box(axes, SCHEDULER, "Scheduler\nfacts in, decisions out", style.BLUE, bold=True)
    for i, name in enumerate(POLICY):
        box(axes, (3.9 + 1.14 * (i % 2), 1.75 - 0.5 * (i // 2), 1.06, 0.4), name, style.SKY)
    axes.text(5.0, 0.85, "echo2/policy: pure, no clock, no I/O", ha="center", fontsize=7.5)
    arrow(axes, (3.05, 3.4), (3.8, 3.4), "facts")
    arrow(axes, (3.8, 2.9), (3.05, 2.9), "decisions")
    arrow(axes, (6.95, 3.4), (6.2, 3.4), "facts")
    arrow(axes, (6.2, 2.9), (6.95, 2.9), "decisions")
    box(axes, (3.9, 4.35, 2.2, 0.95), "log of facts and decisions\nreplays byte for byte", style.GREY)
    arrow(axes, (5.0, 3.8), (5.0, 4.3))
    return figure


CAPTION = (
    "A drawing. One scheduler, a pure state machine, drives two worlds: a driver turns happenings into facts "
    "and decisions into happenings, and decides nothing. The live world has the paper's three planes: "
    "rollout, learning and data. The simulated one replays recorded bandwidth, prices and preemptions."
)


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    with style.drawing():
        finish(draw(), "architecture", CAPTION, out)


if __name__ == "__main__":
    main()
