"""Relays of the broadcasts under way: who passes nothing on any more, and who gets its part another way.

Called by `publication`. Ours. A worker that complains of a relay is given another way at once. The relay is
out of the broadcast for all when a second worker complains, or when the same one has had wrong bytes twice.
A complaint may be a lie, or come of the complainer's own bad line: one that complains of more than half of
the relays is given its other ways, but counts for nothing against them.

A tree in which a relay fails goes on as stripes for all that still receive, where that costs less, egress
and lateness together, than going on down the tree (`broadcast.mend`). In a tree few are fed by a relay, maybe
one, so there one complaint is enough for it to have no part in the stripes; it counts half against it.

A relay taken out for what it did (not for being gone) is no relay in the next broadcasts: its penalty of 1
shrinks by a quarter with every publication, and below `SHUNNED` it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from echo2.policy.broadcast import BroadcastPlan, living_parents, striped, ways_left
from echo2.policy.broadcast.bounds import best_bound
from echo2.policy.broadcast.mend import shares_of
from echo2.policy.decisions import Decision, Reroute
from echo2.policy.facts import RelayFailed, WorkerOffer
from echo2.policy.fleet import UP, Fleet
from echo2.policy.links import LinkTable

COMPLAINERS = 2
FORGIVEN = 0.75
SHUNNED = 0.5
WRONG_BYTES = "wrong-bytes"
GONE = "gone"
Choose = Callable[[Sequence[BroadcastPlan], Sequence[WorkerOffer]], BroadcastPlan]


def fastest(plans: Sequence[BroadcastPlan], _offers: Sequence[WorkerOffer]) -> BroadcastPlan:
    """The plan that is done first."""
    return min(plans, key=lambda plan: plan.time_s)


@dataclass(eq=False)
class Course:
    """A broadcast under way: `out` for all, `own` what single workers avoid beside that.

    `plan` is the one in force: a tree that goes on as stripes is `mended`. `complaints[relay][worker]`: how
    often that worker has had wrong bytes from it, at least 1.
    """

    version: int
    plan: BroadcastPlan
    mended: bool = False
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
    """Carries no clock: the time comes with every call. `choose` takes one of several priced plans."""

    def __init__(self, links: LinkTable, fleet: Fleet, choose: Choose = fastest) -> None:
        self._links = links
        self._fleet = fleet
        self._choose = choose
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
            if believed and self._mended(fact.t_s, course, {relay}, reason, out):
                if cause != GONE:
                    self._penalty[relay] = self._penalty.get(relay, 0.0) + 1.0 / COMPLAINERS
                return
            self._reroute(fact.t_s, course, [worker_id], course.avoided(worker_id), reason, out)

    def without(self, t_s: float, relays: Collection[str], reason: str, out: list[Decision]) -> None:
        """These pass nothing on any more: whoever still has something to come from them gets it elsewhere."""
        for course in list(dict.fromkeys(self._courses.values())):
            lost = course.relays().intersection(relays) - course.out
            fed = course.fed_by(lost, [n for n in course.plan.order if self._courses.get(n) is course])
            course.out.update(lost)
            if not (fed and self._mended(t_s, course, set(), reason, out)):
                self._reroute_all(t_s, course, fed, reason, out)

    def _mended(
        self, t_s: float, course: Course, suspects: set[str], reason: str, out: list[Decision]
    ) -> bool:
        """Let a tree go on as stripes in which `suspects` have no part; False where it does not."""
        plan, bad = course.plan, course.out | suspects
        offers = self._offers(plan, bad)
        if plan.shares or not offers:
            return False
        way = self._choose(ways_left(self._links.problem(offers, plan.size_bytes), plan, bad), offers)
        if not way.shares:
            return False
        course.plan = striped(plan, shares_of(way, plan.order), way.direct_share)
        course.mended, course.out = True, bad
        names = [name for name in plan.order if self._courses.get(name) is course]
        self._reroute_all(t_s, course, names, f"{reason}; the rest goes along stripes", out)
        return True

    def _reroute_all(
        self, t_s: float, course: Course, names: list[str], reason: str, out: list[Decision]
    ) -> None:
        """Reroute these, each without what it avoids."""
        ways: dict[frozenset[str], list[str]] = {}
        for name in names:
            ways.setdefault(course.avoided(name), []).append(name)
        for avoided, together in ways.items():
            self._reroute(t_s, course, together, avoided, reason, out)

    def _reroute(
        self,
        t_s: float,
        course: Course,
        names: list[str],
        avoided: frozenset[str],
        reason: str,
        out: list[Decision],
    ) -> None:
        plan = course.plan
        without = tuple(name for name in plan.order if name in avoided)
        offers = self._offers(plan, avoided)
        bound = best_bound(self._links.problem(offers, plan.size_bytes)).seconds if offers else 0.0
        shares, direct = (plan.shares, plan.direct_share) if course.mended else ((), 0.0)
        out.append(Reroute(t_s, course.version, tuple(names), without, reason, bound, shares, direct))

    def _offers(self, plan: BroadcastPlan, avoided: Collection[str]) -> list[WorkerOffer]:
        """Those of the plan that are there; whoever is avoided does not relay."""
        workers = [self._fleet[name] for name in plan.order]
        return [
            replace(worker.offer, can_relay=worker.offer.can_relay and worker.worker_id not in avoided)
            for worker in workers
            if worker.status in UP
        ]
