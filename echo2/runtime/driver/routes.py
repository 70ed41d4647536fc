"""Plans as routes: from whom each worker takes each chunk, for the orders that carry a broadcast out.

Called by `snapshots`. It decides nothing: who takes what from whom is `policy.broadcast.sources_of`, which
the simulator uses too. A relay that nobody can reach just now is treated as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.broadcast.schedule import sources_of, striped, with_chunks
from echo2.policy.decisions import Reroute
from echo2.runtime.transport import messages as m

UrlOf = Callable[[str], str]
"""The address of a worker's relay; "" where it has none or is not there."""

PATIENCE = 2.0
"""Relays of a tree that goes on as stripes serve those that are furthest behind first; the others wait."""


@dataclass(frozen=True)
class Course:
    """A broadcast on its way: `parent` and `chunks` of its payload, whose chunks the plan's turns count."""

    version: int
    parent: int
    plan: BroadcastPlan
    chunks: int


def course_of(version: int, parent: int, plan: BroadcastPlan, chunks: int) -> Course:
    """The plan as it is carried out for a payload of so many chunks."""
    return Course(version, parent, with_chunks(plan, max(1, chunks)), chunks)


def route_along(course: Course, worker_id: str, reroute: Reroute | None, url_of: UrlOf) -> m.Route:
    """A worker's route along a broadcast; with a reroute, as that says."""
    plan, without = course.plan, frozenset(reroute.without if reroute is not None else ())
    expected_s = plan.receiver_s[plan.order.index(worker_id)]
    if reroute is not None and reroute.shares:
        plan = striped(plan, reroute.shares, reroute.direct_share)
        expected_s *= PATIENCE
    away = {name for name in plan.order if not url_of(name)}
    names = sources_of(plan, worker_id, max(1, course.chunks), away | without)
    return _route(names, expected_s, url_of)


def route_from(source_id: str, helpers: Sequence[str], url_of: UrlOf) -> m.Route | None:
    """From one holder and whoever of the helpers has a chunk; None (the learner) where nobody is reached."""
    if found := [name for name in (source_id, *helpers) if name != m.LEARNER and url_of(name)]:
        sources = tuple(m.Source(worker_id=name, url=url_of(name)) for name in found)
        return m.Route(sources=sources, turns=(0,) if found == [source_id] else ())
    return None


def _route(names: Sequence[str], expected_s: float, url_of: UrlOf) -> m.Route:
    known = list(dict.fromkeys(names))
    number = {name: i for i, name in enumerate(known)}
    sources = tuple(m.Source(worker_id=n, url="" if n == m.LEARNER else url_of(n)) for n in known)
    turns = tuple(number[name] for name in names) if len(known) > 1 else (0,)
    return m.Route(sources=sources, turns=turns, expected_s=expected_s)
