"""The broadcast under way: who still receives along it, and whether the next one may begin.

Called by `publication`, which sends one broadcast after another. The next begins when all have the last
one, or, once it is late for most, when no more than a few (`FEW`, by rate) lack it.
"""

from __future__ import annotations

import math

from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.fleet import Fleet, Status

# A broadcast that still runs for this part of the workers, by rate, does not keep the others from the next.
FEW = 0.1


class UnderWay:
    """Carries no clock: the time comes with every call."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._names: set[str] = set()
        self._finishing: dict[str, float] = {}
        self._few_from_s = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """A worker receives along the broadcast."""
        self._names.add(name)

    def discard(self, name: str) -> None:
        """Nothing is under way to a worker any more."""
        self._names.discard(name)
        self._finishing.pop(name, None)

    def finishes(self, name: str, until_s: float) -> None:
        """A worker fetches the rest of a late broadcast and is waited for until then."""
        self._finishing[name] = until_s

    def few_from(self, t_s: float, plan: BroadcastPlan, late: float, grace_s: float) -> float | None:
        """From when on few may be left behind: when the snapshot is late for all but a few.

        None where that is no sooner than the end of the plan.
        """
        rates = [self._fleet[name].offer.rollouts_per_s for name in plan.order]
        left, most = math.fsum(rates), FEW * math.fsum(rates)
        ordered = iter(sorted(zip(plan.receiver_s, rates)))
        seconds = 0.0
        while left > most:
            seconds, rate = next(ordered)
            left -= rate
        at_s = t_s + late * seconds + grace_s
        self._few_from_s = max(self._few_from_s, at_s)
        return at_s if seconds < plan.time_s else None

    def over(self, t_s: float) -> bool:
        """Whether the last broadcast is over but for a few, and the next may begin.

        Those that fetch the rest of a late one count until that is late too: begun earlier, the next would
        be for the few that are free, and keep all others waiting in turn.
        """
        if self._names and t_s < self._few_from_s:
            return False
        under_way = self._names | {name for name, until in self._finishing.items() if t_s < until}
        if not under_way:
            return True
        ready = self._fleet.in_status(Status.READY)
        waited_for = sum(w.offer.rollouts_per_s for w in ready if w.worker_id in under_way)
        return waited_for <= FEW * sum(w.offer.rollouts_per_s for w in ready)
