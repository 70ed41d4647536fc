"""The sections of the page, one function each; one without data says what is missing.

Called by `page`. What the script fills (timeline, versions, workers, decisions) is in `listings`.
"""

from __future__ import annotations

from echo2.report.costs import step_costs
from echo2.report.headlines import Headline, headlines
from echo2.report.listings import (
    Pictures,
    chart,
    decisions_section,
    dissemination_section,
    timeline_section,
    workers_section,
)
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
from echo2.report.record import RunRecord
from echo2.report.style import idle_look


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
        f"S = {plan['S']}, kappa = {plan['kappa']}, {len(plan['chosen'])} workers; "
        f"{plan['broadcast']['reason']}."
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
        _ages(record),
        table(("staleness", "trained rollouts", "share"), rows),
        paragraph(
            join(
                ["No rollout staler than S may be trained; the scheduler drops it first. ", tag(record.world)]
            )
        ),
    )


def _ages(record: RunRecord) -> Html:
    if record.log is None:
        return missing("log.jsonl")
    return chart(
        "ages",
        "Staleness of each step's batch: lowest, mean and highest, with the bound S",
        f"Staleness of what each step was trained on ({record.world}): the band from the freshest group to "
        "the stalest, their mean, and the bound S. Moves with the chart of dissemination.",
    )


def provenance_section(record: RunRecord, pictures: Pictures) -> Html:
    """Where the numbers come from."""
    what = (
        "Simulated: nothing was rented and nothing trained. The scheduler is the one that drives live runs; "
        "links, prices, machines and lengths come from the traces named here."
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
        bullets(record.notes) if record.notes else missing("plan.json with notes"),
        prices if record.prices else "",
        details("Configuration", config),
    )


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
