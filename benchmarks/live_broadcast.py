"""A broadcast as planned, as simulated chunk by chunk, and live over shaped links on loopback.

    python benchmarks/live_broadcast.py [--workers 8 16] [--fault none kill corrupt stall lie]

One learner and its workers in a few processes, without engines: real servers, relays, gatherers and
receivers, with every machine's link shaped by the replay of a recorded trace. The planner is given the rates
that hold when the broadcast begins, the simulator the very traces. Live is from the order to fetch until the
last worker has every chunk; verifying and swapping come after it and are not part of the plan either.

With a fault, the relay that feeds most workers is killed after half the planned time, or corrupts chunks,
stalls in them, or sends at a tenth of what it offers. Workers complain; the second complaint takes the relay
out for all, as `policy.relays` says. The bound is then the least time for the survivors (kill), or with that
relay's uplink as it really is.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import simpy

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from echo2.policy.broadcast import BroadcastPlan, ChunkRules, best_plan
from echo2.policy.broadcast.bounds import best_bound
from echo2.policy.broadcast.schedule import with_chunks
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel
from echo2.policy.links import LinkTable
from echo2.policy.relays import COMPLAINERS
from echo2.runtime.driver.routes import course_of, route_along
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.shaping import ShapedLink, Shaper
from echo2.scenario.varying import link_shape
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.inputs import LinkShape, SimWorker

MBIT = 1e6
RTT_S = 0.02
TRACES = ("ec2-c5.xlarge-us-west-1-1567729762", "home-brisbane-2017-shape")
PROCESSES = 4
FAULTS = ("none", "kill", "corrupt", "stall", "lie")
LIE = 0.1


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


def planned(case: Case, size: float, chunks: int) -> BroadcastPlan:
    """The plan for the rates that hold at the start."""
    now = [offer(case, i, case.shape(i).at(0.0)) for i in range(len(case.names))]
    rules = ChunkRules(overhead_s=0.0, min_bytes=size / chunks, max_bytes=size / chunks * (1 + 1e-9))
    return with_chunks(best_plan(links(case).problem(now, size), rules=rules), chunks)


def simulated(case: Case, plan: BroadcastPlan, fault: str, victim: str, at_s: float) -> float:
    """Seconds until the last worker (of the survivors) has every chunk, in the chunk network.

    At `at_s` the relay at fault is out, as it was live; until then it sends nothing, or a tenth if it lies.
    """
    env, seen = simpy.Environment(), dict[str, float]()
    decode = DecodeModel.constant_rate(1000.0, 16)
    workers = tuple(SimWorker(offer(case, i), decode, shape=case.shape(i)) for i in range(len(case.names)))
    arrived: Any = lambda name, _v: seen.__setitem__(name, env.now)  # noqa: E731
    network = ChunkNetwork(env, links(case), workers, arrived, lambda *_: None, lambda *_: None)
    network.send(1, plan)
    if fault in ("corrupt", "stall", "lie"):
        network.throttle(victim, LIE if fault == "lie" else 1e-6)
    if fault != "none":
        env.run(until=at_s)
        if fault == "kill":
            network.leave(victim)
        network.reroute(1, [name for name in plan.order if name != victim], [victim])
    env.run()
    return max(seconds for name, seconds in seen.items() if fault != "kill" or name != victim)


def bound(case: Case, size: float, fault: str, victim: str) -> float:
    """The least time with what the fault leaves."""
    left = []
    for i, name in enumerate(case.names):
        factor = case.shape(i).at(0.0)
        if name != victim or fault == "none":
            left.append(offer(case, i, factor))
        elif fault == "lie":
            left.append(offer(case, i, factor, lie=LIE))
        elif fault != "kill":
            left.append(offer(case, i, factor, relays=False))
    return best_bound(links(case).problem(left, size)).seconds


# ---- live: workers in processes of their own -----------------------------------------------------------


def host(
    pipe: Connection, case: Case, mine: list[int], url: str, folder: str, fault: str, victim: str
) -> None:
    """A process with some of the workers."""
    asyncio.run(_host(pipe, case, mine, url, Path(folder), fault, victim))


async def _host(
    pipe: Connection, case: Case, mine: list[int], url: str, folder: Path, fault: str, victim: str
) -> None:
    from benchmarks.broadcast_node import BY_FAULT, Node

    loop = asyncio.get_running_loop()
    nodes = {}
    for i in mine:
        name = case.names[i]
        shape, bad = case.shape(i), fault if name == victim else "none"
        scale = LIE if bad == "lie" else 1.0
        link = lambda rate, shape=shape: Shaper(rate, shape)  # noqa: E731
        nodes[name] = await Node.made(
            name, url, folder / name, ShapedLink(link(case.down_bps[i]), link(case.up_bps[i] * scale), RTT_S),
            BY_FAULT[bad], lambda r, who=name: pipe.send(("failed", who, r.source_id, r.cause)),
        )  # fmt: skip
    pipe.send(("ready", {name: node.url for name, node in nodes.items()}))
    fetching: dict[str, asyncio.Task[None]] = {}

    async def fetch(name: str, order: m.Fetch) -> None:
        try:
            got = await nodes[name].receiver.fetch(1, -1, order.route)
            pipe.send(("live", name, got.transfer_s, str(got.path)))
        except Exception as error:
            pipe.send(("lost", name, repr(error)))

    while True:
        what, *rest = await loop.run_in_executor(None, pipe.recv)
        if what == "go":
            for name, order in rest[0].items():
                for shaper in (nodes[name].link.down, nodes[name].link.up):
                    shaper.restart()  # the traces begin with the broadcast
                fetching[name] = asyncio.create_task(fetch(name, order))
        elif what == "route":
            for name, order in rest[0].items():
                nodes[name].gatherer.follow(1, order.route)
        elif what == "kill":
            fetching[rest[0]].cancel()
            await nodes[rest[0]].relay.stop()
        else:
            break
    for node in nodes.values():
        await node.close()


@dataclass
class Live:
    """What a live broadcast gave: seconds by worker, complaints, and whether all weights were right."""

    seconds: dict[str, float]
    complaints: list[tuple[str, str, str]]
    right: bool
    out_s: float


async def live(case: Case, megabytes: float, fault: str, folder: Path) -> tuple[Live, BroadcastPlan, str]:
    """Plan and carry out one broadcast; (result, plan, the relay at fault)."""
    from benchmarks.broadcast_node import learner

    async with learner(folder, megabytes, Shaper(case.learner_bps)) as (server, store, uplink):
        payload = store.payload(1)
        plan = planned(case, payload.bytes, len(payload.chunks))
        victim = _busiest(plan)
        run = _Broadcast(case, plan, fault, victim, server.url, folder, uplink)
        try:
            return await run.carried_out(store), plan, victim
        finally:
            run.close()


class _Broadcast:
    """The learner's side of one broadcast, in place of the scheduler and its driver."""

    def __init__(
        self, case: Case, plan: BroadcastPlan, fault: str, victim: str, url: str, folder: Path, uplink: Shaper
    ) -> None:
        self._plan, self._fault, self._victim, self._uplink = plan, fault, victim, uplink
        self._count, self._folder = len(case.names), folder
        self._pipes, self._processes = list[Connection](), list[Any]()
        self._where: dict[str, int] = {}
        self._urls: dict[str, str] = {}
        self._out: set[str] = set()
        self._against: dict[str, set[str]] = {}
        self._began_s = self._out_s = 0.0
        for k in range(min(PROCESSES, self._count)):
            mine = list(range(k, self._count, PROCESSES))
            here, there = mp.get_context("spawn").Pipe()
            process = mp.get_context("spawn").Process(
                target=host, args=(there, case, mine, url, str(folder), fault, victim), daemon=True
            )
            process.start()
            self._pipes.append(here)
            self._processes.append(process)
            self._where |= {case.names[i]: k for i in mine}

    async def carried_out(self, store: Any) -> Live:
        """From the order to fetch until the last (surviving) worker has all."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            _, urls = await loop.run_in_executor(None, pipe.recv)
            self._urls |= urls
        self._chunks = len(store.payload(1).chunks)
        names = list(self._plan.order)
        self._began_s = time.monotonic()
        self._uplink.restart()
        self._send("go", names)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        listening = [loop.run_in_executor(None, self._listen, pipe, loop, queue) for pipe in self._pipes]
        if self._fault == "kill":
            loop.call_later(self._plan.time_s / 2, self._kill)
        seconds, complaints, right = dict[str, float](), list[tuple[str, str, str]](), True
        expected = {name for name in names if self._fault != "kill" or name != self._victim}
        while not expected <= seconds.keys():
            kind, name, *rest = await asyncio.wait_for(queue.get(), 300)
            if kind == "live":
                seconds[name] = rest[0]
                right &= _digest(Path(rest[1])) == store.manifest(1).weights
            elif kind == "failed":
                complaints.append((name, rest[0], rest[1]))
                self._complained(name, rest[0])
            elif name in expected:
                raise RuntimeError(f"{name}: {rest[0]}")
        for pipe in self._pipes:
            pipe.send(("end",))
        await asyncio.gather(*listening)
        return Live(seconds, complaints, right, self._out_s)

    def close(self) -> None:
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()

    def _send(self, what: str, names: list[str], own: dict[str, set[str]] | None = None) -> None:
        """Orders with the routes that do without who is out, to each process for its workers."""
        course = course_of(1, -1, self._plan, self._chunks)
        for k, pipe in enumerate(self._pipes):
            mine = [name for name in names if self._where[name] == k]
            orders = {}
            for name in mine:
                away = self._out | (own or {}).get(name, set())
                route = route_along(course, name, away, self._urls.__getitem__)
                orders[name] = m.Fetch(version=1, route=route)
            if orders:
                pipe.send((what, orders))

    def _complained(self, name: str, relay: str) -> None:
        """One complaint: that worker gets another way; the second takes the relay out for all."""
        against = self._against.setdefault(relay, set())
        against.add(name)
        if len(against) >= COMPLAINERS and relay not in self._out:
            self._out.add(relay)
            self._out_s = time.monotonic() - self._began_s
            self._send("route", [n for n in self._plan.order if n != relay or self._fault != "kill"])
        elif relay not in self._out:
            self._send("route", [name], {name: {relay}})

    def _kill(self) -> None:
        self._pipes[self._where[self._victim]].send(("kill", self._victim))

    @staticmethod
    def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any]) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(queue.put_nowait, pipe.recv())
        except (EOFError, OSError):
            return


def _digest(path: Path) -> str:
    from echo2.runtime.transport.tensor_table import weights_digest

    return weights_digest(path / "model.safetensors")


def _busiest(plan: BroadcastPlan) -> str:
    load = plan.shares or [plan.parents.count(i) for i in range(len(plan.order))]
    return plan.order[int(np.argmax(load))]


def main() -> None:
    """Print one row for each count and fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--fault", nargs="+", default=["none"], choices=FAULTS)
    parser.add_argument("--megabytes", type=float, default=32.0)
    parser.add_argument(
        "--mbps", type=float, default=100.0, help="the learner's uplink; others in proportion"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="also every worker's seconds")
    parser.add_argument("--traces", nargs=2, default=list(TRACES), help="of most machines, of every fourth")
    options = parser.parse_args()
    print(
        f"{'N':>3} {'fault':8}{'topology':9}{'chunks':>7}{'bound s':>9}{'planned':>9}{'chunk sim':>10}"
        f"{'live s':>8}{'live/planned':>13}{'live/sim':>9}{'live/bound':>11}  complaints of"
    )
    for count in options.workers:
        for fault in options.fault:
            case = case_of(count, options.seed, tuple(options.traces), options.mbps)
            for _ in range(options.repeat):
                with tempfile.TemporaryDirectory(prefix="echo2-broadcast-") as folder:
                    got, plan, victim = asyncio.run(live(case, options.megabytes, fault, Path(folder)))
                assert got.right, "weights differ from the learner's"
                took = max(got.seconds.values())
                sim = simulated(case, plan, fault, victim, got.out_s)
                least = bound(case, plan.size_bytes, fault, victim)
                blamed = (
                    ", ".join(sorted({f"{relay} ({cause})" for _, relay, cause in got.complaints})) or "-"
                )
                print(
                    f"{count:>3} {fault:8}{plan.name:9}{plan.chunks:>7}{least:>9.2f}{plan.time_s:>9.2f}"
                    f"{sim:>10.2f}{took:>8.2f}{took / plan.time_s:>13.2f}{took / sim:>9.2f}"
                    f"{took / least:>11.2f}  {blamed}",
                    flush=True,
                )
                if options.each:
                    each = ", ".join(f"{name} {s:.2f}" for name, s in sorted(got.seconds.items()))
                    print(f"    out at {got.out_s:.2f} s; {each}", flush=True)


if __name__ == "__main__":
    main()
