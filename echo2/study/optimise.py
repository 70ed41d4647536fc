"""The search for the cheapest run: by plan first, then the finalists in simulation.

A plan takes a fraction of a second and a simulation many, so all choices are judged by their plans and a
dozen in the simulated world. The plan's error is learned on the way: a candidate is expected to come
out as its most similar simulated neighbour did. Called by `echo2 optimise`, which says what simulates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echo2.errors import InfeasibleError
from echo2.study.candidate import Candidate, Planned, Plans
from echo2.study.neighbours import Space
from echo2.study.objective import Objective, Outcome, check_reachable

# A climb by plan alone ends when a round gains less than this, or after so many rounds.
GAIN, CLIMBS = 1e-3, 4
# Plans climbed from before anything is simulated.
BEGINNINGS = 3
# A plan that starts the same run as a simulated one is worth a look only when little else is left.
TWIN = 1.01
# What is expected to come out this many times the best is not simulated.
HOPELESS = 1.05

Evaluate = Callable[[Sequence[Planned]], Sequence[Outcome]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tried:
    """A simulated candidate."""

    planned: Planned
    outcome: Outcome


@dataclass(frozen=True)
class Search:
    """The result: everything simulated, the best first; and how many plans it took."""

    goal: Objective
    given: Planned
    tried: tuple[Tried, ...]
    plans: int

    @property
    def winner(self) -> Tried:
        """The best."""
        return self.tried[0]


def search(
    plans: Plans, space: Space, given: Candidate, goal: Objective, evaluate: Evaluate, most: int, batch: int,
    say: Say = lambda line: None,
) -> Search:  # fmt: skip
    """At most `most` candidates simulated, `batch` at a time. None finishes in time: InfeasibleError."""
    first = plans.plan(given)
    starts = sorted((plans.plan(c) for c in space.starts(given)), key=goal.of_plan)
    for start in starts[:BEGINNINGS]:
        _climb(plans, space, goal, start)
    check_reachable(goal, plans.all)
    say(f"{plans.number} plans; the best {min(map(goal.of_plan, plans.all)):.4f} {goal.unit}")
    tried: list[Tried] = []
    best = math.inf
    while len(tried) < most:
        chosen = _next(plans.all, tried, goal, min(batch, most - len(tried)))
        if not chosen:
            break
        tried += [Tried(p, o) for p, o in zip(chosen, evaluate(chosen))]
        leader = min(tried, key=lambda t: _rank(goal, t))
        say(f"{len(tried)} simulated; the best {goal.of_outcome(leader.outcome):.4f} {goal.unit}")
        if goal.of_outcome(leader.outcome) < best:
            best = goal.of_outcome(leader.outcome)
            for candidate in space.around(leader.planned):
                plans.plan(candidate)
    tried.sort(key=lambda t: _rank(goal, t))
    if not tried or math.isinf(goal.of_outcome(tried[0].outcome)):
        raise _missed(goal, tried)
    return Search(goal, first, tuple(tried), plans.number)


def _climb(plans: Plans, space: Space, goal: Objective, start: Planned) -> None:
    """Plan what lies around, go to the best of it, and again while that gains anything."""
    here = start
    for _ in range(CLIMBS):
        around = [plans.plan(candidate) for candidate in space.around(here)]
        best = min(around, key=goal.of_plan)
        if not goal.of_plan(best) < goal.of_plan(here) * (1 - GAIN):
            return
        here = best


def _next(known: Sequence[Planned], tried: Sequence[Tried], goal: Objective, number: int) -> list[Planned]:
    """The most promising of those not simulated yet, no two of them twins."""
    done = {t.planned.candidate for t in tried}
    twins: dict[object, list[Outcome]] = {}
    for t in tried:
        twins.setdefault(t.planned.signature, []).append(t.outcome)
    best = min((goal.of_outcome(t.outcome) for t in tried), default=math.inf)

    def expected(planned: Planned) -> float:
        return (
            goal.of_plan(planned)
            * _ratio(planned, tried, goal)
            * TWIN ** len(twins.get(planned.signature, ()))
        )

    def open_(planned: Planned) -> bool:
        alike = twins.get(planned.signature, [])
        settled = len(alike) > 1 and all(outcome == alike[0] for outcome in alike)
        return planned.candidate not in done and not settled and expected(planned) < best * HOPELESS

    chosen: dict[object, Planned] = {}
    for planned in sorted(filter(open_, known), key=lambda p: (expected(p), p.candidate.staleness)):
        chosen.setdefault(planned.signature, planned)
        if len(chosen) == number:
            break
    return list(chosen.values())


def _ratio(planned: Planned, tried: Sequence[Tried], goal: Objective) -> float:
    """Simulated over planned, of the most similar candidate simulated (the mean of several such)."""
    ratios: dict[int, list[float]] = {}
    for t in tried:
        value = goal.of_outcome(t.outcome)
        if math.isfinite(value):
            apart = len(planned.candidate.differs(t.planned.candidate))
            ratios.setdefault(apart, []).append(value / goal.of_plan(t.planned))
    if not ratios:
        return 1.0
    nearest = ratios[min(ratios)]
    return sum(nearest) / len(nearest)


def _rank(goal: Objective, tried: Tried) -> tuple[float, float]:
    return goal.of_outcome(tried.outcome), tried.outcome.staleness_mean


def _missed(goal: Objective, tried: Sequence[Tried]) -> InfeasibleError:
    done = [t.outcome.wall_h for t in tried if t.outcome.complete]
    if not done:
        return InfeasibleError(
            "no finalist finished its simulated run; `echo2 simulate` says what it waits for"
        )
    return InfeasibleError(
        f"--deadline-h {goal.deadline_h:g}: the fastest finalist takes {min(done):.4g} h in simulation; give "
        "more, or fewer run.steps"
    )
