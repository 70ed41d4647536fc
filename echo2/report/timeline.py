"""The two timelines of the report: the whole run in bins, and an excerpt span by span."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from echo2.report import style
from echo2.report.digest import LogDigest, Steps
from echo2.report.record import RunRecord

BINS = 120
EXCERPT_STEPS = 12


def draw_course(record: RunRecord) -> Any:
    """Learner, snapshots in flight and workers up over the whole run; None without a log."""
    log = record.log
    if log is None or log.end_s <= 0:
        return None
    unit, size = time_unit(log.end_s)
    figure, (learner, flight, workers) = style.new_figure(
        4.2, rows=3, sharex=True, gridspec_kw={"height_ratios": [1.5, 1, 1]}
    )
    _draw_learner_shares(learner, log, size)
    _draw_steps(flight, log.receiving, log.end_s, size, style.SENDING.colour, "workers\nreceiving")
    _draw_steps(workers, log.workers_up, log.end_s, size, style.GENERATING.colour, "workers\nup")
    workers.set(xlabel=f"time ({unit}), {record.world}", xlim=(0, log.end_s / size))
    figure.align_ylabels()
    figure.legend(*learner.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def _draw_learner_shares(axes: Any, log: LogDigest, size: float) -> None:
    width = log.end_s / BINS
    bottom = _shares(((t, s) for t, s, _ in log.train), width)
    edges = [i * width / size for i in range(BINS + 1)]
    axes.stairs(bottom, edges, fill=True, color=style.TRAINING.colour, label=style.TRAINING.label)
    for cause in log.idle_by_cause():
        look = style.idle_look(cause)
        share = _shares(((t, s) for t, s, c in log.idle if c == cause), width)
        top = [a + b for a, b in zip(bottom, share)]
        axes.stairs(
            top, edges, baseline=bottom, fill=True, facecolor=look.colour, hatch=look.hatch, label=look.label
        )
        bottom = top
    axes.set(ylabel="learner,\nshare of time", ylim=(0, 1.02))


def _shares(spans: Iterable[tuple[float, float]], width: float) -> list[float]:
    """Share of each of `BINS` bins of `width` seconds that (start, seconds) spans cover."""
    out = [0.0] * BINS
    for start, seconds in spans:
        end = start + seconds
        for i in range(min(BINS - 1, int(start / width)), min(BINS - 1, int(end / width)) + 1):
            out[i] += max(0.0, min(end, (i + 1) * width) - max(start, i * width)) / width
    return out


def _draw_steps(axes: Any, series: Steps, end_s: float, size: float, colour: str, label: str) -> None:
    t = [at / size for at, _ in series] + [end_s / size]
    values = [value for _, value in series] + [series[-1][1]]
    axes.fill_between(t, values, step="post", color=colour, alpha=0.45, linewidth=0)
    axes.step(t, values, where="post", color=colour, linewidth=0.8)
    axes.set(ylabel=label, ylim=(0, 1.15 * max(*values, 1)))
    axes.yaxis.get_major_locator().set_params(integer=True)


def draw_excerpt(record: RunRecord) -> Any:
    """Steps, idle time and each snapshot's way, around the longest wait past the start."""
    log = record.log
    if log is None or not log.train:
        return None
    begin, end = _window(log)
    unit, size = time_unit(end - begin)
    shown = [(v, v.published_s + v.tail_s) for v in log.versions.values() if v.tail_s is not None]
    shown = [(v, done_s) for v, done_s in shown if v.published_s < end and done_s > begin]
    figure, axes = style.new_figure(1.5 + 0.22 * len(shown))
    _draw_learner_spans(axes, log, begin, end, size)
    rows = ["learner"]
    for i, (version, done_s) in enumerate(shown, start=1):
        span = ((version.published_s - begin) / size, (done_s - version.published_s) / size)
        colour, hatch = style.SENDING.colour, style.SENDING.hatch
        axes.broken_barh(
            [span],
            (i - 0.35, 0.7),
            facecolor=colour,
            hatch=hatch,
            label=style.SENDING.label if i == 1 else "",
        )
        rows.append(f"snapshot {version.version}")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel=f"time ({unit}) since {_clock(begin)} of the run, {record.world}")
    axes.set_xlim(0, (end - begin) / size)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _window(log: LogDigest) -> tuple[float, float]:
    """From where to where: `EXCERPT_STEPS` steps around the longest wait away from both ends of the run."""
    steps = log.train
    late = [span for span in log.idle if 0.1 < span[0] / log.end_s < 0.95]
    worst = max(late, key=lambda span: span[1])[0] if late else log.end_s / 2
    middle = sum(1 for start, _, _ in steps if start < worst)
    first = max(0, min(middle - EXCERPT_STEPS // 2, len(steps) - EXCERPT_STEPS))
    last = steps[min(first + EXCERPT_STEPS, len(steps)) - 1]
    return steps[first][0], last[0] + last[1]


def _draw_learner_spans(axes: Any, log: LogDigest, begin: float, end: float, size: float) -> None:
    trained = [(t, s, v) for t, s, v in log.train if t < end and t + s > begin]
    spans = [((t - begin) / size, s / size) for t, s, _ in trained]
    paper = axes.get_facecolor()
    axes.broken_barh(
        spans, (-0.4, 0.8), facecolor=style.TRAINING.colour, edgecolor=paper, linewidth=0.8, label="training"
    )
    for (left, width), (_, _, version) in zip(spans, trained):
        if width * size > (end - begin) / 40:
            axes.text(
                left + width / 2, 0, str(version), color="white", ha="center", va="center", fontsize=7.5
            )
    for cause in log.idle_by_cause():
        waits = [((t - begin) / size, s / size) for t, s, c in log.idle if c == cause and begin <= t < end]
        if waits:
            look = style.idle_look(cause)
            axes.broken_barh(waits, (-0.4, 0.8), facecolor=look.colour, hatch=look.hatch, label=look.label)


def time_unit(seconds: float) -> tuple[str, float]:
    """A unit that suits a span, and its seconds."""
    if seconds >= 3 * 86400:
        return "days", 86400.0
    if seconds >= 3 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if seconds >= 180 else ("s", 1.0)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
