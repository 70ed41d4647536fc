"""When the driver orders workers to fetch: as soon as their delta begins to be encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from relay_kit import chain
from test_driver_world import World, within
from test_snapshot_streaming import Gate, changed
from transport_kit import KEY, RUN, model_dir

from echo2.policy import decisions as d
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.chain import delta_chunks
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.snapshot import SnapshotStore

SIZE = 1_000_000


class Publishing:
    """A world with a real store that holds version 1, whose version 2 is held up in the encoder."""

    def __init__(self, world: World, folder: Path, gate: Gate) -> None:
        files = model_files_of(model_dir(folder / "model"))
        self.world, self.gate = world, gate
        self.store = SnapshotStore(folder / "store", RUN, files, KEY)
        self.weights = {f"w{i}": torch.randn(512, 1024) for i in range(4)}
        self.store.put(1, self.weights)
        self.snapshots = world.live.snapshots
        self.snapshots._store = self.store
        world.start()
        world.greet("session-1")

    async def begin(self, parent: int) -> None:
        """Write version 2, and publish it to a holder of `parent`."""
        await self.snapshots.take(2, changed(self.weights, 2))
        plan = chain([self.world.name], SIZE)
        self.snapshots.publish(d.PublishSnapshot(0.0, 2, parent, plan, "test", 1.0))

    def fetches(self) -> list[m.Fetch]:
        return [n.order for n in self.world.seat.orders if isinstance(n.order, m.Fetch)]

    async def ended(self) -> None:
        """The encoder may go on, and everything has been written and ordered."""
        self.gate.open()
        await self.snapshots._writing[2].done
        for _ in range(10):
            await asyncio.sleep(0.01)


Story = Callable[[Publishing], Awaitable[None]]


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Story) -> None:
    async def work(world: World) -> None:
        await story(Publishing(world, tmp_path, Gate(monkeypatch, pieces=10)))

    within(tmp_path, lambda world: asyncio.wait_for(work(world), 60))


async def first_fetch(here: Publishing) -> m.Fetch:
    async with asyncio.timeout(30):
        while not here.fetches():
            await asyncio.sleep(0.01)
    return here.fetches()[0]


def test_orders_leave_when_the_encoding_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder of the parent is ordered to fetch while the encoder is held up, with the draft and a route for
    as many chunks as the plan's size has; and not again when the version is whole."""

    async def story(here: Publishing) -> None:
        await here.begin(parent=1)
        fetch = await first_fetch(here)
        assert here.store.versions == (1,)
        assert fetch.route is not None and fetch.route.draft is not None
        assert here.store.draft(2, fetch.route.draft.id).parent == fetch.parent == 1
        assert fetch.route.draft.bytes == SIZE
        assert here.store.draft(2, fetch.route.draft.id)._followers == 1
        assert here.snapshots._courses[here.world.name].chunks == delta_chunks(SIZE, here.store.chunk_bytes)
        await here.ended()
        assert here.store.versions == (1, 2) and here.fetches() == [fetch]

    told(tmp_path, monkeypatch, story)


def test_a_reroute_meanwhile_names_the_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ordered of a broadcast under way, before the version is whole, is of the same draft."""

    async def story(here: Publishing) -> None:
        await here.begin(parent=1)
        fetch = await first_fetch(here)
        here.snapshots.reroute(d.Reroute(0.0, 2, (here.world.name,), ("somebody",), "test", 1.0))
        again = here.fetches()[1]
        assert again.route is not None and fetch.route is not None
        assert again.route.draft == fetch.route.draft
        await here.ended()

    told(tmp_path, monkeypatch, story)


def test_another_payload_waits_for_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who needs more than the delta that is encoded is ordered to fetch when it is whole, without a draft."""

    async def story(here: Publishing) -> None:
        await here.begin(parent=-1)
        await asyncio.sleep(0.3)
        assert not here.fetches()
        await here.ended()
        (fetch,) = here.fetches()
        assert fetch.parent == -1 and fetch.route is not None and fetch.route.draft is None

    told(tmp_path, monkeypatch, story)


def test_a_delta_that_comes_to_nothing_is_ordered_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the version ends as a full file, the workers get a second order, for that."""

    async def story(here: Publishing) -> None:
        monkeypatch.setattr("echo2.runtime.transport.snapshot.delta_file", _nothing)
        await here.begin(parent=1)
        fetch = await first_fetch(here)
        await here.ended()
        again = here.fetches()[-1]
        assert (fetch.parent, again.parent) == (1, -1)
        assert again.route is not None and again.route.draft is None
        assert here.store.manifest(2).delta is None

    told(tmp_path, monkeypatch, story)


def _nothing(*_given: object) -> None:
    """A delta that would not be smaller."""
