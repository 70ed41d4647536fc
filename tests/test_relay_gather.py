"""Snapshots through peers: what arrives is the learner's, whatever the peers do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from relay_kit import QUICK, Node, World, chain, route_of, stripes, world

from echo2.policy.broadcast import striped, with_chunks
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.receive import Received
from echo2.runtime.transport.relay import Relay
from echo2.runtime.transport.shaping import Shaper


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def all_fetch(here: World, plan: Any, version: int = 1, **options: Any) -> dict[str, Received]:
    names = [name for name in plan.order if name in here.nodes]
    got = await asyncio.gather(
        *(here.nodes[n].receiver.fetch(version, -1, here.route(plan, n, version, **options)) for n in names)
    )
    return dict(zip(names, got))


@pytest.mark.parametrize("shape", [chain, stripes])
def test_everything_along_the_plan(tmp_path: Path, shape: Any) -> None:
    """Along a chain or stripes all weights are the learner's bit for bit, and each byte leaves it once."""

    async def work() -> None:
        async with world(tmp_path) as here:
            nodes = [await here.node(name) for name in ("a", "b", "c", "d")]
            plan = shape([n.name for n in nodes], here.store.payload(1).bytes)
            got = await all_fetch(here, plan)
            assert all(here.right(received) for received in got.values())
            assert not any(node.failed for node in nodes)
            size = here.store.payload(1).bytes
            small = sum(f.size for f in here.store.manifest(1).model_files)
            from_learner = sum(node.taken[m.LEARNER] for node in nodes if m.LEARNER in node.taken)
            assert from_learner == size + len(nodes) * small
            assert sum(sum(node.taken.values()) for node in nodes) == len(nodes) * (size + small)

    run(work())


def test_a_relay_killed_in_mid_transfer(tmp_path: Path) -> None:
    """When a relay dies in the middle, its children report it once as gone and finish without it."""

    async def work() -> None:
        async with world(tmp_path) as here:
            nodes = [await here.node(n, caps=[Shaper(40e6)]) for n in ("a", "b", "c")]
            plan = stripes(["a", "b", "c"], here.store.payload(1).bytes)
            fetching = asyncio.create_task(all_fetch(here, plan))
            while nodes[0].relay.sent_bytes < 500_000:
                await asyncio.sleep(0.01)
            await nodes[0].relay.stop()
            got = await fetching
            assert here.right(got["b"]) and here.right(got["c"])
            for node in nodes[1:]:
                assert [(r.source_id, r.cause) for r in node.failed] == [("a", "gone")]
                assert node.taken["a"] > 0  # what had come was kept

    run(work())


class Corrupting(Relay):
    """Sends other bytes than the digest's."""

    async def _unshaped(self, writer: Any, file: Any, offset: int, left: int) -> None:
        data = bytearray(open(file.fileno(), "rb", closefd=False).read(left))  # noqa: SIM115
        data[len(data) // 2] ^= 1
        writer.write(bytes(data))
        await writer.drain()
        self._moved(left)


class Stalling(Relay):
    """Sends a part of a chunk and then nothing more."""

    async def _unshaped(self, writer: Any, file: Any, offset: int, left: int) -> None:
        writer.write(b"\0" * (left // 2))
        await writer.drain()
        await asyncio.sleep(3600)


@pytest.mark.parametrize(("kind", "cause"), [(Corrupting, "wrong-bytes"), (Stalling, "slow")])
def test_a_relay_that_does_harm(tmp_path: Path, kind: type[Relay], cause: str) -> None:
    """A relay that corrupts or stalls is reported once, nothing of it is kept, and all weights are right."""

    async def work() -> None:
        async with world(tmp_path) as here:
            await here.node("bad", relay=kind)
            nodes = [await here.node(name) for name in ("b", "c")]
            plan = stripes(["bad", "b", "c"], here.store.payload(1).bytes)
            got = await all_fetch(here, plan)
            assert all(here.right(received) for received in got.values())
            for node in nodes:
                assert [(r.source_id, r.cause) for r in node.failed] == [("bad", cause)]

    run(work())


def test_a_relay_that_lies_about_its_rate(tmp_path: Path) -> None:
    """A relay far below the plan's rate is reported as slow, and its children do not wait for it."""

    async def work() -> None:
        async with world(tmp_path) as here:
            await here.node("slow", caps=[Shaper(2e6)])
            nodes = [await here.node(name) for name in ("b", "c")]
            plan = stripes(["slow", "b", "c"], here.store.payload(1).bytes)
            began = asyncio.get_running_loop().time()
            got = await all_fetch(here, plan, expected_s=1.0)
            assert all(here.right(received) for received in got.values())
            for node in nodes:
                assert [(r.source_id, r.cause) for r in node.failed] == [("slow", "slow")]
            # its third of 4 MB for two children would take 11 s at 2 Mbit/s
            assert asyncio.get_running_loop().time() - began < 8

    run(work())


def test_a_new_route_takes_effect_at_once(tmp_path: Path) -> None:
    """A route given while a relay hangs moves what is missing, before the relay counts as slow."""

    async def work() -> None:
        async with world(tmp_path) as here:
            await here.node("hangs", relay=Stalling)
            whole, child = await here.node("whole"), await here.node("child")
            await whole.receiver.fetch(1)
            count = len(here.store.payload(1).chunks)
            await here.nodes["hangs"].receiver.fetch(1)
            slow = route_of(["hangs"] * count, here.nodes)
            fetching = asyncio.create_task(child.receiver.fetch(1, -1, slow))
            while not here.nodes["hangs"].relay.connections_open:
                await asyncio.sleep(0.01)
            child.gatherer.follow(1, route_of(["whole"] * count, here.nodes))
            assert here.right(await fetching)
            assert child.taken["whole"] > 0

    run(work())


def test_what_is_left_of_a_chain_comes_from_all_that_are_there(tmp_path: Path) -> None:
    """The first of a chain dies in the middle; with the routes of stripes all others finish, each of them
    with chunks from the learner and from peers that stood behind it in the chain, and nothing comes twice."""

    async def work() -> None:
        async with world(tmp_path) as here:
            names = ("a", "b", "c", "d")
            nodes = {n: await here.node(n, caps=[Shaper(20e6)]) for n in names}
            plan = chain(names, here.store.payload(1).bytes)
            fetching = asyncio.create_task(all_fetch(here, plan))
            while nodes["a"].relay.sent_bytes < 500_000:
                await asyncio.sleep(0.01)
            await nodes["a"].relay.stop()
            while not nodes["b"].failed:
                await asyncio.sleep(0.01)
            after = striped(with_chunks(plan, len(here.store.payload(1).chunks)), (0.0, 0.4, 0.3, 0.3))
            for name in names[1:]:
                nodes[name].gatherer.follow(1, here.route(after, name, 1, frozenset({"a"})))
            got = await fetching
            assert all(here.right(received) for received in got.values())
            payload = here.store.payload(1).bytes
            for name, behind in (("b", {"c", "d"}), ("c", {"d"}), ("d", {"b"})):
                took = nodes[name].taken
                assert took[m.LEARNER] > 0 and behind & took.keys()
                assert sum(took.values()) < 1.1 * payload
            assert [(r.source_id, r.cause) for r in nodes["b"].failed] == [("a", "gone")]

    run(work())


def test_a_slow_source_that_is_rerouted_is_left_at_once(tmp_path: Path) -> None:
    """A new route without a source ends what that source is in the middle of, and keeps its bytes."""

    async def work() -> None:
        async with world(tmp_path) as here:
            slow, whole = await here.node("slow", caps=[Shaper(1e6)]), await here.node("whole")
            child = await here.node("child")
            await slow.receiver.fetch(1)
            await whole.receiver.fetch(1)
            count = len(here.store.payload(1).chunks)
            fetching = asyncio.create_task(
                child.receiver.fetch(1, -1, route_of(["slow"] * count, here.nodes))
            )
            while slow.relay.sent_bytes < 200_000:
                await asyncio.sleep(0.01)
            child.gatherer.follow(1, route_of(["whole"] * count, here.nodes))
            assert here.right(await asyncio.wait_for(fetching, 5))
            assert 0 < child.taken["slow"] < 3 * (128 << 10)
            assert child.taken["slow"] + child.taken["whole"] == here.store.payload(1).bytes

    run(work())


def test_pull_from_whoever_has_it(tmp_path: Path) -> None:
    """Without turns, chunks come from all holders that have them, and from the learner what none has."""

    async def work() -> None:
        async with world(tmp_path) as here:
            one, two = await here.node("one"), await here.node("two")
            child = await here.node("child")
            await one.receiver.fetch(1)
            await two.receiver.fetch(1)
            holders = m.Route(sources=[one.source, two.source], turns=[])
            assert here.right(await child.receiver.fetch(1, -1, holders))
            size = here.store.payload(1).bytes
            assert child.taken["one"] + child.taken["two"] >= 0.9 * size
            assert min(child.taken["one"], child.taken["two"]) > 0.2 * size

    run(work())


def test_a_cancelled_fetch_is_resumed(tmp_path: Path) -> None:
    """What has come before a fetch is cancelled is not fetched again."""

    async def work() -> None:
        async with world(tmp_path) as here:
            parent, child = await here.node("p", caps=[Shaper(30e6)]), await here.node("c")
            await parent.receiver.fetch(1)
            route = route_of(["p"] * len(here.store.payload(1).chunks), here.nodes)
            fetching = asyncio.create_task(child.receiver.fetch(1, -1, route))
            while parent.relay.sent_bytes < 1_000_000:
                await asyncio.sleep(0.01)
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            first = child.taken["p"]
            got = await child.receiver.fetch(1, -1, route)
            assert here.right(got) and got.bytes < here.store.payload(1).bytes - first + 4 * (128 << 10)

    run(work())


def test_a_dead_learner_does_not_stop_what_peers_have(tmp_path: Path) -> None:
    """A relay that waits forever for its own source does not make its children blame it as gone."""

    async def work() -> None:
        async with world(tmp_path) as here:
            parent, child = await here.node("p"), await here.node("c")
            count = len(here.store.payload(1).chunks)
            fetching = asyncio.create_task(child.receiver.fetch(1, -1, route_of(["p"] * count, here.nodes)))
            await asyncio.sleep(2.5)  # longer than it may be silent
            assert not child.failed and not fetching.done()
            await parent.receiver.fetch(1)
            assert here.right(await fetching) and child.taken["p"] == here.store.payload(1).bytes

    run(work())


__all__ = ["QUICK", "Node"]
