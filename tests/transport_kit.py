"""A small coordinator, a real server on loopback and a relay that cuts connections, for transport tests."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.coordinator import Refusal, UnknownLease
from echo2.runtime.transport.limits import DEFAULT_LIMITS, Limits
from echo2.runtime.transport.pages import Pages
from echo2.runtime.transport.server import Server, make_app
from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink, Shaper
from echo2.runtime.transport.signing import RunKey
from echo2.runtime.transport.snapshot import SnapshotStore

TOKEN = "a-token-for-tests-only"
RUN = "run-1"
KEY = RunKey(bytes(range(32)))
"""Of all stores that tests make."""


class Desk:
    """A coordinator that notes what it is told; `tampered` replaces chunks, `asked` lists them."""

    def __init__(self, store: SnapshotStore | None = None) -> None:
        self.store = store
        self.leases: dict[str, str] = {}
        self.heard: list[m.Message] = []
        self.orders: list[m.Numbered] = []
        self.tampered: dict[str, Path] = {}
        self.asked: list[str] = []
        self.crash = False
        self.run_key = KEY.public

    def hello(self, hello: m.Hello, address: str) -> m.Welcome:
        lease = next((k for k, v in self.leases.items() if v == hello.session), secrets.token_hex(16))
        self.leases[lease] = hello.session
        return m.Welcome(run_id=RUN, worker_id="w-0", lease=lease, lease_s=30.0, run_key=self.run_key)

    async def work(self, lease: str, request: m.WorkRequest) -> m.WorkReply:
        self.check_lease(lease)
        if not self.orders:
            await asyncio.sleep(request.wait_s)
        return m.WorkReply(orders=tuple(o for o in self.orders if o.number > request.acked))

    async def rollouts(self, lease: str, upload: m.Upload) -> m.UploadReply:
        self.check_lease(lease)
        if self.crash:
            raise ZeroDivisionError("a secret detail")
        self.heard.append(upload)
        return m.UploadReply(
            verdicts=tuple(
                m.Verdict(group_id=r.group_id, index=r.index, outcome="accepted") for r in upload.rollouts
            )
        )

    def reports(self, lease: str, reports: m.Reports) -> None:
        self.heard.append(reports)

    def leave(self, lease: str, leave: m.Leave) -> None:
        self.check_lease(lease)
        del self.leases[lease]

    def check_lease(self, lease: str) -> str:
        if lease not in self.leases:
            raise UnknownLease
        return "w-0"

    def manifest(self, version: int) -> m.SignedManifest:
        if self.store is None:
            raise Refusal(404, "no-snapshot", "none yet")
        return self.store.signed(version)

    async def pages(self, version: int, draft: str, number: int, wait_s: float) -> Pages:
        assert self.store is not None
        return await self.store.draft(version, draft).pages(number, wait_s)

    def chunk(self, digest: str) -> Path:
        self.asked.append(digest)
        if digest in self.tampered:
            return self.tampered[digest]
        assert self.store is not None
        return self.store.chunk(digest)

    def metrics(self) -> str:
        return "echo2_version 3\n"

    def health(self) -> dict[str, object]:
        return {"version": 3}


@asynccontextmanager
async def serving(
    desk: Desk, limits: Limits = DEFAULT_LIMITS, uplink: Shaper | None = None, **options: Any
) -> AsyncIterator[Server]:
    """A started server for the length of the context."""
    server = Server(make_app(desk, TOKEN, limits, uplink), limits=limits, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def joined(
    url: str, ca: Path | None = None, give_up_s: float = 10.0, link: ShapedLink = UNSHAPED
) -> AsyncIterator[Client]:
    """A client that has said hello."""
    client = Client(url, TOKEN, ca, give_up_s, link)
    try:
        await client.hello(HELLO)
        yield client
    finally:
        await client.close()


HELLO = m.Hello(protocol=m.PROTOCOL, session="session-0", pool="home", engine="simulated")


def wire(tokens: int = 3, **changes: Any) -> dict[str, Any]:
    """A rollout as JSON values."""
    rollout: dict[str, Any] = {
        "group_id": 1,
        "index": 0,
        "token_ids": list(range(tokens)),
        "logprobs": [-0.5] * tokens,
        "segments": [{"start": 0, "version": 0}],
        "finish_reason": "stop",
    }
    return rollout | changes


def upload(count: int = 1, tokens: int = 3) -> m.Upload:
    """An upload of `count` rollouts."""
    return m.Upload.model_validate(
        {"incarnation": 1, "rollouts": [wire(tokens, index=i) for i in range(count)]}, strict=False
    )


def weights(seed: int = 0, rows: int = 64) -> dict[str, torch.Tensor]:
    """Tensors of several dtypes and odd sizes, about `rows` KiB."""
    made = torch.Generator().manual_seed(seed)
    return {
        "z.first": torch.randn(rows, 256, generator=made),
        "a.half": torch.randn(7, 3, generator=made).bfloat16(),
        "b.bytes": torch.randint(0, 255, (5,), generator=made, dtype=torch.uint8),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
    }


def model_dir(path: Path) -> Path:
    """The small files of a model directory."""
    path.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text(f'{{"of": "{name}"}}')
    (path / "chat_template.jinja").write_text("")
    return path


class Cutter:
    """A TCP relay that cuts the first `cuts` connections once `after` bytes have come back through each."""

    def __init__(self, port: int, cuts: int, after: int) -> None:
        self._port, self.cuts, self._after = port, cuts, after

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The URL to dial for the length of the context."""
        relay = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        finally:
            relay.close()

    async def _relay(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._port)
        upward = asyncio.create_task(_pump(near, forth))
        left = self._after
        with contextlib.suppress(OSError):
            while data := await far.read(65536):
                if self.cuts and len(data) >= left:
                    self.cuts -= 1
                    back.write(data[:left])
                    await back.drain()
                    break
                left -= len(data)
                back.write(data)
                await back.drain()
        upward.cancel()
        forth.close()
        back.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


def full_of(manifest: m.Manifest) -> m.File:
    """The full file of a manifest that must have one."""
    assert manifest.full is not None
    return manifest.full


def adamw_steps(model: Any, learning_rate: float, seed: int = 0) -> Iterator[float]:
    """Optimiser steps of a causal language model on random tokens, one for each `next`; the loss of each."""
    made = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    while True:
        tokens = torch.randint(0, model.config.vocab_size, (4, 32), generator=made)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())
