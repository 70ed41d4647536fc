"""The exact cheapest cover, by dynamic programming around the break item.

Called by `cover.exact` with the workers sorted by price per rollout. The optimum differs from the greedy
prefix only near the place where greedy stops, so states (rate, price) start from that prefix and the
items around the break are put in or taken out one by one, nearest first; a state that another one
dominates, or whose bound is no better than the best cover known, is dropped (Pisinger 1997, "A minimal
algorithm for the 0-1 knapsack problem", in its covering form). Unlike a general MILP solver it needs no
time limit, so it decides alike on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Prices in proportion to rates make nearly every subset a good one: beyond this many open states only the
# most promising go on, and the answer is no longer proven.
MAX_STATES = 10_000
TOLERANCE = 1e-9
GAP = 1e-6


@dataclass(frozen=True)
class Cover:
    """The cheapest cover found, None if nothing beats the price given; `proven` says that none is cheaper."""

    picked: list[int] | None
    proven: bool


@dataclass(frozen=True)
class _Step:
    """Where the states after one item came from: each one's parent, and whether it flipped the item."""

    item: int
    parent: IntArray
    flipped: npt.NDArray[np.bool_]


def cheapest_cover(
    cost: FloatArray, rate: FloatArray, needed: float, upper: float, max_states: int = MAX_STATES
) -> Cover:
    """The cheapest set, within 1e-6, with sum of `rate` >= `needed` (> 0) that costs less than `upper`.

    `cost` (USD/h) and `rate` (rollouts/s) are sorted by cost/rate ascending and cover `needed` together.
    """
    per_rate = cost / rate
    need = needed * (1.0 - TOLERANCE)
    right = int(np.argmax(np.cumsum(rate) >= need))
    left = right - 1
    states_rate = np.array([float(rate[:right].sum())])
    states_cost = np.array([float(cost[:right].sum())])
    steps: list[_Step] = []
    best, best_at = upper * (1.0 - GAP), None
    prefix, proven = right, True
    while states_rate.size and (left >= 0 or right < len(cost)):
        # Alternate between the two sides of the break; the nearer item is the likelier to change.
        take_right = right < len(cost) and (left < 0 or len(steps) % 2 == 0)
        item, sign = (right, 1.0) if take_right else (left, -1.0)
        right, left = (right + 1, left) if take_right else (right, left - 1)
        states_rate, states_cost, step = _expand(states_rate, states_cost, item, sign * rate, sign * cost)
        enough = states_rate >= need
        if enough.any():
            price = np.where(enough, states_cost, np.inf)
            at = int(np.argmin(price))
            if price[at] < best:
                best, best_at = float(price[at]) * (1.0 - GAP), (len(steps), step, at)
        bound = _bounds(states_rate, states_cost, need, per_rate, left, right)
        keep = np.flatnonzero(bound < best)
        if keep.size > max_states:
            proven = False
            keep = keep[np.argsort(bound[keep], kind="stable")[:max_states]]
        states_rate, states_cost = states_rate[keep], states_cost[keep]
        steps.append(_Step(item, step.parent[keep], step.flipped[keep]))
    return Cover(None if best_at is None else _walk_back(steps, best_at, prefix), proven)


def _expand(
    states_rate: FloatArray, states_cost: FloatArray, item: int, rate: FloatArray, cost: FloatArray
) -> tuple[FloatArray, FloatArray, _Step]:
    """Every state with the item left as it is and flipped, without the dominated ones."""
    count = len(states_rate)
    both_rate = np.concatenate([states_rate, states_rate + rate[item]])
    both_cost = np.concatenate([states_cost, states_cost + cost[item]])
    order = np.lexsort((both_cost, -both_rate))
    sorted_cost = both_cost[order]
    cheapest_so_far = np.minimum.accumulate(sorted_cost)
    # A state stays only if every state with at least its rate is dearer.
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = sorted_cost[1:] < cheapest_so_far[:-1] - 1e-12 * abs(cheapest_so_far[:-1])
    order = order[keep]
    step = _Step(item, (order % count).astype(np.int64), order >= count)
    return both_rate[order], both_cost[order], step


def _bounds(
    states_rate: FloatArray, states_cost: FloatArray, need: float, per_rate: FloatArray, left: int, right: int
) -> FloatArray:
    """The least each state can end at: a surplus sold, or a gap bought, at the price of the next item."""
    surplus = states_rate - need
    sell = per_rate[left] if left >= 0 else 0.0
    buy = per_rate[right] if right < len(per_rate) else np.inf
    with np.errstate(invalid="ignore"):
        return np.where(surplus >= 0, states_cost - surplus * sell, states_cost - surplus * buy)


def _walk_back(steps: list[_Step], best_at: tuple[int, _Step, int], prefix: int) -> list[int]:
    """The indices picked by the best state: the prefix with the flipped items exchanged."""
    depth, step, at = best_at
    inside = set(range(prefix))
    while True:
        if step.flipped[at]:
            inside ^= {step.item}
        if depth == 0:
            return sorted(inside)
        at = int(step.parent[at])
        depth -= 1
        step = steps[depth]
