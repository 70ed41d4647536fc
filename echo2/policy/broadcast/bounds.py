"""How fast any plan could be: bounds on the time until every receiver has the snapshot.

Used beside every plan (`bound_s`, `ratio`) and by the tests, which hold all plans to them. Delays are left
out, so the bounds hold with them too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from echo2.policy.broadcast.lp import GAP, broadcast_rate
from echo2.policy.broadcast.problem import BroadcastProblem

LP_MAX_RECEIVERS = 64


@dataclass(frozen=True)
class Bound:
    """No plan ends before `seconds`. `kind`: fluid, cut or lp. `binds`: what sets it, in words."""

    seconds: float
    kind: str
    binds: str


def fluid_bound_s(problem: BroadcastProblem) -> float:
    """max(F/u_s, F/min d, N F/(u_s + sum u)) in seconds, pair caps ignored.

    Source: Kumar & Ross, "Peer-assisted file distribution: the minimum distribution time" (2006). Receivers
    that cannot relay add no uplink. 0 without receivers.
    """
    return _largest(_fluid_terms(problem)).seconds


def cut_bound_s(problem: BroadcastProblem) -> float:
    """The fluid bound sharpened by pair caps at single cuts, in seconds (ours, a relaxation of the LP).

    No sender can use more than the sum of its pairs' caps, no receiver more than the caps that lead to it.
    """
    return _largest(_fluid_terms(problem) + _cut_terms(problem)).seconds


def lp_bound_s(problem: BroadcastProblem) -> float:
    """The highest common rate of max-flows to all receivers, as a time F/R in seconds.

    maximise R with edge rates c >= 0, c <= pair cap, sum out <= uplink, sum in <= downlink, and every cut
    that separates a receiver from the source at least R (broadcast with network coding: Wu, Chou & Kung
    2005). Solved by cutting planes, which are themselves bounds: it holds even where the rounds run out.
    Raises ValueError for more than LP_MAX_RECEIVERS receivers.
    """
    if problem.count > LP_MAX_RECEIVERS:
        raise ValueError(f"the LP bound takes up to {LP_MAX_RECEIVERS} receivers, got {problem.count}")
    simple = cut_bound_s(problem)
    if problem.pair_cap_bps is None or problem.count < 2:
        return simple
    return max(simple, problem.bits / broadcast_rate(problem, problem.bits / simple))


def best_bound(problem: BroadcastProblem, *, lp: bool = False) -> Bound:
    """The sharpest bound at hand: the LP where asked for and small enough, else cut (with caps) or fluid."""
    terms = _fluid_terms(problem)
    if problem.pair_cap_bps is None:
        return _largest(terms)
    cut = replace(_largest(terms + _cut_terms(problem)), kind="cut")
    if not lp or problem.count > LP_MAX_RECEIVERS:
        return cut
    seconds = lp_bound_s(problem)
    binds = cut.binds if seconds <= cut.seconds * (1 + GAP) else "the pair caps taken together"
    return Bound(seconds, "lp", binds)


def _largest(terms: list[Bound]) -> Bound:
    return max(terms, key=lambda term: term.seconds, default=Bound(0.0, "fluid", "nothing to send"))


def _fluid_terms(problem: BroadcastProblem) -> list[Bound]:
    if not problem.count:
        return []
    bits, up, down = problem.bits, problem.uplink, problem.downlink[1:]
    slow = int(np.argmin(down))
    name = problem.receivers[slow].peer_id
    return [
        Bound(bits / float(up[0]), "fluid", f"the learner's uplink ({up[0] / 1e6:.0f} Mbit/s)"),
        Bound(bits / float(down[slow]), "fluid", f"the downlink of {name} ({down[slow] / 1e6:.0f} Mbit/s)"),
        Bound(
            problem.count * bits / float(up.sum()),
            "fluid",
            f"all uplinks together ({up.sum() / 1e6:.0f} Mbit/s for {problem.count} receivers)",
        ),
    ]


def _cut_terms(problem: BroadcastProblem) -> list[Bound]:
    if not problem.count:
        return []
    edge = problem.edge_cap[:, 1:].copy()
    edge[np.arange(1, problem.count + 1), np.arange(problem.count)] = 0.0
    sends = np.minimum(problem.uplink, edge.sum(axis=1))
    takes = np.minimum(problem.downlink[1:], edge.sum(axis=0))
    slow = int(np.argmin(takes))
    name = problem.receivers[slow].peer_id
    return [
        Bound(
            problem.bits / float(sends[0]),
            "cut",
            f"the paths out of the learner ({sends[0] / 1e6:.0f} Mbit/s)",
        ),
        Bound(
            problem.bits / float(takes[slow]),
            "cut",
            f"the paths into {name} ({takes[slow] / 1e6:.0f} Mbit/s)",
        ),
        Bound(
            problem.count * problem.bits / float(sends.sum()),
            "cut",
            f"all senders' paths together ({sends.sum() / 1e6:.0f} Mbit/s)",
        ),
    ]
