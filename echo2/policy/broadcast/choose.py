"""Price every topology, pick the best, say why.

The entry of this package: called by the planner, by the scheduler at every publication and by the command
line's topology table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from echo2.policy.broadcast.bounds import Bound, best_bound
from echo2.policy.broadcast.plan import BroadcastPlan, Topology
from echo2.policy.broadcast.problem import BroadcastProblem, FloatArray, IntArray
from echo2.policy.broadcast.regional import regional
from echo2.policy.broadcast.stripes import Stripes, stripes
from echo2.policy.broadcast.timing import ChunkRules, breadth_first, tree_timing
from echo2.policy.broadcast.trees import K_ARY, chains, k_ary, rate_trees, star

Objective = Literal["tail", "mean"]
TOPOLOGIES: tuple[Topology, ...] = ("star", "chain", "tree", "k-ary", "regional", "stripes")
EQUAL = 0.005
# Chains and rate trees are searched in quadratic time; in a fleet this size stripes and regions win.
MOST_SEARCHED = 256
DEFAULT_RULES = ChunkRules()


def candidates(
    problem: BroadcastProblem,
    *,
    rules: ChunkRules = DEFAULT_RULES,
    lp_bound: bool = False,
    topologies: tuple[str, ...] = (),
) -> tuple[BroadcastPlan, ...]:
    """Every topology's plan, sorted by the time of the last receiver.

    No receiver: one empty plan of time 0. One receiver: the star. `lp_bound` asks for the sharper, slower
    bound where pair caps are known. `topologies` leaves out all others, unless none of them exists here.
    """
    bound = best_bound(problem, lp=lp_bound)
    return _candidates(problem, rules, bound, topologies) or _candidates(problem, rules, bound)


def _candidates(
    problem: BroadcastProblem, rules: ChunkRules, bound: Bound, topologies: tuple[str, ...] = ()
) -> tuple[BroadcastPlan, ...]:
    if not problem.count:
        return (_empty(problem, bound),)
    wanted = [topology for topology in TOPOLOGIES if not topologies or topology in topologies]
    plans = [plan for topology in wanted for plan in _plans(problem, topology, rules, bound)]
    return tuple(sorted(plans, key=lambda plan: (plan.time_s, plan.egress_usd)))


def best_plan(
    problem: BroadcastProblem,
    *,
    objective: Objective = "tail",
    usd_per_s: float = 0.0,
    rules: ChunkRules = DEFAULT_RULES,
    lp_bound: bool = False,
) -> BroadcastPlan:
    """The plan to use, its `reason` naming what won, against what, and what binds.

    `objective`: seconds of the last receiver, or their mean weighted by rollouts/s. With `usd_per_s` > 0
    (what a second costs) it minimises seconds x usd_per_s + egress; else seconds, then egress, where seconds
    within 0.5 % count as equal. Raises ValueError for a negative `usd_per_s`.
    """
    if usd_per_s < 0:
        raise ValueError(f"usd_per_s must be >= 0, got {usd_per_s}")
    bound = best_bound(problem, lp=lp_bound)
    ranked = _ranked(_candidates(problem, rules, bound), objective, usd_per_s)
    return replace(ranked[0], reason=_why(ranked, objective, usd_per_s, bound.binds))


def plan_for(
    problem: BroadcastProblem,
    topology: Topology,
    *,
    fanout: int | None = None,
    rules: ChunkRules = DEFAULT_RULES,
    lp_bound: bool = False,
) -> BroadcastPlan:
    """The best plan of one topology; `fanout` picks the k of a k-ary tree (any k >= 1).

    Raises ValueError where the topology does not exist for the problem (regional: no two receivers share a
    site; stripes: fewer than two receivers).
    """
    bound = best_bound(problem, lp=lp_bound)
    if not problem.count:
        return _empty(problem, bound)
    if topology not in TOPOLOGIES:
        raise ValueError(f"unknown topology {topology!r}, one of {', '.join(TOPOLOGIES)}")
    if topology == "k-ary" and fanout is not None:
        if fanout < 1:
            raise ValueError(f"fanout must be >= 1, got {fanout}")
        return tree_plan(problem, "k-ary", k_ary(problem, fanout), rules, bound, fanout)
    plans = _plans(problem, topology, rules, bound, named=True)
    if not plans:
        raise ValueError(f"no {topology} plan for {problem.count} receivers: see plan_for's docstring")
    return min(plans, key=lambda plan: (plan.time_s, plan.egress_usd))


def _plans(
    problem: BroadcastProblem, topology: Topology, rules: ChunkRules, bound: Bound, *, named: bool = False
) -> list[BroadcastPlan]:
    """Plans of one topology; with one receiver all equal the star, so only a `named` one is built."""
    if topology == "star":
        return [tree_plan(problem, "star", star(problem), rules, bound)]
    if problem.count == 1 and not named:
        return []
    if problem.count > MOST_SEARCHED and topology in ("chain", "tree") and not named:
        return []
    if topology == "stripes":
        return [_stripes_plan(problem, stripes(problem, rules), bound)] if problem.count > 1 else []
    if topology == "k-ary":
        wanted = [k for k in K_ARY if k < problem.count] or [min(K_ARY)]
        return [tree_plan(problem, "k-ary", k_ary(problem, k), rules, bound, k) for k in wanted]
    if topology == "regional":
        return [tree_plan(problem, "regional", tree, rules, bound) for tree in regional(problem, rules)]
    shapes = chains(problem) if topology == "chain" else rate_trees(problem)
    plans = [tree_plan(problem, topology, shape, rules, bound) for shape in shapes]
    return [min(plans, key=lambda plan: (plan.time_s, plan.egress_usd))]


def tree_plan(
    problem: BroadcastProblem,
    topology: Topology,
    parent: IntArray,
    rules: ChunkRules,
    bound: Bound,
    fanout: int = 0,
) -> BroadcastPlan:
    """One tree, priced: `parent` (N+1,) over nodes, as the builders of `trees` return it."""
    timing = tree_timing(problem, parent, rules)
    order = breadth_first(parent)
    place = {node: i for i, node in enumerate(order)} | {0: -1}
    slow = timing.bottleneck
    names = problem.peers
    used = parent[1:]
    egress = float(problem.egress[used, np.arange(1, len(parent))].sum() * problem.bits)
    edge = f"{names[int(parent[slow])].peer_id} -> {names[slow].peer_id}"
    return _finish(
        problem,
        bound,
        order,
        timing.receiver_s,
        topology=topology,
        parents=tuple(place[int(parent[node])] for node in order),
        fanout=fanout or int(np.bincount(used).max()),
        chunks=timing.chunks,
        egress_usd=egress,
        reason=f"its slowest edge is {edge} at {timing.rate_bps[slow] / 1e6:.0f} Mbit/s",
    )


def _stripes_plan(problem: BroadcastProblem, split: Stripes, bound: Bound) -> BroadcastPlan:
    share = split.counts / split.chunks
    direct = split.direct / split.chunks
    by_share = np.argsort(-share, kind="stable") + 1
    price = problem.egress[1:, 1:].copy()
    np.fill_diagonal(price, 0.0)
    paid = (share + direct) @ problem.egress[0, 1:] + share @ price.sum(axis=1)
    relays = int((share > 0).sum())
    return _finish(
        problem,
        bound,
        [int(node) for node in by_share],
        split.receiver_s,
        topology="stripes",
        shares=tuple(float(x) for x in share[by_share - 1]),
        direct_share=direct,
        fanout=problem.count if direct else max(relays, problem.count - 1),
        chunks=split.chunks,
        egress_usd=float(paid * problem.bits),
        reason=f"{relays} relays pass on {100 * (1 - direct):.0f} % of the bytes",
    )


def _finish(
    problem: BroadcastProblem,
    bound: Bound,
    order: Sequence[int],
    times: FloatArray,
    *,
    topology: Topology,
    fanout: int,
    chunks: int,
    egress_usd: float,
    reason: str,
    parents: tuple[int, ...] = (),
    shares: tuple[float, ...] = (),
    direct_share: float = 0.0,
) -> BroadcastPlan:
    tail = float(times.max())
    return BroadcastPlan(
        topology=topology,
        order=tuple(problem.receivers[node - 1].peer_id for node in order),
        parents=parents,
        shares=shares,
        direct_share=direct_share,
        fanout=fanout,
        chunks=chunks,
        size_bytes=problem.size_bytes,
        receiver_s=tuple(float(times[node - 1]) for node in order),
        time_s=tail,
        mean_s=float(np.average(times, weights=problem.weight)),
        egress_usd=egress_usd,
        bound_s=bound.seconds,
        ratio=tail / bound.seconds,
        bound_kind=bound.kind,
        reason=reason,
    )


def _empty(problem: BroadcastProblem, bound: Bound) -> BroadcastPlan:
    return BroadcastPlan(
        "star",
        (),
        (),
        (),
        0.0,
        0,
        1,
        problem.size_bytes,
        (),
        0.0,
        0.0,
        0.0,
        0.0,
        1.0,
        bound.kind,
        "no receivers",
    )


def _ranked(plans: Sequence[BroadcastPlan], objective: Objective, usd_per_s: float) -> list[BroadcastPlan]:
    """Best first. Without a price of time, the cheapest of those within 0.5 % of the fastest leads."""
    if usd_per_s > 0:
        return sorted(plans, key=lambda plan: _seconds(plan, objective) * usd_per_s + plan.egress_usd)
    by_time = sorted(plans, key=lambda plan: _seconds(plan, objective))
    limit = _seconds(by_time[0], objective) * (1 + EQUAL)
    near = [plan for plan in by_time if _seconds(plan, objective) <= limit]
    # of equal time and price the simpler structure, as TOPOLOGIES lists them
    near.sort(key=lambda plan: (plan.egress_usd, TOPOLOGIES.index(plan.topology)))
    return near + by_time[len(near) :]


def _seconds(plan: BroadcastPlan, objective: Objective) -> float:
    return plan.time_s if objective == "tail" else plan.mean_s


def _why(ranked: Sequence[BroadcastPlan], objective: Objective, usd_per_s: float, binds: str) -> str:
    winner = ranked[0]
    if not winner.order:
        return winner.reason
    goal = f"{objective} at {usd_per_s:g} USD/s plus egress" if usd_per_s > 0 else objective
    text = f"{winner.name} wins on {goal}: {_priced(winner, objective)}, {winner.ratio:.2f}x the bound"
    text += f" set by {binds}; {winner.reason}"
    other = next((plan for plan in ranked if plan.name != winner.name), None)
    return text if other is None else f"{text}; next is {other.name}: {_priced(other, objective)}"


def _priced(plan: BroadcastPlan, objective: Objective) -> str:
    paid = f" and {plan.egress_usd:.2f} USD egress" if plan.egress_usd else ""
    return f"{_seconds(plan, objective):.3g} s{paid}"
