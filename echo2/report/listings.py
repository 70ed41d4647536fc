"""The long listings of the page: each version's dissemination, each worker, and the decisions.

Called by `sections`. What is capped says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from echo2.report.markup import (
    Html,
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
from echo2.report.record import RunRecord

Pictures = Mapping[str, Html]
MOST_VERSIONS = 400


def dissemination_section(record: RunRecord, pictures: Pictures) -> Html:
    """Dissemination of each version."""
    if record.log is None:
        return section("dissemination", "Dissemination per version", missing("log.jsonl"))
    versions = list(record.log.versions.values())
    rows = (
        (
            v.version,
            v.topology,
            len(v.arrivals_s) + len(v.targets),
            f"{v.size_bytes / 1e9:.3g}",
            seconds(v.tail_s) if v.tail_s is not None else "none arrived",
            seconds(v.planned_s) if v.planned_s else "no plan",
            seconds(v.bound_s),
            f"{v.tail_s / v.bound_s:.2f}" if v.tail_s is not None and v.bound_s > 0 else "",
            len(v.targets),
            v.caught_up,
        )
        for v in versions[:MOST_VERSIONS]
    )
    head = (
        "version", "topology", "workers", "GB", join(["tail ", tag(record.world)]),
        join(["tail ", tag("planned")]), join(["bound ", tag("planned")]), "tail / bound",
        "never arrived", "later, singly",
    )  # fmt: skip
    capped = len(versions) > MOST_VERSIONS
    body = (
        paragraph(f"The first {MOST_VERSIONS} of {len(versions):,} versions are listed.") if capped else "",
        table(head, rows, "sortable"),
    )
    return section(
        "dissemination",
        "Dissemination per version",
        pictures.get("dissemination", ""),
        details(f"{len(versions):,} versions", *body),
    )


def workers_section(record: RunRecord, pictures: Pictures) -> Html:
    """Workers that were paid for, and the pools of the plan."""
    log = record.log
    rows = []
    for w in record.summary.get("workers", ()):
        starts = log.activations.get(w["worker_id"], []) if log is not None else []
        again = f" (started {len(starts)} times)" if len(starts) > 1 else ""
        reason = starts[0][1] + again if starts else "no log"
        rows.append(
            (
                esc(w["worker_id"]), esc(w["pool"]), esc(w["gpu"]), esc(w["site"]), num(w["price_usd_per_h"]),
                f"{w['paid_s'] / 3600:.2f}", f"{w['rollouts']:,}", percent(w["busy_share"]),
                f"{w['usd']:.2f}", f"{w['egress_usd']:.2f}", reason,
            )
        )  # fmt: skip
    head = (
        "worker", "pool", "GPU", "site", "USD/h", "paid h", "rollouts", "utilisation", "USD", "egress USD",
        "why it was started",
    )  # fmt: skip
    return section(
        "workers",
        "Workers",
        paragraph(join([f"{len(rows)} workers were paid for. Click a head to sort. ", tag(record.world)])),
        table(head, rows, "sortable"),
        _pools(record),
    )


def _pools(record: RunRecord) -> Html:
    if record.plan is None:
        return missing("plan.json")
    rows = (
        (
            esc(p["pool"]), esc(p["gpu"]), esc(p["site"]), p["on_offer"], p["active"],
            num(p["price_usd_per_h"]), num(p["egress_usd_per_h"]), num(p["rollouts_per_s"]),
            num(p["effective_rollouts_per_s"]), seconds(p["t_bcast_s"]), p["reason"],
        )
        for p in record.plan["workers"]
    )  # fmt: skip
    head = (
        "pool", "GPU", "site", "on offer", "active", "USD/h", "egress USD/h", "rollouts/s", "of these fresh",
        "T_bcast", "why",
    )  # fmt: skip
    return join([Html(f"<h3>Pools {tag('planned')}</h3>"), table(head, rows, "sortable")])


def decisions_section(record: RunRecord, pictures: Pictures) -> Html:
    """The scheduler's decisions, searchable."""
    if record.log is None:
        return section("decisions", "Decisions", missing("log.jsonl"))
    sample = record.log.decisions
    counts = sample.shown()
    kinds = ", ".join(
        f"{kind} {made:,}" if kept == made else f"{kind} {kept:,} of {made:,}"
        for kind, (kept, made) in sorted(counts.items())
    )
    rows = sample.rows()
    text = json.dumps([[round(t, 3), *rest] for t, *rest in rows], separators=(",", ":"))
    data = Html(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
    return section(
        "decisions",
        "Decisions",
        paragraph(
            f"{len(rows):,} of {sum(sample.totals.values()):,} decisions are in this page; of a frequent "
            f"kind the first and the last are kept: {kinds}. All are in log.jsonl."
        ),
        Html(
            '<p><label for="find">Search </label><input id="find" type="search" '
            'placeholder="kind, worker, reason ..." autocomplete="off"> <output id="found"></output></p>'
            '<div class="scroll tall"><table id="decision-table"><thead><tr><th scope="col">time s</th>'
            '<th scope="col">decision</th><th scope="col">what</th><th scope="col">reason</th>'
            '<th scope="col">bound</th></tr></thead><tbody></tbody></table></div>'
            "<noscript><p>The list needs the page's script; all decisions are in log.jsonl.</p></noscript>"
            f'<script type="application/json" id="decision-data">{data}</script>'
        ),
    )
