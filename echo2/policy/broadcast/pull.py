"""Pull: every worker fetches the whole snapshot from a holder, the learner or a worker that has it already.

Called by `plan_choice` to predict what the scheduler does in pull mode (`transfers.best_holder`): the fastest
worker fetches first, each from the holder with the least egress plus lateness that serves fewer than
`fanout`; who has the snapshot serves in its turn. A holder's uplink is shared max-min.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from echo2.policy.broadcast.bounds import best_bound
from echo2.policy.broadcast.plan import BroadcastPlan
from echo2.policy.broadcast.problem import BroadcastProblem
from echo2.policy.broadcast.timing import water_fill

LateUsd = Callable[[int, float], float]


@dataclass
class _Fetches:
    """The course of all fetches: who fetches from whom, what is left, bit/s. Node 0 is the learner."""

    problem: BroadcastProblem
    fanout: int
    late_usd: LateUsd
    egress_weight: float = 1.0
    now_s: float = 0.0
    children: dict[int, list[int]] = field(default_factory=lambda: {0: []})
    parent: dict[int, int] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    rate: dict[int, float] = field(default_factory=dict)
    done_s: dict[int, float] = field(default_factory=dict)

    def serve(self, waiting: list[int]) -> list[int]:
        """Let those begin for whom a holder is free; the rest, in order."""
        for at, node in enumerate(waiting):
            free = [h for h, kids in self.children.items() if len(kids) < self.fanout]
            if not free:
                return waiting[at:]
            holder = min(free, key=lambda h: self._price(h, node))
            self.children[holder].append(node)
            self.parent[node], self.left[node] = holder, self.problem.bits
            self._share(holder)
        return []

    def advance(self) -> None:
        """Go on to the end of the next fetch; who has ended it becomes a holder."""
        step_s, node = min((self.left[n] / self.rate[n], n) for n in self.left)
        self.now_s += step_s
        for other in self.left:
            self.left[other] -= step_s * self.rate[other]
        del self.left[node], self.rate[node]
        holder = self.parent[node]
        self.done_s[node] = self.now_s + float(self.problem.delay[holder, node])
        self.children[holder].remove(node)
        self._share(holder)
        if self.problem.uplink[node] > 0:
            self.children[node] = []

    def _price(self, holder: int, node: int) -> tuple[float, float, str]:
        problem = self.problem
        share = float(problem.uplink[holder]) / (len(self.children[holder]) + 1)
        seconds = problem.bits / min(share, float(problem.edge_cap[holder, node]))
        usd = self.egress_weight * float(problem.egress[holder, node]) * problem.bits
        return usd + self.late_usd(node, seconds), seconds, problem.peers[holder].peer_id

    def _share(self, holder: int) -> None:
        kids = self.children[holder]
        caps = np.array([self.problem.edge_cap[holder, node] for node in kids])
        if kids:
            self.rate.update(
                zip(kids, water_fill(float(self.problem.uplink[holder]), caps).tolist(), strict=True)
            )


def pull_plan(
    problem: BroadcastProblem, fanout: int, late_usd: LateUsd, egress_weight: float = 1.0
) -> BroadcastPlan:
    """The course of a publication in pull mode, as a tree. Needs a receiver.

    `late_usd(i, seconds)`: what it costs that receiver i (from 1) waits so long.
    """
    fetches = _Fetches(problem, fanout, late_usd, egress_weight)
    weight = problem.weight
    waiting = sorted(
        range(1, problem.count + 1), key=lambda n: (-weight[n - 1], problem.receivers[n - 1].peer_id)
    )
    while len(fetches.done_s) < problem.count:
        waiting = fetches.serve(waiting)
        fetches.advance()
    order = list(fetches.done_s)
    place = {node: at for at, node in enumerate(order)} | {0: -1}
    times = [fetches.done_s[node] for node in order]
    bound, tail = best_bound(problem), max(times)
    paid = sum(float(problem.egress[fetches.parent[node], node]) for node in order) * problem.bits
    return BroadcastPlan(
        topology="pull",
        order=tuple(problem.receivers[node - 1].peer_id for node in order),
        parents=tuple(place[fetches.parent[node]] for node in order),
        shares=(),
        direct_share=0.0,
        fanout=fanout,
        chunks=1,
        size_bytes=problem.size_bytes,
        receiver_s=tuple(times),
        time_s=tail,
        mean_s=float(np.average(times, weights=[weight[node - 1] for node in order])),
        egress_usd=paid,
        bound_s=bound.seconds,
        ratio=tail / bound.seconds,
        bound_kind=bound.kind,
        reason=f"each worker fetches from a holder, {fanout} at a time from one",
    )
