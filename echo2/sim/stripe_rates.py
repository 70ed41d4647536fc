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


def passing_levels(
    alone: FloatArray, limit: FloatArray, active: BoolArray, relays: IntArray
) -> FloatArray:
    """(R,) what each relay can pass on to every receiver alike: its uplink `alone` shared by water-filling.

    A receiver takes at most its `limit` (N,), and none is served faster than the fastest can take.
    """
    level = common_level(limit[active], alone, limit[relays])
    return np.minimum(level, fastest_other(limit)[relays])


@dataclass(frozen=True)
class Feed:
    """What the source still has to send: `progress` and `caps` (R,) of the stripes with their `shares`, and of
    the part sent to every receiver itself (`direct_share` > 0 while there is some left) with `limit` (N,)."""

    progress: FloatArray
    caps: FloatArray
    shares: FloatArray
    direct: float
    direct_share: float
    limit: FloatArray

    def rates(self, source: float) -> tuple[FloatArray, float]:
        """(R,) and the direct part's: the least advanced first, equal ones alike, as the plan's order has it."""
        rates = np.zeros(len(self.progress))
        direct_rate = 0.0
        todo, direct = self.progress < 1.0, self.direct_share > 0 and self.direct < 1.0
        while source > 0 and (direct or todo.any()):
            least = float(self.progress.min(initial=1.0, where=todo))
            least = min(least, self.direct) if direct else least
            now = todo & (self.progress <= least + BEHIND)
            with_direct = direct and self.direct <= least + BEHIND
            pace = self._filled(source, now, with_direct)
            rates[now] = np.minimum(self.caps[now], pace)
            spent = float((self.shares * rates)[now].sum())
            if with_direct:
                direct_rate = pace
                spent += self.direct_share * float(np.minimum(self.limit, pace).sum())
            source = source - spent if spent < source * (1.0 - 1e-9) else 0.0
            todo, direct = todo & ~now, direct and not with_direct
        return rates, direct_rate

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


def downlink_left(
    down: FloatArray, inflow: FloatArray, shares: FloatArray, relays: IntArray
) -> FloatArray:
    """(R,) what relays' downlinks have for the source's flow: what other relays leave, at least a fair part.

    The source's chunk is served first, so a fair part of the downlink is its own; `inflow` (R,) is what each
    relay sends to any receiver.
    """
    fair = np.maximum(shares, 1.0 / (len(relays) + 1))
    left: FloatArray = np.maximum(fair * down[relays], down[relays] - (inflow.sum() - inflow))
    return left
