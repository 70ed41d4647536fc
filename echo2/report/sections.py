"""The sections of the page, one function each. Called by `page`; a section without data says what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from echo2.report.costs import step_costs
from echo2.report.headlines import Headline, headlines
from echo2.report.markup import (
    Html,
    bullets,
    esc,
    join,
    num,
    paragraph,
    percent,
    seconds,
    section,
    table,
    tag,
)
from echo2.report.record import RunRecord
from echo2.report.style import idle_look

Pictures = Mapping[str, Html]


def headline_section(record: RunRecord, pictures: Pictures) -> Html:
    """The headline numbers as cards."""
    cards = join(_card(headline) for headline in headlines(record))
    warning = ""
    if not record.summary.get("complete", True):
        waits = record.summary.get("waiting_for") or "unknown"
        warning = paragraph(
            f"The run did not finish: at its deadline the learner was waiting for {waits}.", "warning"
        )
    return section("headline", "Headline numbers", warning, Html(f'<div class="cards">{cards}</div>'))


def _card(headline: Headline) -> Html:
    rows = join(
        Html(f"<dt>{esc(a.label)}</dt><dd>{esc(a.value)} {tag(a.basis)}</dd>") for a in headline.against
    )
    return Html(
        f'<div class="card"><h3>{esc(headline.title)}</h3>'
        f'<p class="big">{esc(headline.value)} {tag(headline.basis)}</p><dl>{rows}</dl></div>'
    )


def answers_section(record: RunRecord, pictures: Pictures) -> Html:
    """The planner's answers in words."""
    if record.plan is None:
        return section("answers", "The planner's answers", missing("plan.json"))
    plan = record.plan
    what = (
        f"S = {plan['S']}, kappa = {plan['kappa']}, {len(plan['chosen'])} workers, "
        f"{plan['broadcast']['topology']}: {plan['broadcast']['reason']}."
    )
    tried = table(
        ("kappa", "workers", "topology", "T_bcast", "learner utilisation", "USD per step", "rate covered"),
        (
            (
                row["kappa"],
                row["workers"],
                row["topology"],
                seconds(row["t_bcast_s"]),
                percent(row["learner_utilisation"]),
                num(row["step_cost_usd"]),
                "yes" if row["feasible"] else "no",
            )
            for row in plan.get("considered", ())
        ),
    )
    head = Html(f"<h3>Publication periods tried {tag('planned')}</h3>")
    return section(
        "answers",
        "The planner's answers",
        paragraph(join([what, " ", tag("planned")])),
        bullets(plan["answers"]),
        head,
        tried,
    )


def baselines_section(record: RunRecord, pictures: Pictures) -> Html:
    """Other systems in the same world, where they were run."""
    if not record.baselines:
        return Html("")
    rows = (
        (
            row["system"],
            num(3600 * row["steps_per_s"]),
            percent(row["learner_utilisation"]),
            num(row["step_cost_usd"]),
            f"{row['staleness']['mean']:.2f}",
            row["staleness"]["max"],
            row.get("note", ""),
        )
        for row in record.baselines
    )
    head = ("system", "steps/h", "learner utilisation", "USD per step", "mean staleness", "max", "note")
    return section(
        "baselines",
        "Baselines under the same world",
        paragraph(join(["All rows: same learner, batch, lengths and seed. ", tag(record.world)])),
        table(head, rows, "sortable"),
    )


def timeline_section(record: RunRecord, pictures: Pictures) -> Html:
    """The run over time."""
    note = record.log.note if record.log is not None else missing("log.jsonl")
    return section(
        "timeline",
        "Timeline",
        note if isinstance(note, Html) else paragraph(note, "warning") if note else "",
        pictures.get("timeline", ""),
        pictures.get("timeline_excerpt", ""),
    )


def bubble_section(record: RunRecord, pictures: Pictures) -> Html:
    """Idle time by cause."""
    wall = record.summary["wall_s"]
    rows = [
        (idle_look(cause).label.removeprefix("idle: "), percent(share, 2), seconds(share * wall))
        for cause, share in record.summary.get("bubble_by_cause", {}).items()
    ]
    return section(
        "bubble",
        "Bubble by cause",
        paragraph(
            join(
                [
                    f"The learner idles {percent(record.summary['bubble'], 2)} of {seconds(wall)}. ",
                    tag(record.world),
                ]
            )
        ),
        pictures.get("bubble", ""),
        table(("the learner", "share of wall time", "time"), rows),
    )


def cost_section(record: RunRecord, pictures: Pictures) -> Html:
    """Step cost by part."""
    rows = step_costs(record)
    cells = (
        (esc(r.label), *(num(usd) for usd in r.parts.values()), num(r.total), tag(r.basis)) for r in rows
    )
    notes = bullets(f"{row.label}: {row.note}." for row in rows if row.note)
    return section(
        "cost",
        "Step cost",
        pictures.get("step_cost", ""),
        table(("USD per step", "learner", "workers", "egress", "sum", ""), cells),
        notes,
    )


def staleness_section(record: RunRecord, pictures: Pictures) -> Html:
    """Histogram of staleness."""
    lags = record.summary["staleness"]
    total = max(1, sum(lags["histogram"].values()))
    rows = ((value, f"{count:,}", percent(count / total, 2)) for value, count in lags["histogram"].items())
    return section(
        "staleness",
        "Staleness",
        pictures.get("staleness", ""),
        table(("staleness", "trained rollouts", "share"), rows),
        paragraph(
            join(
                ["No rollout staler than S may be trained; the scheduler drops it first. ", tag(record.world)]
            )
        ),
    )


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
        "version", "topology", "workers", "GB", join(["tail ", tag(record.world)]), join(["tail ", tag("planned")]),
        join(["bound ", tag("planned")]), "tail / bound", "never arrived", "later, singly",
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
                f"{w['paid_s'] / 3600:.2f}", f"{w['rollouts']:,}", percent(w["busy_share"]), f"{w['usd']:.2f}",
                f"{w['egress_usd']:.2f}", reason,
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
            esc(p["pool"]), esc(p["gpu"]), esc(p["site"]), p["on_offer"], p["active"], num(p["price_usd_per_h"]),
            num(p["egress_usd_per_h"]), num(p["rollouts_per_s"]), num(p["effective_rollouts_per_s"]),
            seconds(p["t_bcast_s"]), p["reason"],
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
            f"{len(rows):,} of {sum(sample.totals.values()):,} decisions are in this page; of a frequent kind "
            f"the first and the last are kept: {kinds}. All are in log.jsonl."
        ),
        Html(
            '<p><label for="find">Search </label><input id="find" type="search" '
            'placeholder="kind, worker, reason ..." autocomplete="off"> <output id="found"></output></p>'
            '<div class="scroll tall"><table id="decision-table"><thead><tr><th scope="col">time s</th>'
            '<th scope="col">decision</th><th scope="col">what</th><th scope="col">reason</th>'
            '<th scope="col">bound</th></tr></thead><tbody></tbody></table></div>'
            "<noscript><p>The list needs the page's own script; all decisions are in log.jsonl.</p></noscript>"
            f'<script type="application/json" id="decision-data">{data}</script>'
        ),
    )


def provenance_section(record: RunRecord, pictures: Pictures) -> Html:
    """Where the numbers come from."""
    what = (
        "Simulated: nothing was rented and nothing trained. The scheduler is the one that drives live runs; links, "
        "prices, machines and lengths come from the traces named here."
        if record.world == "simulated"
        else f"This run was {record.world}."
    )
    seed = f" Seed {record.seed}." if record.seed is not None else ""
    prices = table(
        ("price of", "USD/h", "per", "quoted on", "source"),
        (
            (
                esc(p.get("what", "")),
                num(p.get("usd_per_h")),
                p.get("unit", ""),
                esc(p.get("date") or "undated"),
                "; ".join([p.get("source", ""), *p.get("urls", ())]),
            )
            for p in record.prices
        ),
    )
    config = Html(f"<pre>{esc(record.config_text)}</pre>") if record.config_text else missing("config.toml")
    return section(
        "provenance",
        "Provenance",
        paragraph(what + seed),
        bullets(record.notes) if record.notes else missing("provenance.json"),
        prices if record.prices else "",
        details("Configuration", config),
    )


def details(title: str, *parts: Any) -> Html:
    """Something to unfold."""
    return Html(f"<details><summary>{esc(title)}</summary>{join(part for part in parts if part)}</details>")


def missing(name: str) -> Html:
    """Says what is not shown because a file is not there."""
    return paragraph(f"Not shown: this run directory has no {name}.", "missing")


SECTIONS = (
    headline_section,
    answers_section,
    baselines_section,
    timeline_section,
    bubble_section,
    cost_section,
    staleness_section,
    dissemination_section,
    workers_section,
    decisions_section,
    provenance_section,
)
