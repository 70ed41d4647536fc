"""The figures of the report, each made of a run's record. Called by `write`, inside `style.drawing`.

A figure function returns None where the run directory does not hold what it draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from echo2.report import style
from echo2.report.markup import num
from echo2.report.record import RunRecord
from echo2.report.timeline import draw_course, draw_excerpt

Draw = Callable[[RunRecord], Any]


@dataclass(frozen=True)
class FigureSpec:
    """A figure: its file name, what it shows in words (the text for those who cannot see it too), and how."""

    name: str
    caption: str
    draw: Draw


def draw_staleness(record: RunRecord) -> Any:
    """Share of trained rollouts by staleness, with the bound S."""
    counts = {int(k): v for k, v in record.summary.get("staleness", {}).get("histogram", {}).items()}
    if not counts:
        return None
    total, mean = sum(counts.values()), record.summary["staleness"]["mean"]
    figure, axes = style.new_figure(2.6)
    values = range(max(max(counts), record.S or 0) + 1)
    bars = axes.bar(values, [100 * counts.get(v, 0) / total for v in values], color=style.BLUE, width=0.8)
    if len(values) <= 14:
        texts = axes.bar_label(bars, fmt=lambda share: f"{share:.1f} %" if share else "", padding=2)
        for text in texts:  # on paper of its own, so that the line of the mean does not cross it
            text.set(fontsize=8, bbox={"facecolor": axes.get_facecolor(), "linewidth": 0, "pad": 0.8})
    axes.axvline(mean, color=style.ORANGE, linestyle="--", label=f"mean {mean:.2f}")
    if record.S is not None:
        axes.axvline(record.S + 0.5, color=style.VERMILLION, label=f"bound S = {record.S}")
    axes.set(
        xlabel="staleness (versions)",
        ylabel=f"share of trained\nrollouts (%), {record.world}",
        xlim=(-0.6, values[-1] + 0.7),
    )
    axes.margins(y=0.15)
    axes.grid(axis="x", visible=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper left")
    return figure


def draw_dissemination(record: RunRecord) -> Any:
    """Per version: seconds until the last planned receiver had it, the plan's prediction and the bound."""
    if record.log is None:
        return None
    done = [v for v in record.log.versions.values() if v.arrivals_s]
    if not done:
        return None
    figure, axes = style.new_figure(2.9)
    at = [v.version for v in done]
    tails = [v.tail_s or 0.0 for v in done]
    means = [sum(v.arrivals_s) / len(v.arrivals_s) for v in done]
    planned = [v.planned_s if v.planned_s else float("nan") for v in done]
    ink = style.LIGHT.ink if _is_light(axes) else style.DARK.ink
    axes.plot(at, tails, "o", color=style.BLUE, ms=4.5, mfc="none", label=f"last worker, {record.world}")
    axes.plot(at, means, "x", color=style.SKY, ms=3.5, label=f"mean over workers, {record.world}")
    if any(p == p for p in planned):
        axes.plot(
            at, planned, color=style.ORANGE, ls="--", drawstyle="steps-mid", label="last worker, planned"
        )
    axes.plot(at, [v.bound_s for v in done], color=ink, ls=":", drawstyle="steps-mid", label="bound, planned")
    axes.set(xlabel="version", ylabel="seconds from publication")
    low = min(v for v in (*tails, *(v.bound_s for v in done)) if v > 0)
    if max(tails) > 12 * low:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * max(*tails, *(p for p in planned if p == p), 1e-9))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def draw_costs(record: RunRecord) -> Any:
    """USD per step by part: planned, as run, and with every worker of the pool switched on."""
    from echo2.report.costs import step_costs

    rows = step_costs(record)
    if not rows:
        return None
    figure, axes = style.new_figure(0.9 + 0.42 * len(rows))
    looks = {"learner": (style.BLUE, ""), "workers": (style.ORANGE, "//"), "egress": (style.GREEN, "..")}
    left = [0.0] * len(rows)
    for part, (colour, hatch) in looks.items():
        usd = [row.parts[part] for row in rows]
        axes.barh(range(len(rows)), usd, left=left, color=colour, hatch=hatch, label=part, height=0.62)
        left = [a + b for a, b in zip(left, usd)]
    for i, total in enumerate(left):
        axes.text(total, i, f" {num(total)}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * max(left) or 1.0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("USD per step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def draw_bubble(record: RunRecord) -> Any:
    """The learner's idle share by cause."""
    causes = record.summary.get("bubble_by_cause")
    if not causes:
        return None
    figure, axes = style.new_figure(0.75 + 0.3 * len(causes))
    for i, (cause, share) in enumerate(causes.items()):
        look = style.idle_look(cause)
        axes.barh(i, 100 * share, color=look.colour, hatch=look.hatch, height=0.6)
        axes.text(100 * share, i, f" {100 * share:.2f} %", va="center", fontsize=8)
    axes.set_yticks(
        range(len(causes)), [style.idle_look(cause).label.removeprefix("idle: ") for cause in causes]
    )
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.0, 120 * max(causes.values())))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"share of wall time (%), {record.world}")
    return figure


def _is_light(axes: Any) -> bool:
    return bool(axes.get_facecolor()[0] > 0.5)


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "timeline",
        "The whole run: share of time the learner trains or idles and for what, workers receiving a "
        "snapshot, workers up.",
        draw_course,
    ),
    FigureSpec(
        "timeline_excerpt",
        "A few publications in detail: steps of the learner (numbers are versions), its idle time, and each "
        "snapshot from publication until the last planned worker has it.",
        draw_excerpt,
    ),
    FigureSpec("bubble", "Idle time of the learner by what it waited for.", draw_bubble),
    FigureSpec(
        "step_cost", "USD per step, split by part, beside the baseline of all workers on.", draw_costs
    ),
    FigureSpec("staleness", "Staleness of the trained rollouts, with the bound S.", draw_staleness),
    FigureSpec(
        "dissemination",
        "Dissemination of each version: as run, as planned, and the bound set by the links.",
        draw_dissemination,
    ),
)
