"""A broadcast as planned, as simulated chunk by chunk, and live over shaped links on loopback.

    python benchmarks/live_broadcast.py [--workers 8 16] [--fault none kill corrupt stall lie]
        [--topology best chain tree k-ary stripes]

One learner and its workers in a few processes, without engines: real servers, relays, gatherers and
receivers, with every machine's link shaped by the replay of a recorded trace. The planner is given the rates
that hold when the broadcast begins, the simulator the very traces. Live is from the order to fetch until the
last worker has every chunk; verifying and swapping come after it and are not part of the plan either.

With a fault, the relay that feeds most workers (and still has to) is killed after half the planned time, or
from the start corrupts chunks, stalls in them, or sends at a tenth of what it offers. Workers complain, and
`policy.relays` answers with the reroutes that the driver of a run would carry out; the simulator gets the
same ones at the same times. The bound is then the least time for the survivors (kill), or with that relay's
uplink as it really is; `best` is when all could have it at best from the first reroute on, with what each
has by then.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from benchmarks.live_case import (
    FAULTS,
    LIE,
    RTT_S,
    TRACES,
    Case,
    Simulated,
    bound,
    busiest,
    case_of,
    planned,
    policy_of,
)
from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.decisions import Decision, Reroute
from echo2.policy.facts import RelayFailed
from echo2.runtime.driver.routes import course_of, route_along
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.shaping import ShapedLink, Shaper
from echo2.runtime.transport.tensor_table import weights_digest

PROCESSES = 4
TOPOLOGIES = ("best", "chain", "tree", "k-ary", "stripes")


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
        down, up = Shaper(case.down_bps[i], shape), Shaper(case.up_bps[i] * scale, shape)
        link, kind = ShapedLink(down, up, RTT_S), BY_FAULT[bad]
        nodes[name] = await Node.made(name, url, folder / name, link, kind, partial(_failed, pipe, name))
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
                for shaper in filter(None, (nodes[name].link.down, nodes[name].link.up)):
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


def _failed(pipe: Connection, name: str, report: m.SourceFailed) -> None:
    pipe.send(("failed", name, report.source_id, report.cause))


@dataclass
class Live:
    """What a live broadcast gave: seconds by worker, complaints and reroutes, and whether all weights were
    right."""

    seconds: dict[str, float]
    complaints: list[tuple[float, str, str, str]]
    reroutes: list[Reroute]
    right: bool


async def live(
    case: Case, megabytes: float, fault: str, folder: Path, topology: str, chunk_bytes: int
) -> tuple[Live, BroadcastPlan, str]:
    """Plan and carry out one broadcast; (result, plan, the relay at fault)."""
    from benchmarks.broadcast_node import learner

    up = Shaper(case.learner_bps)
    async with learner(folder, megabytes, up, chunk_bytes) as (server, store, uplink):
        payload = store.payload(1)
        plan = planned(case, payload.bytes, len(payload.chunks), "" if topology == "best" else topology)
        victim = busiest(plan, plan.time_s / 2 if fault == "kill" else 0.0)
        run = _Broadcast(case, plan, fault, victim, server.url, folder, uplink)
        try:
            return await run.carried_out(store), plan, victim
        finally:
            run.close()


class _Broadcast:
    """The learner's side of one broadcast: the policy's reroutes, carried out as the driver of a run does."""

    def __init__(
        self, case: Case, plan: BroadcastPlan, fault: str, victim: str, url: str, folder: Path, uplink: Shaper
    ) -> None:
        self._plan, self._fault, self._victim, self._uplink = plan, fault, victim, uplink
        self._pipes, self._processes = list[Connection](), list[Any]()
        self._where: dict[str, int] = {}
        self._urls: dict[str, str] = {}
        self._relays = policy_of(case, plan)
        self._complaints = list[tuple[float, str, str, str]]()
        self._reroutes = list[Reroute]()
        self._began_s = 0.0
        for k in range(min(PROCESSES, len(case.names))):
            mine = list(range(k, len(case.names), PROCESSES))
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
        self._course = course_of(1, -1, self._plan, len(store.payload(1).chunks))
        self._began_s = time.monotonic()
        self._uplink.restart()
        self._send("go", self._plan.order)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        listening = [loop.run_in_executor(None, self._listen, pipe, loop, queue) for pipe in self._pipes]
        if self._fault == "kill":
            loop.call_later(self._plan.time_s / 2, self._kill)
        seconds, right = dict[str, float](), True
        expected = {name for name in self._plan.order if self._fault != "kill" or name != self._victim}
        while not expected <= seconds.keys():
            kind, name, *rest = await asyncio.wait_for(queue.get(), 300)
            if kind == "live":
                seconds[name] = rest[0]
                self._relays.done(name)
                right &= weights_digest(Path(rest[1]) / "model.safetensors") == store.manifest(1).weights
            elif kind == "failed":
                self._complained(name, rest[0], rest[1])
            elif name in expected:
                raise RuntimeError(f"{name}: {rest[0]}")
        for pipe in self._pipes:
            pipe.send(("end",))
        await asyncio.gather(*listening)
        return Live(seconds, self._complaints, self._reroutes, right)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()

    def _send(self, what: str, names: Sequence[str], reroute: Reroute | None = None) -> None:
        """Orders with routes, to each process for its workers."""
        for k, pipe in enumerate(self._pipes):
            orders = {}
            for name in (name for name in names if self._where[name] == k):
                route = route_along(self._course, name, reroute, self._urls.__getitem__)
                orders[name] = m.Fetch(version=1, route=route)
            if orders:
                pipe.send((what, orders))

    def _complained(self, name: str, relay: str, cause: str) -> None:
        now = time.monotonic() - self._began_s
        self._complaints.append((now, name, relay, cause))
        out: list[Decision] = []
        self._relays.complaint(RelayFailed(now, name, 1, relay, cause), out)
        for decision in out:
            if isinstance(decision, Reroute):
                self._reroutes.append(decision)
                self._send("route", decision.worker_ids, decision)

    def _kill(self) -> None:
        self._pipes[self._where[self._victim]].send(("kill", self._victim))

    @staticmethod
    def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any]) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(queue.put_nowait, pipe.recv())
        except (EOFError, OSError):
            return


def main() -> None:
    """Print one row for each count, topology and fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--topology", nargs="+", default=["best"], choices=TOPOLOGIES)
    parser.add_argument("--fault", nargs="+", default=["none"], choices=FAULTS)
    parser.add_argument("--megabytes", type=float, default=32.0)
    parser.add_argument(
        "--mbps", type=float, default=100.0, help="the learner's uplink; others in proportion"
    )
    parser.add_argument("--chunk-kib", type=int, default=8192, help="the largest chunk; a 64th if less")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="also every worker's seconds")
    parser.add_argument("--traces", nargs=2, default=list(TRACES), help="of most machines, of every fourth")
    options = parser.parse_args()
    print(
        f"{'N':>3} {'fault':8}{'topology':9}{'chunks':>7}{'bound s':>9}{'planned':>9}{'chunk sim':>10}"
        f"{'live s':>8}{'live/planned':>13}{'live/sim':>9}{'live/bound':>11}{'noticed s':>10}"
        f"{'live/best':>10}  complaints of"
    )
    for count in options.workers:
        case = case_of(count, options.seed, tuple(options.traces), options.mbps)
        for topology in options.topology:
            for fault in options.fault:
                for _ in range(options.repeat):
                    _row(case, options, fault, topology)


def _row(case: Case, options: argparse.Namespace, fault: str, topology: str) -> None:
    size, chunk_bytes = options.megabytes, options.chunk_kib << 10
    with tempfile.TemporaryDirectory(prefix="echo2-broadcast-") as folder:
        got, plan, victim = asyncio.run(live(case, size, fault, Path(folder), topology, chunk_bytes))
    if not got.right:
        raise SystemExit("weights differ from the learner's")
    took = max(got.seconds.values())
    again = Simulated(case, plan, fault, victim)
    sim = again.seconds(plan.time_s / 2, got.reroutes)
    least = bound(case, plan.size_bytes, fault, victim)
    blamed = ", ".join(sorted({f"{relay} ({cause})" for _, _, relay, cause in got.complaints})) or "-"
    noticed = f"{got.reroutes[0].t_s:.2f}" if got.reroutes else "-"
    best = f"{took / again.best_s:.2f}" if again.best_s else "-"
    print(
        f"{len(case.names):>3} {fault:8}{plan.name:9}{plan.chunks:>7}{least:>9.2f}{plan.time_s:>9.2f}"
        f"{sim:>10.2f}{took:>8.2f}{took / plan.time_s:>13.2f}{took / sim:>9.2f}"
        f"{took / least:>11.2f}{noticed:>10}{best:>10}  {blamed}",
        flush=True,
    )
    if options.each:
        told = "; ".join(f"{at:.2f} {who} of {relay}" for at, who, relay, _ in got.complaints)
        seconds = ", ".join(f"{name} {s:.2f}" for name, s in sorted(got.seconds.items()))
        print(f"    complaints: {told or '-'}; {seconds}", flush=True)


if __name__ == "__main__":
    main()
