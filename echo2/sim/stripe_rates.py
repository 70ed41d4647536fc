"""How the links of a striped transfer are shared between the source's flows, the relays' and the receivers.

Called by `echo2.sim.stripes` at every event; ours. All rates are shares per second: of the snapshot for a
receiver, of its own stripe for a relay. (R,) arrays are by relay, (N,) arrays by receiver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from echo2.sim.fairness import common_level

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
BEHIND = 1e-7
NEVER = 1e18


def fastest_other(limit: FloatArray) -> FloatArray:
    """(N,) the largest of the others' limits."""
    fastest = np.full(len(limit), limit.max())
    at = int(limit.argmax())
    fastest[at] = np.partition(limit, -2)[-2] if len(limit) > 1 else 0.0
    return fastest


def pair_limits(caps: FloatArray, sites: IntArray, relays: IntArray, shares: FloatArray) -> FloatArray:
    """(N,) what pair caps allow each receiver in all: min over relays of cap / share, itself left out.

    `caps` (S, S) are between sites, so of the relays at a site only the one with the largest share counts,
    and for that one itself the second.
    """
    if not len(relays):
        return np.full(len(sites), NEVER)
    at = sites[relays]
    order = np.lexsort((-shares, at))
    at, ranked = at[order], shares[order]
    begins = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    near, top = at[begins], ranked[begins]
    limit: FloatArray = (caps[near] / top[:, None]).min(axis=0)[sites]
    after = np.minimum(begins + 1, len(at) - 1)
    second = np.where((after > begins) & (at[after] == near), ranked[after], 1.0 / NEVER)
    among = caps[np.ix_(near, near)] / top[:, None]
    np.fill_diagonal(among, caps[near, near] / second)
    limit[relays[order[begins]]] = among.min(axis=0)
    return limit


def passing_levels(alone: FloatArray, limit: FloatArray, active: BoolArray, relays: IntArray) -> FloatArray:
    """(R,) what each relay can pass on to every receiver alike: its uplink `alone` shared by water-filling.

    A receiver takes at most its `limit` (N,), and none is served faster than the fastest can take.
    """
    level = common_level(limit[active], alone, limit[relays])
    return np.minimum(level, fastest_other(limit)[relays])


@dataclass(frozen=True)
class Feed:
    """What the source has to send.

    `progress`, `caps` and `shares` (R,) are of the stripes; `direct` is the progress of the part that every
    receiver gets from the source itself, of `direct_share`, at most at its `limit` (N,).
    """

    progress: FloatArray
    caps: FloatArray
    shares: FloatArray
    direct: float
    direct_share: float
    limit: FloatArray

    def rates(self, source: float) -> tuple[FloatArray, float]:
        """(R,) and the direct part's: the least advanced first, equal ones alike, as in the plan's order."""
        direct = self.direct_share > 0 and self.direct < 1.0
        # the direct part stands last
        progress = np.append(self.progress, self.direct if direct else 1.0)
        most = np.append(self.caps, self.limit.max())
        full = np.append(self.shares * self.caps, self.direct_share * self.limit.sum())
        order = np.argsort(progress, kind="stable")[: np.count_nonzero(progress < 1.0)]
        used = np.cumsum(full[order])
        rates = np.zeros(len(progress))
        if not len(order) or used[-1] <= source:
            rates[order] = most[order]
            return rates[:-1], float(rates[-1])
        # all before the one that takes the last of the source go at their most, its equals share the rest
        last = progress[order[int(np.searchsorted(used, source))]]
        ahead, equal = progress < last - BEHIND, np.abs(progress - last) <= BEHIND
        rates[ahead] = most[ahead]
        pace = self._filled(source - float(full[ahead].sum()), equal[:-1], direct and bool(equal[-1]))
        rates[equal] = np.minimum(most[equal], pace)
        return rates[:-1], float(rates[-1])

    def _filled(self, source: float, now: BoolArray, with_direct: bool) -> float:
        """The common pace that uses up `source`: sum of share x min(pace, cap) over what is fed."""
        caps, weights = self.caps[now], self.shares[now]
        if with_direct:
            served = self.limit[self.limit > 0]
            caps = np.concatenate([caps, served])
            weights = np.concatenate([weights, np.full(len(served), self.direct_share)])
        if not len(caps):
            return 0.0
        total = float(weights.sum())
        if source <= total * float(caps.min()):
            return source / total
        order = np.argsort(caps)
        caps, weights = caps[order], weights[order]
        above = weights[::-1].cumsum()[::-1]
        filled = np.concatenate([[0.0], np.cumsum(weights * caps)])[:-1] + above * caps
        if filled[-1] <= source:
            return float(min(caps[-1], NEVER))
        k = int(np.searchsorted(filled, source))
        return float(caps[k] - (filled[k] - source) / above[k])


def downlink_left(down: FloatArray, inflow: FloatArray, shares: FloatArray, relays: IntArray) -> FloatArray:
    """(R,) what relays' downlinks have for the source's flow: what other relays leave, at least a fair part.

    The source's chunk is served first, so a fair part of the downlink is its own; `inflow` (R,) is what each
    relay sends to any receiver.
    """
    fair = np.maximum(shares, 1.0 / (len(relays) + 1))
    left: FloatArray = np.maximum(fair * down[relays], down[relays] - (inflow.sum() - inflow))
    return left
