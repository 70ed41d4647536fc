"""The sections of the page that its script fills: timeline, dissemination, workers, decisions.

Called by `sections`. Each holds labels, controls and an empty place; the data is in the page once, as
`payload` packs it. The table of workers is plain HTML, so that it can be read and printed without the script.
"""

from __future__ import annotations

from collections.abc import Mapping

from echo2.report.course import WorkerCourse
from echo2.report.markup import (
    Html,
    bullets,
    details,
    esc,
    join,
    missing,
    num,
    paragraph,
    percent,
    seconds,
    section,
    table,
    tag,
)
from echo2.report.record import Data, RunRecord

Pictures = Mapping[str, Html]
STORY = 3
ZOOM = (
    ("in", "+", "zoom in"),
    ("out", "\u2212", "zoom out"),
    ("left", "\u2190", "earlier"),
    ("right", "\u2192", "later"),
    ("all", "all", "show all"),
)


def chart(name: str, label: str, caption: str, controls: bool = True) -> Html:
    """A canvas that the script draws on, its buttons, and a line that says in words what it shows."""
    buttons = join(
        Html(f'<button type="button" data-zoom="{key}" aria-label="{esc(title)}">{esc(text)}</button>')
        for key, text, title in ZOOM
    )
    bar = Html(f'<div class="bar" data-for="{name}">{buttons}</div>') if controls else ""
    return Html(
        f'<figure class="chart" id="{name}-figure">{bar}<div class="legend" id="{name}-legend"></div>'
        f'<canvas id="{name}" tabindex="0" role="application" aria-label="{esc(label)}" '
        f'aria-roledescription="zoomable chart" aria-describedby="{name}-words"></canvas>'
        f'<p class="words" id="{name}-words" role="status"></p>'
        f"<figcaption>{esc(caption)}</figcaption></figure>"
    )


def timeline_section(record: RunRecord, pictures: Pictures) -> Html:
    """The run over time."""
    log = record.log
    if log is None:
        return section("timeline", "Timeline", missing("log.jsonl"))
    lives = "" if len(log.lives_s) < 2 else f" {len(log.lives_s)} lives of the run are laid end to end."
    return section(
        "timeline",
        "Timeline",
        paragraph(log.note, "warning") if log.note else "",
        chart(
            "course",
            "Timeline of the run: learner, snapshots, generation, workers",
            "Drag to move, click once and then turn the wheel (or Ctrl and wheel, or + and -) to zoom, arrow "
            "keys to move, Home for all; the line above says what is in view. The marks in a snapshot are "
            "its bound and its prediction." + lives,
        ),
        Html(
            f"<h3>Each worker {tag(record.world)}</h3>"
            '<div id="lanes-scroll" class="lanes" tabindex="0" role="region" aria-label="Lanes of workers">'
            '<div id="lanes-room"><canvas id="lanes" aria-hidden="true"></canvas></div></div>'
            '<p class="words" id="lanes-words" role="status"></p>'
        ),
        _unscripted(pictures, "timeline", "timeline_excerpt"),
    )


def dissemination_section(record: RunRecord, pictures: Pictures) -> Html:
    """Dissemination of each version."""
    if record.log is None:
        return section("dissemination", "Dissemination per version", missing("log.jsonl"))
    return section(
        "dissemination",
        "Dissemination per version",
        chart(
            "spread",
            "Seconds from publication until the last planned worker had each version",
            "Seconds from publication until the last planned worker had a version: predicted by the plan, "
            f"achieved ({record.world}), and the bound set by the links. Moves with the chart of staleness.",
        ),
        Html(
            '<p><label for="find-version">Filter versions </label><input id="find-version" type="search" '
            'placeholder="version, topology, reason ..." autocomplete="off"> '
            '<output id="found-version"></output></p><div id="version-list" class="list"></div>'
        ),
        _unscripted(pictures, "dissemination"),
    )


def workers_section(record: RunRecord, pictures: Pictures) -> Html:
    """Workers that were paid for, and the pools of the plan."""
    log = record.log
    known = {str(w["worker_id"]): w for w in record.summary.get("workers", ())}
    courses = log.workers if log is not None else {}
    names = [*known, *(n for n, c in courses.items() if n not in known and (c.story or c.up))]
    rows = [_worker(known.get(name, {}), courses.get(name, WorkerCourse(name))) for name in names]
    head = (
        "worker", "why it was started and stopped", "USD/h", "paid h", "USD", "egress USD", "rollouts",
        "utilisation", "rollouts/s offered", "achieved", "up Mbit/s", "down Mbit/s", "GPU", "pool", "site",
    )  # fmt: skip
    search = Html(
        '<p><label for="find-worker">Filter workers </label><input id="find-worker" type="search" '
        'placeholder="name, pool, GPU, reason ..." autocomplete="off"> '
        '<output id="found-worker"></output></p>'
    )
    return section(
        "workers",
        "Workers",
        paragraph(join([f"{len(rows)} workers were started. A head sorts its column. ", tag(record.world)])),
        search,
        Html(f'<div id="worker-table" class="tall">{table(head, rows, "sortable")}</div>'),
        _pools(record),
    )


def _worker(w: Data, course: WorkerCourse) -> tuple[object, ...]:
    offer = course.offer
    up_s = sum(b - a for a, b, _ in course.up)
    paid_s = w.get("paid_s", up_s)
    return (
        esc(course.worker_id),
        _story(course),
        _prices(w, course),
        f"{paid_s / 3600:.2f}" if paid_s >= 36 else f"{paid_s / 3600:.2g}",
        num(w.get("usd")),
        num(w.get("egress_usd")),
        f"{w['rollouts']:,}" if "rollouts" in w else "unknown",
        percent(w["busy_share"] if "busy_share" in w else _busy(course, up_s)),
        num(course.measured_rollouts_per_s or offer.get("rollouts_per_s")),
        num(w["rollouts"] / up_s) if up_s > 0 and "rollouts" in w else "",
        num(course.uplink_bps / 1e6) if course.uplink_bps else "unknown",
        num(course.downlink_bps / 1e6) if course.downlink_bps else "unknown",
        *(esc(w.get(key) or offer.get(key, "")) for key in ("gpu", "pool", "site")),
    )


def _prices(w: Data, course: WorkerCourse) -> str:
    prices = [usd for _, usd in course.prices_usd_per_h]
    if not prices:
        return num(w.get("price_usd_per_h"))
    low, high = min(prices), max(prices)
    return num(low) if low == high else f"{num(low)} to {num(high)}"


def _busy(course: WorkerCourse, up_s: float) -> float | None:
    """Mean share of its slots that generated while it was up."""
    slots = course.offer.get("slots", 0)
    rollout_s = sum(course.running.means()) * course.running.width_s
    return rollout_s / (slots * up_s) if slots and up_s > 0 else None


def _story(course: WorkerCourse) -> Html:
    """Each start and end with its reason; of many, the first and the last in view and all unfolded."""
    if not course.story:
        return esc("no log")
    told = [f"{seconds(t)}: {what}: {why}" for t, what, why in course.story]
    if len(told) == 1:
        return esc(told[0])
    if len(told) <= STORY:
        return bullets(told)
    return join(
        [bullets(told[:1]), details(f"{len(told) - 2:,} more", bullets(told[1:-1])), bullets(told[-1:])]
    )


def _pools(record: RunRecord) -> Html:
    if record.plan is None:
        return missing("plan.json")
    rows = (
        (
            esc(p["pool"]), p["reason"], p["on_offer"], p["active"], num(p["price_usd_per_h"]),
            num(p["egress_usd_per_h"]), num(p["rollouts_per_s"]), num(p["effective_rollouts_per_s"]),
            seconds(p["t_bcast_s"]), esc(p["gpu"]), esc(p["site"]),
        )
        for p in record.plan["workers"]
    )  # fmt: skip
    head = (
        "pool", "why", "on offer", "active", "USD/h", "egress USD/h", "rollouts/s", "of these fresh",
        "T_bcast", "GPU", "site",
    )  # fmt: skip
    return join([Html(f"<h3>Pools {tag('planned')}</h3>"), table(head, rows, "sortable")])


def decisions_section(record: RunRecord, pictures: Pictures) -> Html:
    """The scheduler's decisions, searchable."""
    if record.log is None:
        return section("decisions", "Decisions", missing("log.jsonl"))
    totals = record.log.decisions.totals()
    boxes = join(
        Html(
            f'<label><input type="checkbox" data-kind="{esc(kind)}" checked> {esc(kind)} '
            f'<span class="soft">{made:,}</span></label>'
        )
        for kind, made in totals.items()
    )
    return section(
        "decisions",
        "Decisions",
        paragraph(
            f"All {sum(totals.values()):,} decisions of the run, with reason and bound. Every word must "
            "occur; a click on a time shows that moment in the timeline."
        ),
        Html(
            '<p><label for="find">Search </label><input id="find" type="search" '
            'placeholder="kind, worker, reason ..." autocomplete="off"> '
            '<output id="found"></output></p>'
            f'<fieldset class="kinds"><legend>Kinds</legend>{boxes}'
            '<button type="button" data-kinds="all">all</button>'
            '<button type="button" data-kinds="none">none</button>'
            '<button type="button" data-kinds="rare">the rare ones</button></fieldset>'
            '<div id="decision-list" class="list"></div>'
            '<p id="decision-whole" class="words" role="status"></p>'
            "<noscript><p>The list needs the page's script; all decisions are in log.jsonl.</p></noscript>"
        ),
    )


def _unscripted(pictures: Pictures, *names: str) -> Html:
    """What those see whose browser runs no script."""
    found = join(pictures[name] for name in names if name in pictures)
    return Html(f"<noscript>{found}</noscript>") if found else found
