"""Learner and workers of the broadcast benchmarks: the real parts of the transport, without engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport_kit import HELLO, KEY, RUN, TOKEN, Desk, model_dir

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.gather import Gatherer, GatherSettings
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.receive import SnapshotReceiver
from echo2.runtime.transport.relay import Relay
from echo2.runtime.transport.server import Server, make_app
from echo2.runtime.transport.shaping import ShapedLink, Shaper
from echo2.runtime.transport.shelf import Shelf
from echo2.runtime.transport.snapshot import SnapshotStore


class Corrupting(Relay):
    """Turns a bit of every chunk."""

    async def _moved_piece(self, piece: bytes) -> bytes:
        return bytes([piece[0] ^ 1]) + piece[1:]


class Stalling(Relay):
    """Sends the first piece of a chunk and then nothing more."""

    async def _moved_piece(self, piece: bytes) -> bytes:
        if self.sent_bytes:
            await asyncio.sleep(3600)
        return piece


BY_FAULT = {"none": Relay, "kill": Relay, "lie": Relay, "corrupt": Corrupting, "stall": Stalling}


@dataclass
class Node:
    """A worker's side of the transport."""

    url: str
    client: Client
    relay: Relay
    gatherer: Gatherer
    receiver: SnapshotReceiver
    link: ShapedLink

    @classmethod
    async def made(
        cls,
        name: str,
        url: str,
        folder: Path,
        link: ShapedLink,
        kind: type[Relay],
        failed: Callable[[m.SourceFailed], None],
        settings: GatherSettings | None = None,
    ) -> Node:
        """A worker that has said hello."""
        client = Client(url, TOKEN, give_up_s=60.0, link=link)
        await client.hello(HELLO.model_copy(update={"session": f"session-{name}"}))
        shelf = Shelf()
        relay = kind(shelf, TOKEN, caps=(link.up,) if link.up is not None else ())
        await relay.start()
        gatherer = Gatherer(client, TOKEN, link, settings, failed=failed)
        gatherer.worker_id = name
        receiver = SnapshotReceiver(client, folder, gatherer=gatherer, shelf=shelf)
        return cls(f"http://127.0.0.1:{relay.port}", client, relay, gatherer, receiver, link)

    async def close(self) -> None:
        """End the relay and the connections."""
        await self.relay.stop()
        await self.client.close()


@asynccontextmanager
async def learner(
    folder: Path, megabytes: float, uplink: Shaper | None, chunk_bytes: int = 8 << 20
) -> AsyncIterator[tuple[Server, SnapshotStore, Any]]:
    """A learner that has published version 1: random weights of so many megabytes (1e6 bytes)."""
    import torch

    rows = max(1, round(megabytes * 1e6 / 4 / 1024 / 8))
    made = torch.Generator().manual_seed(0)
    weights = {f"layer.{i}": torch.randn(rows, 1024, generator=made) for i in range(8)}
    store = SnapshotStore(
        folder / "store", RUN, model_files_of(model_dir(folder / "model")), KEY, chunk_bytes=chunk_bytes
    )
    store.put(1, weights)
    server = Server(make_app(Desk(store), TOKEN, uplink=uplink))
    await server.start()
    try:
        yield server, store, uplink
    finally:
        await server.stop()
