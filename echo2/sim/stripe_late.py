"""Receivers of stripes that cannot keep pace: slow ones, and those that an outage has thrown back.

Used by `echo2.sim.stripes` alone. Ours. Only for them it matters how much each relay has passed on to each
receiver: one column of numbers per late receiver, kept until it has caught up with every relay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
BEHIND = 1e-7


class LateReceivers:
    """`who` (L,) are positions, `got` (N+1, L) is how much of every stripe each has, last the direct part.

    `rate` is of `got` per second, `total` (L,) of the snapshot.
    """

    def __init__(self, count: int) -> None:
        self.who = np.zeros(0, dtype=np.int64)
        self.got = np.zeros((count + 1, 0))
        self.rate = np.zeros((count + 1, 0))
        self.total = np.zeros(0)
        self._behind = np.zeros((count + 1, 0), dtype=bool)

    def add(self, positions: IntArray, out: FloatArray) -> None:
        """Receivers that fall behind now, having all of `out` (N+1,) that has been passed on."""
        columns = np.repeat(out[:, None], len(positions), axis=1)
        self.who = np.append(self.who, positions)
        self.got = np.concatenate([self.got, columns], axis=1)

    def keep(self, stay: BoolArray) -> None:
        """Keep only these columns (L,)."""
        if not stay.all():
            self.who, self.got = self.who[stay], self.got[:, stay]

    def behind(self, out: FloatArray) -> BoolArray:
        """(N+1, L) stripes of which a receiver lacks something that has been passed on to others."""
        behind = self.got < out[:, None] - BEHIND
        behind[self.who, np.arange(len(self.who))] = False
        return behind

    def set_rates(
        self,
        out: FloatArray,
        out_rate: FloatArray,
        spare: FloatArray,
        level: FloatArray,
        shares: FloatArray,
        head_rate: FloatArray,
        limit: FloatArray,
    ) -> None:
        """What each draws from each relay, at most its `limit` (N,) in all.

        `out`, `out_rate`, `shares` (N+1,): of the stripes and the direct part. Relays divide `spare` (N+1,),
        which their uplink has left beside those that keep pace, between those behind, who get no less than
        `level` (N+1,), their equal part.
        """
        limit = limit[self.who]
        columns = np.arange(len(self.who))
        behind = self.behind(out)
        served = limit > 0
        waiting = (behind & served).sum(axis=1)
        following = served.sum() - waiting
        left = np.maximum((spare - following * out_rate) / np.maximum(1, waiting), level)
        want = np.where(behind, left[:, None], out_rate[:, None])
        want[self.who, columns] = 0.0
        own = (shares[:-1] * head_rate)[self.who]
        inflow = shares @ want + own
        # a full downlink goes to every stripe by what is still to come of it: they end together
        lacking = np.where(want > 0, 1.0 - self.got, 0.0)
        even = lacking * (np.maximum(0.0, limit - own) / np.maximum(shares @ lacking, 1e-300))
        self.rate = np.where(inflow > limit, np.minimum(want, even), want)
        self.total, self._behind = shares @ self.rate + own, behind

    def advance(self, seconds: float, out: FloatArray) -> None:
        """Let `seconds` pass, to where relays have passed on `out` (N+1,)."""
        self.got = np.minimum(out[:, None], self.got + self.rate * seconds)

    def left_s(self, used: BoolArray) -> FloatArray:
        """(L,) seconds until each has all of every stripe, at the present rates; `used` (N+1,) parts only."""
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.where(self._behind, (1.0 - self.got) / self.rate, 0.0)
        left[~used] = 0.0
        return np.asarray(left.max(axis=0, initial=0.0), dtype=np.float64)

    def caught_up_s(self, out: FloatArray, out_rate: FloatArray) -> float:
        """Seconds until the first of them is behind with no relay any more; inf if none gets there."""
        gap, closing = out[:, None] - self.got, self.rate - out_rate[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            needs = np.where(self._behind, np.where(closing > 0, gap / closing, np.inf), 0.0)
        longest = needs.max(axis=0, initial=0.0)
        return float(longest.min(initial=np.inf, where=longest > 0))

    def hand_over(
        self, position: int, out: float, share: float, shares: FloatArray, dealt: FloatArray
    ) -> None:
        """A relay is gone: what they lack of its stripe they lack of the others' now.

        `shares` (N,) of the stripes before, `dealt` (N,) what each takes over.
        """
        lack = np.maximum(0.0, out - self.got[position]) * share
        others = np.where(np.arange(len(shares)) == position, 0.0, shares)
        part = others / max(float(others.sum()), 1e-300)
        grown = np.maximum(shares + dealt, 1e-300)[:, None]
        self.got[:-1] = np.maximum(0.0, self.got[:-1] * shares[:, None] - part[:, None] * lack) / grown
        self.got[position] = 0.0
