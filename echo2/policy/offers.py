"""Offers: what is known of the workers on offer, as prices change and rates and links are measured.

Called by the scheduler with the facts that start and stop nobody by themselves.
"""

from __future__ import annotations

from echo2.policy import facts as f
from echo2.policy.decisions import Decision
from echo2.policy.dispatch import Dispatch
from echo2.policy.fleet import Fleet, Status
from echo2.policy.roster import Roster

LEAST_RATE = 1e-9


class Offers:
    """Carries no clock: the time comes with every fact."""

    def __init__(self, fleet: Fleet, dispatch: Dispatch, roster: Roster) -> None:
        self._fleet = fleet
        self._dispatch = dispatch
        self._roster = roster

    def withdrawn(self, fact: f.OfferWithdrawn, out: list[Decision]) -> None:
        """A worker can be had no more; one that works goes on until it leaves."""
        worker = self._fleet.get(fact.worker_id)
        if worker is None:
            return
        worker.withdrawn = True
        if worker.status is Status.OFFERED:
            worker.status = Status.GONE

    def price(self, fact: f.PriceChanged, out: list[Decision]) -> None:
        """What a worker costs has changed."""
        if self._fleet.amend(fact.worker_id, price_usd_per_h=fact.price_usd_per_h):
            self._roster.changed = True

    def rate(self, fact: f.RateMeasured, out: list[Decision]) -> None:
        """What a worker makes has been measured."""
        # One that makes nothing is worth next to nothing, but its share is still divided by its rate.
        if self._fleet.amend(fact.worker_id, rollouts_per_s=max(LEAST_RATE, fact.rollouts_per_s)):
            self._roster.changed = True
            self._dispatch.recount_claims()

    def link(self, fact: f.LinkMeasured, out: list[Decision]) -> None:
        """What a worker's access link gives has been measured."""
        # Nothing measured says nothing of what the link gives when it is there.
        rates = {"uplink_bps": fact.uplink_bps, "downlink_bps": fact.downlink_bps}
        self._fleet.amend(fact.worker_id, **{name: bps for name, bps in rates.items() if bps > 0})
