"""Fluid stripes when a relay is gone or no longer used: what it owed goes to those next in line.

Made by `echo2.sim.network`. The rest of a striped transfer is in `stripes`, who takes over what in
`stripe_deal`.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from echo2.sim.stripes import StripedTransfer


class ReroutedStripes(StripedTransfer):
    """A striped transfer that can lose relays."""

    def leave(self, position: int) -> None:
        """A receiver is gone: nothing flows to it or from it any more."""
        self.active[position] = self.pace[position] = False
        self._stopped[position] = True
        for relay in sorted(self._shunned_by):
            self._hand_over_if_left(relay)

    def fed_by(self, relay: str) -> list[int]:
        """Positions that have still to get something from a relay."""
        at = self.plan.order.index(relay) if relay in self.plan.order else -1
        if at < 0 or self.shares[at] <= 0:
            return []
        return sorted({*np.flatnonzero(self.active).tolist()} - self._shunned_by.get(at, set()) - {at})

    def reroute(self, positions: Set[int], without: Set[str]) -> None:
        """A relay that no receiver uses any more hands what it has not passed on to the others.

        While some still use it nothing changes: here a relay serves all that keep pace alike.
        """
        for name in without:
            relay = self.plan.order.index(name) if name in self.plan.order else -1
            if relay >= 0 and self.shares[relay] > 0:
                self._shunned_by.setdefault(relay, set()).update(positions)
                self._hand_over_if_left(relay)

    def _hand_over_if_left(self, relay: int) -> None:
        users = {*np.flatnonzero(self.active).tolist()} - {relay}
        if users <= self._shunned_by[relay]:
            del self._shunned_by[relay]
            self._hand_over(relay)

    def _hand_over(self, position: int) -> None:
        """What a relay has not passed on, in whole chunks, goes to those that are next in line for them."""
        share, out = float(self.shares[position]), float(self.out[position])
        passed, dealt, direct = self._deal.take_out(position, out)
        # a chunk that was on its way is lost
        out = min(out, passed)
        if dealt.any():
            self._took_over |= dealt > 0
            self._through = None
        self.given += share * out
        self._late.hand_over(position, out, share, self.shares, dealt)
        self.shares[position] = self.head[position] = self.out[position] = 0.0
        grown = self.shares + dealt
        kept = self.shares / np.maximum(grown, 1e-300)
        self.shares, self.head, self.out = grown, self.head * kept, self.out * kept
        if direct > 0:
            sent = self.direct_share * self.direct
            self.direct_share += direct
            self.direct = sent / self.direct_share
        self._rewire()
