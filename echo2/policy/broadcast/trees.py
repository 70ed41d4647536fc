"""Single trees: star, chain, k-ary, and the tree of the highest common rate.

Called by `choose`. Every builder returns parent arrays over nodes (`parent[0] = -1`); receivers that cannot
relay only ever become leaves. Where a rule has variants the timing decides.
"""

from __future__ import annotations

import numpy as np

from echo2.policy.broadcast.problem import BroadcastProblem, FloatArray, IntArray

K_ARY = (2, 3, 4, 8)
BAND = 0.8
PARTS = (1.0, 0.5, 0.25, 0.125)
PARTS_CAPPED = tuple(0.8**i for i in range(13))


def star(problem: BroadcastProblem) -> IntArray:
    """The source sends to everybody."""
    return _parents(problem.count)


def chains(problem: BroadcastProblem) -> list[IntArray]:
    """Chains worth timing: by what relays pass on, with near neighbours together, and along fast pairs.

    A relay passes on at most min(uplink, downlink); whoever stands behind it gets no more, so slow ones come
    last. A chain can end in one receiver that cannot relay; more hang off the node that serves them best.
    """
    relays = _by_throughput(problem, relays=True)
    orders = [relays, _near_neighbours(problem, relays)]
    distinct = [order for i, order in enumerate(orders) if order not in orders[:i]]
    shapes = [_hang_leaves(problem, order) for order in distinct]
    if problem.pair_cap_bps is not None:
        single = (problem.uplink > 0).astype(np.int64)
        rate = float(problem.uplink[0])
        shapes += [grow(problem, single, rate * part) for part in PARTS_CAPPED[::2]]
    return shapes


def k_ary(problem: BroadcastProblem, k: int) -> IntArray:
    """Every node serves up to `k`, fast relays near the source, each under the best path of its level."""
    slots = np.where(problem.uplink > 0, k, 0)
    return grow(problem, slots, rate=np.inf, shallow_first=True)


def rate_trees(problem: BroadcastProblem) -> list[IntArray]:
    """Trees of the highest common rate r and of fractions of it (wider, hence shallower).

    r is feasible iff the source has a slot and all slots floor(u/r) are at least N; only relays whose
    downlink reaches r count. Each tree is of least depth where pair caps allow. Source: ours.
    """
    rate = _highest_rate(problem)
    trees = []
    for part in PARTS if problem.pair_cap_bps is None else PARTS_CAPPED:
        trees.append(grow(problem, _slots(problem, rate * part), rate * part))
        if rate * part * problem.count <= problem.uplink[0]:
            break
    return trees


def grow(problem: BroadcastProblem, slots: IntArray, rate: float, *, shallow_first: bool = False) -> IntArray:
    """Add receivers one by one, those with slots first, each under the best open slot: (N+1,) parents.

    Best: a path that carries `rate`, then least depth, then least delay; `shallow_first` asks for the depth
    before the path. Where slots run out, the sender with most uplink per child takes one more.
    """
    nodes = problem.count + 1
    parent = _parents(problem.count)
    left = slots.astype(np.int64).copy()
    depth = np.full(nodes, nodes, dtype=np.int64)
    children = np.zeros(nodes, dtype=np.int64)
    depth[0] = 0
    through = np.minimum(problem.uplink, problem.downlink)[1:]
    waiting = np.lexsort((-through, -slots[1:])) + 1
    inside = np.zeros(1, dtype=np.int64)
    while len(waiting):
        able = inside[left[inside] > 0]
        if not len(able):
            able = inside[problem.uplink[inside] > 0]
            share = problem.uplink[able] / (children[able] + 1)
            able = able[share >= share.max() * (1 - 1e-12)]
        turn = 0 if shallow_first else _next_turn(problem, able, waiting, slots, rate)
        node = int(waiting[turn])
        above = _best_parent(problem, able, node, depth, rate, shallow_first)
        parent[node] = above
        left[above] -= 1
        children[above] += 1
        depth[node] = depth[above] + 1
        inside, waiting = np.append(inside, node), np.delete(waiting, turn)
    return parent


def _next_turn(
    problem: BroadcastProblem, able: IntArray, waiting: IntArray, slots: IntArray, rate: float
) -> int:
    """Index in `waiting` of the first receiver that an open slot reaches at `rate`, else of the best reached.

    While receivers with slots wait, only they are looked at: a leaf never adds a slot.
    """
    if problem.pair_cap_bps is None:
        return 0
    inner = waiting[: max(1, int(np.count_nonzero(slots[waiting] > 0)))] if slots[waiting[0]] else waiting
    reached = np.minimum(problem.pair_cap[np.ix_(able, inner)].max(axis=0), rate)
    return int(np.argmax(reached))


def _best_parent(
    problem: BroadcastProblem, able: IntArray, node: int, depth: IntArray, rate: float, shallow_first: bool
) -> int:
    speed = -np.minimum(problem.pair_cap[able, node], rate)
    first, second = (depth[able], speed) if shallow_first else (speed, depth[able])
    return int(able[np.lexsort((problem.delay[able, node], second, first))[0]])


def _parents(count: int) -> IntArray:
    parent = np.zeros(count + 1, dtype=np.int64)
    parent[0] = -1
    return parent


def _slots(problem: BroadcastProblem, rate: float) -> IntArray:
    """Children each node can serve at `rate`; none for a relay that cannot itself receive at it."""
    slots = np.floor(problem.uplink / rate * (1 + 1e-9)).astype(np.int64)
    slow = problem.downlink < rate * (1 - 1e-9)
    slow[0] = False
    return np.where(slow, 0, np.minimum(slots, problem.count))


def _highest_rate(problem: BroadcastProblem) -> float:
    """The highest rate with slots for all; feasibility only falls as the rate rises, so bisection."""
    low, high = float(problem.uplink[0]) / problem.count, float(problem.uplink[0])
    if _slots(problem, high).sum() >= problem.count:
        return high
    for _ in range(45):
        middle = (low + high) / 2
        if _slots(problem, middle).sum() >= problem.count:
            low = middle
        else:
            high = middle
    return low


def _by_throughput(problem: BroadcastProblem, *, relays: bool) -> list[int]:
    through = np.minimum(problem.uplink, problem.downlink)
    through[0] = -1.0
    chosen = np.flatnonzero((problem.uplink > 0) == relays)
    chosen = chosen[chosen > 0]
    return [int(i) for i in chosen[np.argsort(-through[chosen], kind="stable")]]


def _near_neighbours(problem: BroadcastProblem, relays: list[int]) -> list[int]:
    """Within a band of similar throughput, go on to the neighbour with the best path, then the nearest."""
    through = np.minimum(problem.uplink, problem.downlink)
    order: list[int] = []
    at, left = 0, list(relays)
    while left:
        floor = through[left[0]] * BAND
        band = np.array([node for node in left if through[node] >= floor])
        path = np.minimum(problem.pair_cap[at, band], through[band])
        best = np.lexsort((problem.delay[at, band], -path))[0]
        at = int(band[best])
        order.append(at)
        left.remove(at)
    return order


def _hang_leaves(problem: BroadcastProblem, chain: list[int]) -> IntArray:
    """The chain as parents, then each non-relay under the node that can serve it fastest, late ones first."""
    parent = _parents(problem.count)
    line = np.array([0, *chain])
    parent[line[1:]] = line[:-1]
    inflow: FloatArray = np.minimum.accumulate(
        np.concatenate([[np.inf], problem.edge_cap[line[:-1], line[1:]]])
    )
    children = np.append(np.ones(len(line) - 1), 0.0)
    for leaf in _by_throughput(problem, relays=False):
        share = np.minimum(inflow, problem.uplink[line] / (children + 1))
        serve = np.minimum(share, problem.edge_cap[line, leaf])
        best = len(line) - 1 - int(np.argmax(serve[::-1]))
        parent[leaf] = line[best]
        children[best] += 1
    return parent
