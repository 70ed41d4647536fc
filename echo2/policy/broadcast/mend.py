"""What becomes of a tree that loses a relay: how what is left can go on, and how fast at best.

Called by `policy.relays`. Ours. Under one ancestor, an orphan and all below it get no more than before: the
uplinks of those that are done, of the leaves and of the learner lie idle. Along stripes each of them sends
its part of what is left. Of the ways priced here the scheduler takes the one that costs least, egress and
lateness together, as it does for whole plans.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from echo2.policy.broadcast.bounds import best_bound
from echo2.policy.broadcast.choose import plan_for, tree_plan
from echo2.policy.broadcast.plan import DIRECT, BroadcastPlan
from echo2.policy.broadcast.problem import BroadcastProblem, FloatArray
from echo2.policy.broadcast.schedule import living_parents
from echo2.policy.broadcast.timing import ChunkRules


def ways_left(problem: BroadcastProblem, plan: BroadcastPlan, gone: Set[str]) -> tuple[BroadcastPlan, ...]:
    """The tree `plan` without the relays that are gone, and stripes; both priced for the whole payload.

    `problem`: the receivers of the plan that are still there; of these, `gone` are not to relay. Stripes are
    missing where there are fewer than two receivers. Needs a receiver.
    """
    rules = _same_chunks(plan)
    ways = [_tree_left(problem, plan, gone, rules)]
    if problem.count > 1 and problem.uplink[1:].any():
        ways.append(plan_for(problem, "stripes", rules=rules))
    return tuple(ways)


def _tree_left(
    problem: BroadcastProblem, plan: BroadcastPlan, gone: Set[str], rules: ChunkRules
) -> BroadcastPlan:
    node = {peer.peer_id: i for i, peer in enumerate(problem.receivers, start=1)}
    living = living_parents(plan, {name for name in plan.order if name in gone or name not in node})
    parent = np.full(problem.count + 1, -1, dtype=np.int64)
    for name, above in zip(plan.order, living):
        if name in node:
            parent[node[name]] = 0 if above == DIRECT else node[plan.order[above]]
    return tree_plan(problem, plan.topology, parent, rules, best_bound(problem))


def _same_chunks(plan: BroadcastPlan) -> ChunkRules:
    """The payload is cut already: no other number of chunks is to be looked for."""
    each = plan.size_bytes / max(1, plan.chunks)
    return ChunkRules(min_bytes=each * (1 - 1e-9), max_bytes=each * (1 + 1e-9), stripe_sizes=1)


def shares_of(way: BroadcastPlan, order: Sequence[str]) -> tuple[float, ...]:
    """(N,) the shares of a striped plan in another order of receivers, 0 for those that are not in it."""
    share = dict(zip(way.order, way.shares))
    return tuple(share.get(name, 0.0) for name in order)


def rest_bound_s(problem: BroadcastProblem, missing: FloatArray) -> float:
    """The least time in which receivers that lack the shares `missing` (N,) of the payload can get it all.

    max(F m_all/u_s, F max(m_i/d_i), F sum(m_i)/(u_s + sum u)), Kumar and Ross's bound for what is left. m_all
    is what all lack, for only that must come from the source: with prefixes, the least of `missing`. No plan
    beats it whatever the receivers hold; ours. Receivers that lack nothing still send.
    """
    lack = np.asarray(missing, dtype=np.float64)
    if not lack.any():
        return 0.0
    source = float(lack.min()) / float(problem.uplink[0])
    down = float((lack / problem.downlink[1:]).max())
    return problem.bits * max(source, down, float(lack.sum()) / float(problem.uplink.sum()))
