"""The live world's handling of workers that come, go and die, told to the scheduler in the right order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver_kit import hello
from live_run import write_config

from echo2.config import load
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.planner import plan_run, settings_for
from echo2.runtime.driver import hub as h
from echo2.runtime.driver.records import Records
from echo2.runtime.driver.world import LiveWorld
from echo2.runtime.transport import messages as m
from echo2.scenario import build

USD_PER_GB, SNAPSHOT_BYTES = 0.09, 2e9


class Processes:
    """Notes what is started and killed; `gone` and `staying` are set by the test."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.leaving: set[str] = set()
        self.again: set[str] = set()

    def stays(self, name: str) -> bool:
        return ("start", name) in self.done and name not in self.leaving

    def returning(self, name: str) -> bool:
        return name in self.again

    def start(self, name: str, pool: Any, extra: list[str]) -> None:
        self.done.append(("start", name))
        if name in self.leaving:
            self.again.add(name)

    def leave(self, name: str) -> None:
        self.leaving.add(name)

    def kill(self, name: str) -> None:
        self.done.append(("kill", name))
        self.leave(name)


class Log:
    """A log in memory."""

    def __init__(self) -> None:
        self.facts: list[f.Fact] = []

    def write(self, fact: f.Fact, answers: list[d.Decision]) -> None:
        self.facts.append(fact)


class World:
    """A live world without learner, ledger and tasks, and what has reached it."""

    def __init__(self, folder: Path, local: bool) -> None:
        loaded = load(write_config(folder, local=local, relay=not local))
        built = build(loaded.config, loaded.base_dir)
        settings = settings_for(built.problem, plan_run(built.problem))
        prices = tuple(tuple(USD_PER_GB for _ in settings.links.sites) for _ in settings.links.sites)
        links = replace(settings.links, egress_usd_per_gb=prices)
        settings = replace(settings, links=links, snapshot_bytes=SNAPSHOT_BYTES)
        self.offers = offers = {offer.worker_id: offer for offer in built.problem.offers}
        self.name = next(iter(offers))
        self.log, self.processes, self.said = Log(), Processes(), list[str]()
        records = Records(folder / "metrics.jsonl", folder / "boards", offers, 1.0, None)
        nothing: Any = None
        self.live = LiveWorld(
            loaded.config, settings, offers, nothing, nothing, nothing, nothing, records,
            self.log, SimpleNamespace(task=None), (1,), nothing, self.said.append,
        )  # type: ignore[arg-type]  # fmt: skip
        self.hub = self.live.hub = h.Hub("run-1", [h.Seat(self.name, "w", local)], 30.0, self.live)
        self.live.workers.processes = self.processes  # type: ignore[assignment]
        self.seat = self.hub.seats[self.name]

    def orders(self) -> list[str]:
        """Kinds of the orders that wait for the worker."""
        return [order.order.kind for order in self.seat.orders]

    def told(self) -> list[str]:
        """What the scheduler was told of coming and going; a loss with its cause."""
        return [
            f"WorkerLeft: {fact.cause}" if isinstance(fact, f.WorkerLeft) else type(fact).__name__
            for fact in self.log.facts
        ]

    def start(self) -> None:
        self.live.workers.start(d.StartWorker(0.0, self.name, "test", 0.0))

    def stop(self) -> None:
        self.live.workers.stop(d.StopWorker(0.0, self.name, "test", 0.0))

    def greet(self, session: str) -> str:
        """A process says hello; its lease."""
        named = self.name if self.seat.local else None
        return self.hub.hello(hello(session, "w", named), "here").lease


def within(folder: Path, story: Callable[[World], Awaitable[None] | None], local: bool = True) -> None:
    async def run() -> None:
        world = World(folder, local)
        if (waiting := story(world)) is not None:
            await waiting
        if not world.live.leaving:
            world.live.queue = _Settled()  # type: ignore[assignment]
            await world.live.stop()

    asyncio.run(run())


class _Settled:
    async def settled(self) -> None:
        return


def test_a_process_that_dies_before_it_has_come_is_told_once(tmp_path: Path) -> None:
    """Between start and hello, a death is a loss with its cause; the seat is free for the next start."""

    def story(world: World) -> None:
        world.start()
        world.live.workers.exited(world.name, "its process ended with code 2")
        world.live.workers.exited(world.name, "told again")
        assert world.told() == ["WorkerLeft: its process ended with code 2"]
        assert world.seat.state == h.STANDBY and len(world.said) == 1

    within(tmp_path, story)


def test_a_start_sends_its_order_to_whoever_comes(tmp_path: Path) -> None:
    """The order to start waits for the hello, and a repeated hello doesn't send it twice."""

    def story(world: World) -> None:
        world.start()
        world.greet("session-1")
        world.greet("session-1")
        assert world.orders() == ["start"] and world.seat.state == h.STARTING

    within(tmp_path, story)


def test_what_is_fetched_is_paid_for_by_who_sent_it(tmp_path: Path) -> None:
    """A worker's bytes cost what its sources' sites charge, and only those that it says it has taken."""

    def story(world: World) -> None:
        charged = world.live.records.egress_usd
        world.start()
        lease = world.greet("session-1")
        assert charged[world.name] == 0.0, "it has fetched nothing yet"
        took = m.Taken(version=0, sources={"learner": 2_000_000_000, "a-stranger": 1_000_000_000})
        world.hub.reports(lease, m.Reports(incarnation=1, reports=(took,)))
        assert charged[world.name] == pytest.approx(0.27)
        assert world.live.records.usd(world.live.now())["egress"] == pytest.approx(0.27)

    within(tmp_path, story)


def test_a_fetch_goes_to_the_holder_that_was_decided(tmp_path: Path) -> None:
    """A fetch from a peer names its relay; one from the learner, or from a peer without a relay, no route."""

    async def story(world: World) -> None:
        world.live.snapshots._store = SimpleNamespace(payload=lambda *_: SimpleNamespace(chunks=[1, 2]))  # type: ignore[assignment]
        peer = world.hub.seats["peer"] = h.Seat("peer", "w", True)
        world.start()
        world.greet("session-1")
        for source, url, wanted in (
            ("learner", "", None), ("peer", "", None), ("peer", "http://h:1", "http://h:1"),
        ):  # fmt: skip
            peer.relay_url = url
            fetch = d.FetchSnapshot(0.0, 1, 0, world.name, source, SNAPSHOT_BYTES, "test", 0.0)
            world.live.snapshots.fetch(fetch)
            await asyncio.sleep(0)
            order = world.seat.orders[-1].order
            assert isinstance(order, m.Fetch) and (order.version, order.parent) == (1, 0)
            assert (order.route and order.route.sources[0].url) == wanted

    within(tmp_path, story)


def test_a_relay_that_nobody_reaches_makes_a_leaf(tmp_path: Path) -> None:
    """A remote worker is offered as a relay only if something listens at the address it gives."""

    async def story(world: World) -> None:
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        offers = []
        for session, address in (("session-1", port), ("session-2", 1), ("session-3", None)):
            url = None if address is None else f"http://127.0.0.1:{address}"
            greeting = hello(session, "w").model_copy(update={"relay_url": url})
            lease = world.hub.hello(greeting, "here").lease
            while len(world.log.facts) == len(offers) * 2:
                await asyncio.sleep(0.01)
            fact = world.log.facts[-1]
            assert isinstance(fact, f.WorkerOffered)
            offers.append(fact.offer.can_relay)
            world.hub.leave(lease, m.Leave(cause="test"))
        server.close()
        assert offers == [True, False, False]

    within(tmp_path, story, local=False)


def test_a_start_during_the_leave_is_not_lost(tmp_path: Path) -> None:
    """Started again while its old process leaves, a worker waits for that end, which is no loss."""

    def story(world: World) -> None:
        world.start()
        lease = world.greet("session-1")
        world.stop()
        world.hub.reports(lease, m.Reports(incarnation=1, reports=(m.Down(cause="stopped"),)))
        assert world.told() == ["WorkerLeft: stopped"] and world.orders() == ["start", "stop", "exit"]
        world.start()
        assert world.orders() == ["start", "stop", "exit"], "nothing is ordered from one that leaves"
        world.hub.leave(lease, m.Leave(cause="test"))
        world.live.workers.exited(world.name, "its process ended with code 0")
        assert world.told() == ["WorkerLeft: stopped"] and world.seat.state == h.STARTING
        world.processes.again.clear()
        world.greet("session-2")
        assert world.orders() == ["start"] and world.seat.incarnation == 2

    within(tmp_path, story)


def test_a_stop_before_the_hello_ends_the_process(tmp_path: Path) -> None:
    """A worker stopped before it has come is gone at once, and its process with it."""

    def story(world: World) -> None:
        world.start()
        world.stop()
        assert world.processes.done == [("start", world.name), ("kill", world.name)]
        assert world.told() == ["WorkerLeft: stopped"]

    within(tmp_path, story)


def test_a_remote_worker_that_goes_may_come_back(tmp_path: Path) -> None:
    """A remote process that goes withdraws its offer with the cause, and is no failed start."""

    def story(world: World) -> None:
        lease = world.greet("session-1")
        world.start()
        world.hub.leave(lease, m.Leave(cause="signal SIGINT"))
        world.greet("session-2")
        assert world.told() == ["WorkerOffered", "OfferWithdrawn", "WorkerLeft: preempted", "WorkerOffered"]
        assert world.said == [f"worker {world.name} is lost: signal SIGINT"]

    within(tmp_path, story, local=False)


def test_nothing_is_begun_while_the_run_is_left(tmp_path: Path) -> None:
    """After the stop, what workers still say neither reaches the scheduler nor starts anything."""

    async def story(world: World) -> None:
        world.start()
        world.greet("session-1")
        world.live.queue = _Settled()  # type: ignore[assignment]
        await world.live.stop()
        world.live.workers.exited(world.name, "its process ended with code 0")
        world.live.tell(f.WorkerOffered(world.live.now(), world.offers[world.name]))
        assert world.told() == [] and world.said == []

    within(tmp_path, story)


def test_times_of_facts_never_go_back(tmp_path: Path) -> None:
    """Facts that arise while others are carried out keep their order and their time."""

    def story(world: World) -> None:
        for life in range(20):
            world.start()
            world.greet(f"session-{life}")
            world.hub.release(world.seat, "test")
        times = [fact.t_s for fact in world.log.facts]
        assert times == sorted(times) and len(times) == 20

    within(tmp_path, story)
