"""The headline numbers of a run, each beside its bound or baseline. Called by `sections`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from echo2.report.costs import step_costs
from echo2.report.markup import num, percent, seconds
from echo2.report.record import RunRecord


@dataclass(frozen=True)
class Against:
    """What a headline is held against: a bound, a plan, a baseline; `basis` says which world it is of."""

    label: str
    value: str
    basis: str


@dataclass(frozen=True)
class Headline:
    """One number: `value` of the run itself, and what it is held against."""

    title: str
    value: str
    basis: str
    against: list[Against] = field(default_factory=list)


def headlines(record: RunRecord) -> Iterator[Headline]:
    """The headline numbers that the run's files hold."""
    yield rate(record)
    yield utilisation(record)
    yield cost(record)
    yield staleness(record)
    if record.summary.get("bcast_tail_s"):
        yield dissemination(record)
    if record.plan is not None and record.plan.get("activation"):
        yield activation(record)
    yield rollouts(record)


def rate(record: RunRecord) -> Headline:
    """Steps per second, against the upper bound and the plan."""
    per_s, plan = record.summary["steps_per_s"], record.plan
    against = []
    if (bound := record.rate_bound) is not None:
        most, term = bound
        against = [
            Against("upper bound (ratio)", f"{num(3600 * most)} ({per_s / most:.3f})", record.world),
            Against("term of the bound", term, record.world),
        ]
    if plan is not None:
        against.append(Against("plan", num(3600 * plan["steps_per_s"]), "planned"))
    against += [
        Against(label, num(3600 * beside["steps_per_s"]), basis)
        for label, basis, beside in record.beside
        if "steps_per_s" in beside
    ]
    return Headline("Steps per hour", num(3600 * per_s), record.world, against)


def utilisation(record: RunRecord) -> Headline:
    """Learner utilisation, against the plan; the bubble is the rest."""
    summary, plan = record.summary, record.plan
    against = [
        Against("bound", percent(1.0), record.world),
        Against("bubble (idle)", percent(summary["bubble"]), record.world),
    ]
    if steady := summary.get("steady"):
        share = percent(steady["learner_utilisation"])
        against.append(Against("steady, without the start", share, record.world))
    if plan is not None:
        against.insert(0, Against("plan", percent(plan["learner_utilisation"]), "planned"))
        against.append(Against("what binds", plan["binding"], "planned"))
    against += [
        Against(label, percent(beside["learner_utilisation"]), basis)
        for label, basis, beside in record.beside
        if "learner_utilisation" in beside
    ]
    return Headline("Learner utilisation", percent(summary["learner_utilisation"]), record.world, against)


def cost(record: RunRecord) -> Headline:
    """USD per step, against the plan and all workers on."""
    rows = step_costs(record)
    against = [Against(row.label.removesuffix(", planned"), num(row.total), row.basis) for row in rows[1:]]
    if rows:
        split = " + ".join(f"{num(usd)} {part}" for part, usd in rows[0].parts.items())
        against.insert(0, Against("made of", split, record.world))
    against += [
        Against(label, num(beside["step_cost_usd"]), basis)
        for label, basis, beside in record.beside
        if "step_cost_usd" in beside
    ]
    return Headline("USD per step", num(record.summary["step_cost_usd"]), record.world, against)


def staleness(record: RunRecord) -> Headline:
    """The largest staleness of what was trained, against S; its mean and p99."""
    lags = record.summary["staleness"]
    against = [
        Against("mean", f"{lags['mean']:.2f}", record.world),
        Against("p99", str(lags["p99"]), record.world),
    ]
    if record.S is not None:
        against.insert(0, Against("bound S", str(record.S), "set"))
    if record.plan is not None:
        against.append(
            Against("smallest feasible S", str(record.plan["smallest_feasible_S"] or "none"), "planned")
        )
    return Headline("Staleness, maximum", str(lags["max"]), record.world, against)


def dissemination(record: RunRecord) -> Headline:
    """Tail of dissemination over versions, against prediction, bound and the star."""
    tails, plan = record.summary["bcast_tail_s"], record.plan
    against = [Against("p99", seconds(tails["p99"]), record.world)]
    if plan is not None:
        way = plan["broadcast"]
        against += [
            Against(f"plan ({way['topology']})", seconds(way["time_s"]), "planned"),
            Against("bound (ratio)", f"{seconds(way['bound_s'])} ({way['ratio']:.2f})", "planned"),
        ]
        if "baseline_star_s" in way:
            against.append(Against("star instead", seconds(way["baseline_star_s"]), "planned"))
    return Headline("Dissemination tail, p50", seconds(tails["p50"]), record.world, against)


def activation(record: RunRecord) -> Headline:
    """USD/h of the chosen workers, against the bound and all on."""
    assert record.plan is not None
    chosen = record.plan["activation"]
    against = [
        Against(
            "least possible, LP bound (ratio)",
            f"{num(chosen['bound_usd_per_h'])} ({chosen['ratio']:.2f})",
            "planned",
        ),
        Against("workers chosen", str(len(record.plan["chosen"])), "planned"),
    ]
    if "baseline_all_on_usd_per_h" in chosen:
        against.insert(1, Against("all workers on", num(chosen["baseline_all_on_usd_per_h"]), "planned"))
    return Headline("Workers, USD/h", num(chosen["cost_usd_per_h"]), "planned", against)


def rollouts(record: RunRecord) -> Headline:
    """Dropped share; trained against dispatched lengths shows whether drops favour short answers."""
    summary = record.summary
    tokens = summary.get("tokens", {})
    against = [
        Against("trained", f"{summary['rollouts']['trained']:,}", record.world),
        Against("dispatched", f"{summary['rollouts']['dispatched']:,}", record.world),
    ]
    if tokens:
        pair = f"{num(tokens['trained_mean'])} / {num(tokens['dispatched_mean'])}"
        against.append(Against("mean tokens, trained / dispatched", pair, record.world))
    return Headline("Dropped rollouts", percent(summary["dropped_share"], 2), record.world, against)
