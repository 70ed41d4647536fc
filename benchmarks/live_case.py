"""What a broadcast of the live benchmark is about: its machines, plan and bound, and the same simulated.

Used by `live_broadcast`, which carries the plan out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from echo2.policy.broadcast import (
    BroadcastPlan,
    BroadcastProblem,
    ChunkRules,
    best_plan,
    plan_for,
    rest_bound_s,
)
from echo2.policy.broadcast.bounds import best_bound
from echo2.policy.broadcast.schedule import with_chunks
from echo2.policy.decisions import Reroute
from echo2.policy.facts import WorkerOffer
from echo2.policy.fleet import Fleet, Status
from echo2.policy.generation import DecodeModel
from echo2.policy.links import LinkTable
from echo2.policy.relays import Relays
from echo2.scenario.varying import link_shape
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.inputs import LinkShape, SimWorker

MBIT = 1e6
RTT_S = 0.02
TRACES = ("ec2-c5.xlarge-us-west-1-1567729762", "home-brisbane-2017-shape")
FAULTS = ("none", "kill", "corrupt", "stall", "lie")
LIE = 0.1
SENDS_NOTHING = 1e-6


@dataclass(frozen=True)
class Case:
    """Who is there: rates in bit/s at their usual level, and the trace that scales each."""

    names: tuple[str, ...]
    up_bps: tuple[float, ...]
    down_bps: tuple[float, ...]
    traces: tuple[str, ...]
    seed: int
    learner_bps: float

    def shape(self, i: int) -> LinkShape:
        """The trace of worker i, from where the seed begins it."""
        return link_shape(self.traces[i], self.seed, self.names[i])

    def offers(self) -> list[WorkerOffer]:
        """The workers at the rates that hold when the broadcast begins."""
        return [offer(self, i, self.shape(i).at(0.0)) for i in range(len(self.names))]


def case_of(count: int, seed: int, traces: tuple[str, ...], mbps: float) -> Case:
    """A learner of `mbps`; uplinks of 0.2 to 0.8 of that, downlinks of twice it; every fourth has the second
    trace."""
    rng = random.Random(f"{count}/{seed}")
    ups = tuple(rng.uniform(0.2, 0.8) * mbps * MBIT for _ in range(count))
    downs = tuple(2 * mbps * MBIT for _ in range(count))
    kinds = tuple(traces[i % 4 == 3] for i in range(count))
    return Case(tuple(f"w{i:02d}" for i in range(count)), ups, downs, kinds, seed, mbps * MBIT)


def links(case: Case) -> LinkTable:
    """One site: what limits are the machines' own links."""
    return LinkTable(("here",), ((1e15,),), ((RTT_S,),), ((0.0,),), "here", case.learner_bps, 1e9, 256)


def offer(case: Case, i: int, factor: float = 1.0, relays: bool = True, lie: float = 1.0) -> WorkerOffer:
    """Worker i at `factor` of its usual rates."""
    up, down = case.up_bps[i] * factor * lie, case.down_bps[i] * factor
    return WorkerOffer(case.names[i], "p", "GPU", "here", 1.0, 1.0, 16, 1.0, 1.0, up, down, can_relay=relays)


def planned(case: Case, size: float, chunks: int, topology: Any = "") -> BroadcastPlan:
    """The plan for the rates that hold at the start; "": of the best topology."""
    problem = links(case).problem(case.offers(), size)
    rules = ChunkRules(overhead_s=0.0, min_bytes=size / chunks, max_bytes=size / chunks * (1 + 1e-9))
    plan = plan_for(problem, topology, rules=rules) if topology else best_plan(problem, rules=rules)
    return with_chunks(plan, chunks)


def busiest(plan: BroadcastPlan, at_s: float = 0.0) -> str:
    """The relay that feeds most, the first of them that by the plan has a child to feed at that time."""
    load = np.array(plan.shares or [plan.parents.count(i) for i in range(len(plan.order))], dtype=np.float64)
    if not plan.shares:
        later = {parent for parent, seconds in zip(plan.parents, plan.receiver_s) if seconds > at_s}
        load[[i for i in range(len(load)) if i not in later]] = 0.0
    return plan.order[int(np.argmax(load))]


def policy_of(case: Case, plan: BroadcastPlan) -> Relays:
    """The scheduler's part that answers complaints, with this broadcast under way."""
    fleet = Fleet()
    for worker_offer in case.offers():
        fleet.offer(worker_offer).status = Status.READY
    relays = Relays(links(case), fleet)
    relays.begin(1, plan)
    return relays


def without_fault(case: Case, size: float, fault: str, victim: str) -> BroadcastProblem:
    """The broadcast with what the fault leaves."""
    left = []
    for i, name in enumerate(case.names):
        factor = case.shape(i).at(0.0)
        if name != victim or fault == "none":
            left.append(offer(case, i, factor))
        elif fault == "lie":
            left.append(offer(case, i, factor, lie=LIE))
        elif fault != "kill":
            left.append(offer(case, i, factor, relays=False))
    return links(case).problem(left, size)


def bound(case: Case, size: float, fault: str, victim: str) -> float:
    """The least time with what the fault leaves."""
    return best_bound(without_fault(case, size, fault, victim)).seconds


class Simulated:
    """The same broadcast in the chunk network, over the same traces, with the reroutes of the live one.

    `best_s`: when all could have it at best from the first reroute on, with what each has by then and at the
    rates of the beginning; 0 without a reroute.
    """

    def __init__(self, case: Case, plan: BroadcastPlan, fault: str, victim: str) -> None:
        self._problem, self.best_s = without_fault(case, plan.size_bytes, fault, victim), 0.0
        self._env, self._seen = simpy.Environment(), dict[str, float]()
        self._fault, self._victim = fault, victim
        decode = DecodeModel.constant_rate(1000.0, 16)
        workers = tuple(
            SimWorker(offer(case, i), decode, shape=case.shape(i)) for i in range(len(case.names))
        )
        self.network = ChunkNetwork(
            self._env, links(case), workers, self._arrived, lambda *_: None, lambda *_: None
        )
        self.network.send(1, plan)
        if fault in ("corrupt", "stall", "lie"):
            self.network.throttle(victim, LIE if fault == "lie" else SENDS_NOTHING)

    def seconds(self, kill_s: float, reroutes: Sequence[Reroute]) -> float:
        """Until the last worker (of the survivors) has every chunk."""
        happenings: list[tuple[float, Any]] = [(decision.t_s, decision) for decision in reroutes]
        if self._fault == "kill":
            happenings.append((kill_s, None))
        for at_s, what in sorted(happenings, key=lambda happening: happening[0]):
            self._env.run(until=max(at_s, self._env.now + 1e-9))
            if what is None:
                self.network.leave(self._victim)
            else:
                self.best_s = self.best_s or at_s + self._rest_s()
                self.network.reroute(1, what.worker_ids, what.without, what.shares, what.direct_share)
        self._env.run()
        return max(s for name, s in self._seen.items() if self._fault != "kill" or name != self._victim)

    def _rest_s(self) -> float:
        lacks = self.network.lacking(1)
        missing = [lacks[peer.peer_id] for peer in self._problem.receivers]
        return rest_bound_s(self._problem, np.array(missing))

    def _arrived(self, name: str, _version: int) -> None:
        self._seen[name] = self._env.now
