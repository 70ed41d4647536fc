"""Relays of the broadcasts under way: who passes nothing on any more, and who gets its part another way.

Called by `publication`. Ours. A worker that complains of a relay is given another way at once. The relay is
out of the broadcast for all when a second worker complains, or when the same one has had wrong bytes twice.
A complaint may be a lie, or come of the complainer's own bad line: one that complains of more than half of
the relays is given its other ways, but counts for nothing against them.

A relay taken out for what it did (not for being gone) is no relay in the next broadcasts: its penalty of 1
shrinks by a quarter with every publication, and below `SHUNNED` it is tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from echo2.policy.broadcast import BroadcastPlan, living_parents
from echo2.policy.broadcast.bounds import best_bound
from echo2.policy.decisions import Decision, Reroute
from echo2.policy.facts import RelayFailed, WorkerOffer
from echo2.policy.fleet import UP, Fleet
from echo2.policy.links import LinkTable

COMPLAINERS = 2
FORGIVEN = 0.75
SHUNNED = 0.5
WRONG_BYTES = "wrong-bytes"
GONE = "gone"


@dataclass(eq=False)
class Course:
    """A broadcast under way: `out` for all, `own` what single workers avoid beside that.

    `complaints[relay][worker]`: how often that worker has had wrong bytes from it, at least 1.
    """

    version: int
    plan: BroadcastPlan
    out: set[str] = field(default_factory=set)
    own: dict[str, set[str]] = field(default_factory=dict)
    complaints: dict[str, dict[str, int]] = field(default_factory=dict)

    def avoided(self, worker_id: str) -> frozenset[str]:
        """All relays that a worker does not use."""
        return frozenset(self.out | self.own.get(worker_id, set()))

    def relays(self) -> frozenset[str]:
        """Who passes something on by the plan, gone or not."""
        plan = self.plan
        return frozenset(
            name
            for i, name in enumerate(plan.order)
            if (plan.shares[i] > 0 if plan.shares else i in plan.parents)
        )

    def fed_by(self, relays: Collection[str], names: Sequence[str]) -> list[str]:
        """Which of these workers take something from one of these relays."""
        plan = self.plan
        if plan.shares:
            passing = self.relays().intersection(relays)
            return [name for name in names if passing - {name}]
        at = {name: i for i, name in enumerate(plan.order)}
        parents: dict[frozenset[str], tuple[int, ...]] = {}
        fed = []
        for name in names:
            avoided = self.avoided(name)
            if avoided not in parents:
                parents[avoided] = living_parents(plan, avoided)
            above = parents[avoided][at[name]]
            if above >= 0 and plan.order[above] in relays:
                fed.append(name)
        return fed

    def believes(self, worker_id: str) -> bool:
        """Whether a worker's complaints are more likely of the relays than of its own line."""
        accused = sum(worker_id in workers for workers in self.complaints.values())
        return accused <= max(2, len(self.relays()) // 2)


class Relays:
    """Carries no clock: the time comes with every call."""

    def __init__(self, links: LinkTable, fleet: Fleet) -> None:
        self._links = links
        self._fleet = fleet
        self._courses: dict[str, Course] = {}
        self._penalty: dict[str, float] = {}

    def published(self) -> None:
        """A version is published: penalties shrink."""
        self._penalty = {name: FORGIVEN * p for name, p in self._penalty.items() if FORGIVEN * p > 0.01}

    def shuns(self, worker_id: str) -> bool:
        """Whether a worker is not to pass on snapshots now."""
        return self._penalty.get(worker_id, 0.0) >= SHUNNED

    def offered(self, offer: WorkerOffer) -> WorkerOffer:
        """The offer as broadcasts are planned with it: a shunned relay only receives."""
        return replace(offer, can_relay=False) if offer.can_relay and self.shuns(offer.worker_id) else offer

    def begin(self, version: int, plan: BroadcastPlan) -> None:
        """A broadcast begins."""
        course = Course(version, plan)
        self._courses.update(dict.fromkeys(plan.order, course))

    def done(self, worker_id: str) -> None:
        """A worker receives no longer along a broadcast. It may well go on as a relay."""
        self._courses.pop(worker_id, None)

    def complaint(self, fact: RelayFailed, out: list[Decision]) -> None:
        """A worker complains of a relay. What is not about the broadcast under way to it changes nothing."""
        worker_id, relay, cause = fact.worker_id, fact.source_id, fact.cause
        course = self._courses.get(worker_id)
        if course is None or course.version != fact.version or relay in course.out:
            return
        known = course.complaints.get(relay, {})
        if worker_id not in known and not course.fed_by([relay], [worker_id]):
            return
        course.complaints[relay] = known
        first = worker_id not in known
        if first or cause == WRONG_BYTES:
            known[worker_id] = known.get(worker_id, 0) + 1
        believed = [name for name in known if course.believes(name)]
        again = cause == WRONG_BYTES and known[worker_id] > 1 and worker_id in believed
        if len(believed) >= COMPLAINERS or again:
            if cause != GONE:
                self._penalty[relay] = self._penalty.get(relay, 0.0) + 1.0
            who = f"{worker_id} complains again" if again else f"{len(believed)} workers complain"
            self.without(fact.t_s, [relay], f"{who} of {relay}: {cause}", out)
        elif first:
            course.own.setdefault(worker_id, set()).add(relay)
            reason = f"{worker_id} complains of {relay}: {cause}"
            self._reroute(fact.t_s, course, [worker_id], course.avoided(worker_id), reason, out)

    def without(self, t_s: float, relays: Collection[str], reason: str, out: list[Decision]) -> None:
        """These pass nothing on any more: whoever still has something to come from them gets it elsewhere."""
        for course in list(dict.fromkeys(self._courses.values())):
            lost = course.relays().intersection(relays) - course.out
            fed = course.fed_by(lost, [n for n in course.plan.order if self._courses.get(n) is course])
            course.out.update(lost)
            ways: dict[frozenset[str], list[str]] = {}
            for name in fed:
                ways.setdefault(course.avoided(name), []).append(name)
            for avoided, names in ways.items():
                self._reroute(t_s, course, names, avoided, reason, out)

    def _reroute(
        self,
        t_s: float,
        course: Course,
        names: list[str],
        avoided: frozenset[str],
        reason: str,
        out: list[Decision],
    ) -> None:
        without = tuple(name for name in course.plan.order if name in avoided)
        bound = self._bound_s(course.plan, avoided)
        out.append(Reroute(t_s, course.version, tuple(names), without, reason, bound))

    def _bound_s(self, plan: BroadcastPlan, avoided: frozenset[str]) -> float:
        workers = [self._fleet[name] for name in plan.order]
        offers = [
            replace(worker.offer, can_relay=worker.offer.can_relay and worker.worker_id not in avoided)
            for worker in workers
            if worker.status in UP
        ]
        return best_bound(self._links.problem(offers, plan.size_bytes)).seconds if offers else 0.0
