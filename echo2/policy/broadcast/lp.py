"""The broadcast rate that pair caps allow: one linear program, solved by cutting planes.

Called by `bounds.lp_bound_s` only; needs scipy, which is imported here when it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast.problem import BroadcastProblem, FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]
MAX_ROUNDS = 40
GAP = 1e-3
_FLOW_UNITS = 50_000_000


def broadcast_rate(problem: BroadcastProblem, ceiling_bps: float) -> float:
    """Upper bound on the common rate R in bit/s, exact to GAP unless MAX_ROUNDS were not enough."""
    import scipy.optimize
    import scipy.sparse

    linprog: Any = scipy.optimize.linprog
    cap = problem.edge_cap / ceiling_bps
    usable = cap > 0
    np.fill_diagonal(usable, False)
    usable[:, 0] = False
    sender, receiver = np.nonzero(usable)
    bounds = [(0.0, float(c)) for c in cap[sender, receiver]] + [(0.0, 1.0)]
    goal = np.append(np.zeros(len(sender)), -1.0)
    right = np.concatenate([problem.uplink, problem.downlink]) / ceiling_bps
    rows, rate = _link_rows(problem.count + 1, sender, receiver), 1.0
    for _ in range(MAX_ROUNDS):
        solved = linprog(goal, A_ub=rows, b_ub=right, bounds=bounds, method="highs")
        if solved.status != 0:
            break
        rate = min(rate, float(-solved.fun))
        inside = _violated_cuts(problem.count + 1, sender, receiver, solved.x[:-1], rate)
        if not len(inside):
            break
        crossing = inside[:, sender] & ~inside[:, receiver]
        cuts = np.hstack([-crossing.astype(np.float64), np.ones((len(inside), 1))])
        rows = scipy.sparse.vstack([rows, scipy.sparse.csr_matrix(cuts)])
        right = np.concatenate([right, np.zeros(len(inside))])
    return rate * ceiling_bps


def _link_rows(nodes: int, sender: IntArray, receiver: IntArray) -> Any:
    """Sparse (2 nodes, edges + 1): sums of edge rates out of and into every node."""
    import scipy.sparse

    at, ones = np.arange(len(sender)), np.ones(len(sender))
    shape = (nodes, len(sender) + 1)
    out = scipy.sparse.coo_matrix((ones, (sender, at)), shape=shape)
    return scipy.sparse.vstack([out, scipy.sparse.coo_matrix((ones, (receiver, at)), shape=shape)])


def _violated_cuts(
    nodes: int, sender: IntArray, receiver: IntArray, rates: FloatArray, wanted: float
) -> BoolArray:
    """(cuts, nodes) bool: source sides of distinct min cuts that let less than `wanted` through."""
    import scipy.sparse
    import scipy.sparse.csgraph

    csgraph: Any = scipy.sparse.csgraph
    # more than twice the wanted rate is as good as twice, and fits 32 bits
    units = np.rint(np.clip(rates / wanted, 0.0, 2.0) * _FLOW_UNITS).astype(np.int32)
    graph: Any = scipy.sparse.csr_matrix((units, (sender, receiver)), shape=(nodes, nodes))
    sides = set()
    for node in range(1, nodes):
        flow = csgraph.maximum_flow(graph, 0, node)
        if flow.flow_value < _FLOW_UNITS * (1 - GAP):
            residual = (graph - flow.flow).tocsr()
            residual.data[residual.data < 0] = 0
            residual.eliminate_zeros()
            side = np.zeros(nodes, dtype=bool)
            side[csgraph.breadth_first_order(residual, 0, return_predecessors=False)] = True
            sides.add(side.tobytes())
    return np.array([np.frombuffer(side, dtype=bool) for side in sorted(sides)], dtype=bool)
