"""Why the winner: each choice put back to what the configuration had, by plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from echo2.study.candidate import AUTO, MEASURED, Candidate, Planned, Plans
from echo2.study.objective import Objective
from echo2.study.optimise import Search

NAMES = {
    "staleness": "S",
    "publish_period": "kappa",
    "topologies": "topology",
    "delta_ratio": "codec",
    "margin": "margin",
    "pools": "pools",
}


def said(candidate: Candidate, name: str) -> str:
    """A choice in words."""
    value = getattr(candidate, name)
    if name == "topologies":
        return ",".join(value) or "any"
    if name == "delta_ratio":
        return "full" if value == 1 else "measured" if value == MEASURED else f"delta/{value:g}"
    if name == "margin":
        return "auto" if value == AUTO else f"{value:g}"
    if name == "pools":
        return ", ".join(f"{count} {pool}" for pool, count in value if count)
    return str(value)


def reasons(found: Search, plans: Plans) -> Iterator[str]:
    """A sentence for each choice that is not the configuration's, then one for each pool that is used."""
    winner, goal = found.winner.planned, found.goal
    for name in winner.candidate.differs(found.given.candidate):
        yield _choice(name, winner, found.given, plans, goal)
    yield from _smaller_staleness(found)
    for row in winner.plan.workers:
        if row.active:
            yield f"{row.active} of {row.on_offer} {row.pool}: {row.reason}"


def _choice(name: str, winner: Planned, given: Planned, plans: Plans, goal: Objective) -> str:
    old, new = said(given.candidate, name), said(winner.candidate, name)
    back = {name: getattr(given.candidate, name)}
    if name == "staleness":
        back["publish_period"] = 0
    with_old = plans.plan(replace(winner.candidate, **back))
    a, b = goal.of_plan(with_old), goal.of_plan(winner)
    change = f"{a:.4f} by plan instead of {b:.4f}" if math.isfinite(a) else "no plan that counts"
    return f"{NAMES[name]} {new}, not {old}: with that, {change} {goal.unit}"


def _smaller_staleness(found: Search) -> Iterator[str]:
    """What a smaller S would cost, as simulated."""
    best = found.winner
    value = found.goal.of_outcome(best.outcome)
    below: dict[int, float] = {}
    for tried in found.tried:
        S = tried.planned.candidate.staleness
        if best.planned.candidate.staleness > S:
            below[S] = min(below.get(S, math.inf), found.goal.of_outcome(tried.outcome))
    for S, other in sorted(below.items(), reverse=True):
        if math.isfinite(other):
            yield f"S = {S} would cost {other / value - 1:+.1%} as simulated"
