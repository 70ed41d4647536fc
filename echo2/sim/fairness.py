"""Max-min fair rates of flows that share uplinks and downlinks: progressive filling, vectorised.

Bertsekas and Gallager, Data Networks, section 6.5.2: all rates grow together until a link is full, its
flows are frozen there, and the rest grows on. The fair share of a link only rises as others are frozen, so
all flows whose cap is below it, and all links that are the tightest for each of their flows, can be frozen
in one round (ours): the number of rounds hardly grows with the number of different caps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
EQUAL = 1.0 - 1e-12


def max_min_rates(
    senders: IntArray,
    receivers: IntArray,
    caps: FloatArray,
    uplink: FloatArray,
    downlink: FloatArray,
    weights: FloatArray,
) -> FloatArray:
    """Rates (F,) of F flows; `weights` of w counts as w flows at the sender (its rate is their sum).

    `senders` and `receivers` index `uplink` and `downlink`; a receiver of -1 has no downlink limit.
    `caps` bounds each flow's own rate. All in the same unit per second.
    """
    rates = np.zeros(len(senders))
    nodes = len(uplink)
    left = np.concatenate([uplink, downlink, [np.inf]])
    live = np.flatnonzero((caps > 0) & (weights > 0))
    up, w = senders[live], weights[live]
    down = np.where(receivers[live] >= 0, nodes + receivers[live], 2 * nodes)
    cap = caps[live] / w
    while live.size:
        load = np.bincount(up, w, len(left)) + np.bincount(down, w, len(left))
        share = np.where(load > 0, left / np.maximum(load, 1e-30), np.inf)
        up_share, down_share = share[up], share[down]
        level = np.minimum(np.minimum(up_share, down_share), cap)
        # a link with a flow that is held lower elsewhere has something to give to its other flows
        loose = np.zeros(len(left), dtype=bool)
        loose[up[level < up_share * EQUAL]] = True
        loose[down[level < down_share * EQUAL]] = True
        done = (level >= cap) | ~loose[up] | ~loose[down]
        rate = level[done] * w[done]
        rates[live[done]] = rate
        taken = np.bincount(up[done], rate, len(left)) + np.bincount(down[done], rate, len(left))
        left = np.maximum(0.0, left - taken)
        keep = ~done
        live, up, down, w, cap = live[keep], up[keep], down[keep], w[keep], cap[keep]
    return rates


def common_level(limits: FloatArray, totals: FloatArray, excluded: FloatArray) -> FloatArray:
    """(R,) levels L with `sum_j min(L, limits_j) - min(L, excluded_r) = totals_r`; inf where never reached.

    Water-filling for R senders with the same receivers, `limits` (m,): sender r serves all but one of them,
    whose limit is `excluded_r` (0: it serves all).
    """
    ascending = np.sort(limits)
    count = len(ascending)
    points = np.concatenate([[0.0], ascending])
    filled = np.concatenate([[0.0], np.cumsum(ascending) + ascending * np.arange(count - 1, -1, -1)])
    with_it = np.interp(totals + excluded, filled, points, right=np.inf)
    others = filled - points
    below = np.interp(totals, others, points, right=np.inf)
    below = np.where(totals >= others[-1], np.inf, below)
    level: FloatArray = np.where(below < excluded, below, np.maximum(with_it, excluded))
    return level
