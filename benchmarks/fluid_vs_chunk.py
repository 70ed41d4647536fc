"""The fluid network against the chunk network and the planner, over topologies, pools and link traces.

    python benchmarks/fluid_vs_chunk.py [--counts 2 8 32] [--size-gb 16] [--seed 0] [--above 0.05] [--lost]

One snapshot is sent along the best plan of every topology: predicted tail, simulated tail as fluid and chunk
by chunk, and their gaps. Plans are made without a time per chunk (`ChunkRules.overhead_s`), which neither
network has, and in at most about 240 chunks, so that no plan is coarsened. The planner knows no traces: for
varying links its prediction is of the usual rates and its gap is not counted.

Varying links change every 2 s on average; with outages every node is cut off a tenth of the time. So a small
snapshot meets few changes, each of which weighs much: the fluid's gap grows there.

With `--lost`, every row is followed by the same with the relay that feeds most receivers gone after half the
planned time (`-1`): the others get its part another way, as the scheduler's `Reroute` says.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import simpy

from echo2.policy.broadcast import TOPOLOGIES, BroadcastPlan, ChunkRules, Topology, plan_for
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel
from echo2.policy.links import LinkTable
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.inputs import LinkShape, SimWorker
from echo2.sim.network import Network
from echo2.traces import regions

MOST_CHUNKS = 240
GBIT = 1e9
SCENARIOS = ("equal", "wide", "uneven", "slow", "leaves", "regions", "varying", "outages")
DECODE = DecodeModel.constant_rate(1000.0, 16)


@dataclass(frozen=True)
class Case:
    """A pool, its links and how the learner's vary."""

    links: LinkTable
    workers: tuple[SimWorker, ...]
    learner_shape: LinkShape | None = None


@dataclass(frozen=True)
class Row:
    """Tails in seconds; `planned_s` is of the usual rates."""

    scenario: str
    count: int
    topology: str
    chunks: int
    planned_s: float
    fluid_s: float
    chunk_s: float
    receivers: float
    fluid_events: int
    chunk_events: int

    @property
    def gap(self) -> float:
        """Fluid over chunk, less 1."""
        return self.fluid_s / self.chunk_s - 1.0

    @property
    def plan_gap(self) -> float:
        """Planned over chunk, less 1."""
        return self.planned_s / self.chunk_s - 1.0


def worker(i: int, site: str, up: float, down: float, relays: bool = True) -> SimWorker:
    """A worker of which only the links matter."""
    offer = WorkerOffer(
        f"w{i:02d}", "pool", "GPU", site, 1.0, 1.0, 16, 10.0, 20.0, up, down, can_relay=relays
    )
    return SimWorker(offer, DECODE)


def steps_of(rng: np.random.Generator, hold_s: float, outage: float) -> LinkShape:
    """A random shape: factors 0.4 to 1.6 held about `hold_s` seconds each, an `outage` share of them 0."""
    ends = np.cumsum(rng.uniform(0.5, 1.5, 40) * hold_s)
    factor = np.where(rng.random(40) < outage, 0.0, rng.uniform(0.4, 1.6, 40))
    starts = (0.0, *ends[:-1].tolist())
    return LinkShape(starts, tuple(factor.tolist()), float(ends[-1]), float(rng.uniform(0, ends[-1])))


def case_of(scenario: str, count: int, seed: int = 0) -> Case:
    """The pool of a scenario."""
    rng = np.random.default_rng((seed, count))
    if scenario == "regions":
        return _regional(count)
    sites = tuple(f"s{i}" for i in range(4))
    rtt = 0.01 + 0.06 * (1.0 - np.eye(4))
    table = LinkTable(
        sites,
        ((100 * GBIT,) * 4,) * 4,
        tuple(map(tuple, rtt.tolist())),
        ((0.0,) * 4,) * 4,
        "s0",
        GBIT,
        GBIT,
        streams=64,
    )
    up, down = np.full(count, GBIT), np.full(count, GBIT if scenario == "equal" else 10 * GBIT)
    if scenario in ("uneven", "varying", "outages"):
        up = rng.uniform(0.1, 2.0, count) * GBIT
    if scenario == "slow":
        up[0], down[0] = 0.02 * GBIT, 0.04 * GBIT
    relays = rng.random(count) < (0.7 if scenario == "leaves" else 2.0)
    workers = [worker(i, sites[i % 4], up[i], down[i], bool(relays[i])) for i in range(count)]
    if scenario not in ("varying", "outages"):
        return Case(table, tuple(workers))
    outage = 0.1 if scenario == "outages" else 0.0
    varied = tuple(replace(w, shape=steps_of(rng, 2.0, outage)) for w in workers)
    return Case(table, varied, steps_of(rng, 2.0, outage))


def _regional(count: int) -> Case:
    """Workers dealt out over the regions of the measured matrix, 16 streams per edge."""
    matrix = regions().filled()
    keep = list(range(len(matrix.regions)))
    while True:
        at = np.ix_(keep, keep)
        unknown = np.isnan(matrix.capacity_bps[at] + matrix.rtt_s[at] + matrix.egress_usd_per_gb[at])
        if not unknown.any():
            break
        keep.pop(int((unknown.sum(axis=0) + unknown.sum(axis=1)).argmax()))
    names = tuple(matrix.regions[i] for i in keep)
    nic = np.diag(matrix.capacity_bps)[keep]
    capacity, rtt, egress = (
        tuple(map(tuple, m[at].tolist()))
        for m in (matrix.capacity_bps, matrix.rtt_s, matrix.egress_usd_per_gb)
    )
    table = LinkTable(names, capacity, rtt, egress, names[0], float(nic[0]), float(nic[0]))
    spread = [(1 + 5 * i) % len(names) for i in range(count)]
    return Case(table, tuple(worker(i, names[k], nic[k], nic[k]) for i, k in enumerate(spread)))


def busiest_relay(plan: BroadcastPlan) -> str | None:
    """Who has most to pass on; None in a star."""
    load = plan.shares or [plan.parents.count(i) for i in range(len(plan.order))]
    return plan.order[int(np.argmax(load))] if max(load) > 0 else None


def tail(
    kind: type[Network], case: Case, plan: BroadcastPlan, lost: str | None = None
) -> tuple[dict[str, float], int]:
    """Arrival of every receiver (seconds) and the number of events in a network of this kind.

    `lost` leaves after half the planned time.
    """
    env = simpy.Environment()
    seen: dict[str, float] = {}
    network = kind(
        env,
        case.links,
        case.workers,
        lambda name, _: seen.__setitem__(name, env.now),
        lambda *_: None,
        lambda *_: None,
        case.learner_shape,
    )
    network.send(1, plan)
    if lost is not None:
        env.run(until=plan.time_s / 2)
        network.leave(lost)
        network.reroute(1, [name for name in plan.order if name != lost], [lost])
    env.run()
    return seen, network.events


def compare(
    scenario: str,
    count: int,
    topology: Topology,
    seed: int = 0,
    size_bytes: float = 16e9,
    losing: bool = False,
) -> Row | None:
    """One row of the table; None where the topology does not exist for the pool, or has no relay to lose."""
    case = case_of(scenario, count, seed)
    problem = case.links.problem([w.offer for w in case.workers], size_bytes)
    rules = ChunkRules(overhead_s=0.0, min_bytes=size_bytes / MOST_CHUNKS)
    try:
        plan = plan_for(problem, topology, rules=rules)
    except ValueError:
        return None
    lost = busiest_relay(plan) if losing else None
    if losing and lost is None:
        return None
    fluid, fluid_events = tail(Network, case, plan, lost)
    chunk, chunk_events = tail(ChunkNetwork, case, plan, lost)
    worst = max(abs(fluid[name] / chunk[name] - 1.0) for name in fluid.keys() & chunk.keys())
    return Row(
        scenario,
        count,
        f"{plan.name}-1" if losing else plan.name,
        plan.chunks,
        plan.time_s,
        max(fluid.values()),
        max(chunk.values()),
        worst,
        fluid_events,
        chunk_events,
    )


def rows(
    counts: Sequence[int],
    scenarios: Sequence[str],
    topologies: Sequence[str],
    seed: int,
    size: float,
    losses: Sequence[bool] = (False,),
) -> Iterator[Row]:
    """All rows; topologies that do not exist for a pool are left out."""
    for scenario in scenarios:
        for count in counts:
            for topology in TOPOLOGIES:
                for losing in losses if topology in topologies else ():
                    row = compare(scenario, count, topology, seed, size, losing)
                    if row is not None:
                        yield row


def main() -> None:
    """Print the table and the largest gaps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=SCENARIOS)
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES), choices=TOPOLOGIES)
    parser.add_argument("--above", type=float, default=0.0, help="print rows with a gap of at least this")
    parser.add_argument("--size-gb", type=float, default=16.0)
    parser.add_argument("--seed", type=int, default=0, help="of uneven pools and of traces")
    parser.add_argument("--lost", action="store_true", help="also with a relay that leaves half way")
    options = parser.parse_args()
    losses = (False, True) if options.lost else (False,)
    print(
        f"{'scenario':9}{'N':>3} {'topology':9}{'chunks':>7}{'planned':>10}{'fluid':>10}{'chunk':>10}"
        f"{'fluid gap':>11}{'plan gap':>10}{'receivers':>11}{'events':>14}{'cpu s':>7}"
    )
    began = time.perf_counter()
    seen = []
    for row in rows(
        options.counts, options.scenarios, options.topologies, options.seed, 1e9 * options.size_gb, losses
    ):
        seen.append(row)
        constant = row.scenario not in ("varying", "outages") and not row.topology.endswith("-1")
        took, began = time.perf_counter() - began, time.perf_counter()
        if max(abs(row.gap), abs(row.plan_gap) if constant else 0.0) < options.above:
            continue
        print(
            f"{row.scenario:9}{row.count:>3} {row.topology:9}{row.chunks:>7}{row.planned_s:>10.2f}"
            f"{row.fluid_s:>10.2f}{row.chunk_s:>10.2f}{row.gap:>+11.2%}"
            f"{format(row.plan_gap, '+.2%') if constant else '-':>10}{row.receivers:>11.2%}"
            f"{row.fluid_events:>6}/{row.chunk_events:<7}{took:>7.1f}",
            flush=True,
        )
    gaps = np.abs([row.gap for row in seen])
    print(
        f"\n{len(seen)} rows; fluid against chunk: mean {gaps.mean():.2%}, largest {gaps.max():.2%}, "
        f"{int((gaps <= 0.05).sum())} within 5 %"
    )


if __name__ == "__main__":
    main()
