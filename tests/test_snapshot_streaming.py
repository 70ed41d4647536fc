"""A delta that is sent while it is encoded, over real HTTP: what overlaps, what ends it, and who cannot harm.

The encoder is the real one, held up at a gate between two of its pieces.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from relay_kit import Node, World, chain, route_of, stripes, world
from transport_kit import KEY, RUN

from echo2.errors import UserError
from echo2.policy.broadcast import BroadcastPlan, sources_of
from echo2.runtime.delta import codec
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.chain import delta_chunks
from echo2.runtime.transport.draft import Draft
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.receive import Received
from echo2.runtime.transport.snapshot import SnapshotStore

MEGABYTES = 8.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def changed(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Every third value moved by a little."""
    made = torch.Generator().manual_seed(seed)
    return {n: t + 1e-3 * (torch.rand(t.shape, generator=made) < 0.3) for n, t in weights.items()}


class Gate:
    """Holds the encoder up once `pieces` have come; `open` lets it go on, or fail with `error`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
        self._open, self.error = threading.Event(), None
        real = codec.delta_pieces

        def held_up(*given: Any, **options: Any) -> Iterator[bytes]:
            options["slice_elements"] = 1 << 15
            for i, piece in enumerate(real(*given, **options)):
                if i == pieces:
                    assert self._open.wait(60)
                    if self.error is not None:
                        raise self.error
                yield piece

        monkeypatch.setattr(codec, "delta_pieces", held_up)

    error: BaseException | None

    def open(self, error: BaseException | None = None) -> None:
        self.error = error
        self._open.set()


@asynccontextmanager
async def encoding(
    here: World, version: int = 2, weights: dict[str, torch.Tensor] | None = None
) -> AsyncIterator[tuple[Draft, asyncio.Future[m.Manifest]]]:
    """A version that begins to be encoded: its draft, and what becomes of it."""
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[Draft] = loop.create_future()
    here.weights[version] = made = weights or changed(here.weights[1], version)
    tell = lambda draft: loop.call_soon_threadsafe(begun.set_result, draft)  # noqa: E731
    put = lambda: here.store.put(version, made, full=False, begun=tell)  # noqa: E731
    done = loop.run_in_executor(None, put)
    yield await asyncio.wait_for(begun, 30), done
    await asyncio.wait([done])
    done.exception()


def route_ahead(here: World, plan: BroadcastPlan, name: str, draft: Draft) -> m.Route:
    """The route of a plan for a delta of some 1 MB, as the driver makes it when the encoding begins."""
    names = sources_of(plan, name, delta_chunks(1e6, here.store.chunk_bytes))
    return route_of(names, here.nodes).model_copy(update={"draft": m.Draft(id=draft.id, bytes=1_000_000)})


async def started(here: World, names: str = "a") -> list[Node]:
    """Workers that hold version 1."""
    nodes = [await here.node(name) for name in names]
    for node in nodes:
        await node.receiver.fetch(1)
        node.taken.clear()
    return nodes


def from_learner(here: World, draft: Draft) -> m.Route:
    return route_ahead(here, chain(["a"], 1), "a", draft)


async def until(what: Any) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.01)


def on_disk(node: Node, here: World) -> list[str]:
    return sorted(path.name.rsplit("-", 1)[0] for path in (here.folder / node.name).iterdir())


def chunks_here(node: Node, version: int = 2) -> int:
    holdings = node.receiver.shelf.holdings(version)
    return 0 if holdings is None else int(holdings.have or "0", 16).bit_count()


@pytest.mark.parametrize("shape", [chain, stripes])
def test_chunks_leave_while_later_tensors_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Any
) -> None:
    """While the encoder is held up in the middle, every worker has chunks, relayed ones too, and shows
    nothing of it; in the end all have it, and each byte has left the learner once."""

    async def work() -> None:
        gate = Gate(monkeypatch, pieces=40)
        async with world(tmp_path, MEGABYTES) as here:
            nodes = await started(here, "abc")
            plan = shape(["a", "b", "c"], 1_000_000)
            async with encoding(here) as (draft, written):
                fetching = [
                    asyncio.create_task(n.receiver.fetch(2, 1, route_ahead(here, plan, n.name, draft)))
                    for n in nodes
                ]
                await until(lambda: all(chunks_here(node) >= 3 for node in nodes))
                assert here.store.versions == (1,) and not written.done()
                assert all(
                    on_disk(n, here) == ["unfinished-draft-00000002", "version-00000001"] for n in nodes
                )
                assert any(node.relay.sent_bytes for node in nodes)
                gate.open()
                got: list[Received] = await asyncio.gather(*fetching)
            assert all(here.right(received) and received.parent == 1 for received in got)
            delta = here.store.manifest(2).delta
            assert (
                delta is not None
                and sum(node.taken[m.LEARNER] for node in nodes if m.LEARNER in node.taken) == delta.size
            )
            assert all(received.bytes == delta.size for received in got)
            assert all(on_disk(node, here) == ["version-00000001", "version-00000002"] for node in nodes)
            assert not any(node.failed for node in nodes)

    run(work())


def test_a_relay_that_dies_while_the_delta_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child whose relay goes during the encoding reports it once and has the rest from the learner."""

    async def work() -> None:
        gate = Gate(monkeypatch, pieces=40)
        async with world(tmp_path, MEGABYTES) as here:
            a, b = await started(here, "ab")
            plan = chain(["a", "b"], 1_000_000)
            async with encoding(here) as (draft, _):
                first = asyncio.create_task(a.receiver.fetch(2, 1, route_ahead(here, plan, "a", draft)))
                second = asyncio.create_task(b.receiver.fetch(2, 1, route_ahead(here, plan, "b", draft)))
                await until(lambda: chunks_here(b) >= 3)
                await a.relay.stop()
                first.cancel()
                gate.open()
                received = await second
            assert here.right(received) and received.parent == 1
            assert [(f.source_id, f.cause) for f in b.failed] == [("a", "gone")]
            assert b.taken["a"] > 0 and b.taken[m.LEARNER] > 0

    run(work())


def test_an_encoder_that_dies_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the version is given up, its half is dropped with the cause, nothing is left of it on either disk,
    and the version that is made anew arrives."""

    async def work() -> None:
        gate = Gate(monkeypatch, pieces=40)
        async with world(tmp_path, MEGABYTES) as here:
            (node,) = await started(here)
            before = here.store.bytes_on_disk()
            async with encoding(here) as (draft, written):
                fetching = asyncio.create_task(node.receiver.fetch(2, 1, from_learner(here, draft)))
                await until(lambda: chunks_here(node) >= 3)
                gate.open(OSError(errno.ENOSPC, "No space left on device"))
                with pytest.raises(SnapshotError, match=r"given up|no longer served"):
                    await fetching
            assert isinstance(written.exception(), UserError)
            assert on_disk(node, here) == ["version-00000001"] and chunks_here(node) == 0
            assert here.store.bytes_on_disk() == before
            gate.error = None
            async with encoding(here) as (again, _):
                assert again.id != draft.id
                assert here.right(await node.receiver.fetch(2, 1, from_learner(here, again)))

    run(work())


def test_a_learner_that_starts_again_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart nobody knows the draft: the half of it is dropped by name, and a version of the same
    number with other weights is fetched from its first page on."""

    async def work() -> None:
        gate = Gate(monkeypatch, pieces=40)
        async with world(tmp_path, MEGABYTES) as here:
            (node,) = await started(here)
            old = here.store
            async with encoding(here) as (draft, _):
                fetching = asyncio.create_task(node.receiver.fetch(2, 1, from_learner(here, draft)))
                await until(lambda: chunks_here(node) >= 3)
                files = [here.folder / "model" / file.name for file in old.manifest(1).model_files]
                here.store = here.desk.store = SnapshotStore(here.folder / "life", RUN, files, KEY)
                here.store.put(1, here.weights[1])
                old.draft(2, draft.id).add(m.Chunk(digest="0" * 64, size=1))  # wakes who waits at the old one
                with pytest.raises(SnapshotError, match=r"not being encoded as|no longer served"):
                    await fetching
                assert on_disk(node, here) == ["version-00000001"] and chunks_here(node) == 0
                gate.open()
            async with encoding(here, weights=changed(here.weights[1], 99)) as (again, _):
                received = await node.receiver.fetch(2, 1, from_learner(here, again))
                assert here.right(received) and received.parent == 1

    run(work())


def test_a_version_that_is_superseded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that is cancelled during the encoding leaves nothing, and the next version is whole."""

    async def work() -> None:
        gate = Gate(monkeypatch, pieces=40)
        async with world(tmp_path, MEGABYTES) as here:
            (node,) = await started(here)
            async with encoding(here) as (draft, _):
                fetching = asyncio.create_task(node.receiver.fetch(2, 1, from_learner(here, draft)))
                await until(lambda: chunks_here(node) >= 3)
                fetching.cancel()
                await asyncio.wait([fetching])
                await until(lambda: on_disk(node, here) == ["version-00000001"])
                assert chunks_here(node) == 0
                gate.open()
            here.put(3, changed(here.weights[2], 3))
            assert here.right(await node.receiver.fetch(3, 1, route_of(["learner"], here.nodes)))

    run(work())


def test_a_delta_that_would_not_be_smaller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the learner turns to a full file half-way, half a delta is dropped and the file is taken."""

    async def work() -> None:
        async with world(tmp_path, MEGABYTES) as here:
            (node,) = await started(here)
            bits = {
                n: torch.randint(-(2**31), 2**31 - 1, t.shape).to(torch.int32)
                for n, t in here.weights[1].items()
            }
            here.put(2, bits)
            other = {n: torch.randint(-(2**31), 2**31 - 1, t.shape).to(torch.int32) for n, t in bits.items()}
            await node.receiver.fetch(2)
            async with encoding(here, 3, other) as (draft, _):
                received = await node.receiver.fetch(3, 2, from_learner(here, draft))
            assert here.store.manifest(3).delta is None
            assert here.right(received) and received.parent == -1
            assert on_disk(node, here)[-1] == "version-00000003"
            assert not any("unfinished" in name for name in on_disk(node, here))

    with caplog.at_level(logging.WARNING):
        run(work())
    assert any("is dropped" in record.message for record in caplog.records)


def test_orders_that_come_late_or_not_at_all_for_a_draft(tmp_path: Path) -> None:
    """A worker that asks for the pages once all is written gets them at once; for a draft that nobody knows
    any more, or a parent that it does not hold, it takes the version like any other."""

    async def work() -> None:
        async with world(tmp_path, MEGABYTES) as here:
            late, lost, empty = await started(here, "ab") + [await here.node("c")]
            async with encoding(here) as (draft, written):
                await written
            assert here.right(await late.receiver.fetch(2, 1, from_learner(here, draft)))
            unknown = from_learner(here, draft).model_copy(update={"draft": m.Draft(id="f" * 64, bytes=1)})
            assert here.right(await lost.receiver.fetch(2, 1, unknown))
            assert here.right(await empty.receiver.fetch(2, 1, from_learner(here, draft)))

    run(work())
