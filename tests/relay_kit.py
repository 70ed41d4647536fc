"""What the tests of relays share: a learner's real server, and workers with real relays on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transport_kit import HELLO, KEY, RUN, TOKEN, Desk, model_dir, serving

from echo2.policy.broadcast import BroadcastPlan, sources_of
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.gather import Gatherer, GatherSettings
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.pace import PaceLimits
from echo2.runtime.transport.receive import Received, SnapshotReceiver
from echo2.runtime.transport.relay import Relay
from echo2.runtime.transport.server import Server
from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink, Shaper
from echo2.runtime.transport.shelf import Shelf
from echo2.runtime.transport.snapshot import SnapshotStore

QUICK = GatherSettings(
    streams=3, wait_s=1.0, grace_s=0.05, give_up_s=10.0, pace=PaceLimits(silent_s=1.0, window_s=0.5)
)


def rows(seed: int, megabytes: float) -> dict[str, torch.Tensor]:
    """Weights of about so many megabytes."""
    made = torch.Generator().manual_seed(seed)
    return {f"layer.{i}": torch.randn(max(1, int(megabytes * 64)), 1024, generator=made) for i in range(4)}


@dataclass
class Node:
    """A worker's side: client, shelf, relay, gatherer and receiver."""

    name: str
    client: Client
    relay: Relay
    gatherer: Gatherer
    receiver: SnapshotReceiver
    failed: list[m.SourceFailed] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)

    @property
    def source(self) -> m.Source:
        return m.Source(worker_id=self.name, url=f"http://127.0.0.1:{self.relay.port}")

    def note(self, taken: m.Taken) -> None:
        for name, count in taken.sources.items():
            self.taken[name] = self.taken.get(name, 0) + count


@dataclass
class World:
    """A learner with snapshots, and its workers by name."""

    store: SnapshotStore
    server: Server
    desk: Desk
    folder: Path
    stack: AsyncExitStack
    nodes: dict[str, Node] = field(default_factory=dict)

    async def node(
        self,
        name: str,
        settings: GatherSettings = QUICK,
        link: ShapedLink = UNSHAPED,
        caps: Sequence[Shaper] = (),
        relay: type[Relay] = Relay,
    ) -> Node:
        """A new worker that has said hello."""
        client = Client(self.server.url, TOKEN, give_up_s=10.0, link=link)
        self.stack.push_async_callback(client.close)
        await client.hello(HELLO.model_copy(update={"session": f"session-{name}"}))
        shelf = Shelf()
        made = relay(shelf, TOKEN, caps=tuple(caps))
        await made.start()
        self.stack.push_async_callback(made.stop)
        gatherer = Gatherer(client, TOKEN, link, settings)
        gatherer.worker_id = name
        receiver = SnapshotReceiver(client, self.folder / name, gatherer=gatherer, shelf=shelf)
        node = self.nodes[name] = Node(name, client, made, gatherer, receiver)
        gatherer.failed, gatherer.taken = node.failed.append, node.note
        return node

    def route(self, plan: BroadcastPlan, name: str, version: int, gone: frozenset[str] = frozenset(),
              expected_s: float = 0.0) -> m.Route:  # fmt: skip
        """The route of a plan, as the driver makes it."""
        count = len(self.store.payload(version).chunks)
        return route_of(sources_of(plan, name, count, gone), self.nodes, expected_s)

    def right(self, got: Received) -> bool:
        """Whether a received snapshot has the very weights the learner has."""
        from safetensors.torch import load_file

        mine = load_file(got.path / "model.safetensors")
        theirs = self.weights[got.manifest.version]
        return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)

    weights: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def put(self, version: int, weights: dict[str, torch.Tensor]) -> m.Manifest:
        """Publish."""
        self.weights[version] = weights
        return self.store.put(version, weights)


def route_of(names: Sequence[str], nodes: Mapping[str, Node], expected_s: float = 0.0) -> m.Route:
    """A route that takes each chunk from the worker, or the learner, of that name."""
    known = list(dict.fromkeys(names))
    sources = [m.Source(worker_id=n) if n == m.LEARNER else nodes[n].source for n in known]
    return m.Route(sources=sources, turns=[known.index(n) for n in names], expected_s=expected_s)


def chain(names: Sequence[str], size: int) -> BroadcastPlan:
    """learner -> a -> b -> c."""
    return _plan("chain", names, tuple(range(-1, len(names) - 1)), (), size)


def stripes(names: Sequence[str], size: int) -> BroadcastPlan:
    """Equal stripes."""
    return _plan("stripes", names, (), (1.0 / len(names),) * len(names), size)


def _plan(kind, names, parents, shares, size) -> BroadcastPlan:  # type: ignore[no-untyped-def]
    many = tuple(1.0 for _ in names)
    return BroadcastPlan(
        kind, tuple(names), parents, shares, 0.0, 1, 64, float(size), many, 1.0, 1.0, 0.0, 1.0, 1.0,
        "fluid", "",
    )  # fmt: skip


@asynccontextmanager
async def world(folder: Path, megabytes: float = 4.0, uplink: Shaper | None = None) -> AsyncIterator[World]:
    """A learner that has published version 1."""
    files = model_files_of(model_dir(folder / "model"))
    store = SnapshotStore(folder / "store", RUN, files, KEY, chunk_bytes=128 << 10)
    desk = Desk(store)
    async with AsyncExitStack() as stack, serving(desk, uplink=uplink) as server:
        made = World(store, server, desk, folder, stack)
        made.put(1, rows(1, megabytes))
        yield made
