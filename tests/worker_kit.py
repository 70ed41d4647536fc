"""What the worker tests share: a learner that hands out orders and keeps what comes, on a real server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.coordinator import Refusal, UnknownLease
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.pages import Pages
from echo2.runtime.transport.receive import SnapshotReceiver
from echo2.runtime.transport.server import Server, make_app
from echo2.runtime.transport.signing import RunKey
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.runtime.worker.agent import Agent, AgentLimits
from echo2.runtime.worker.engines import EngineMaker, SimulatedProfile, make_engine

TINY = Path(__file__).parent.parent / "assets" / "tiny-sort"
CONTEXT = 128
TOKEN = "a-token-for-tests"
DEADLINE_S = 20.0
FAST = SimulatedProfile(tokens_per_s=50_000, tokens=10)
SLOW = SimulatedProfile(tokens_per_s=200, tokens=10)
T = TypeVar("T")


class Bench:
    """A `Coordinator` for tests. `rollouts` and `store` outlive it, as ledger and disk do."""

    def __init__(
        self, store: SnapshotStore, rollouts: dict[tuple[int, int], m.WireRollout], lease_s: float = 1.5
    ) -> None:
        self.store, self.rollouts_in, self.lease_s = store, rollouts, lease_s
        self.sessions: dict[str, m.Welcome] = {}
        self.orders: dict[str, list[m.Numbered]] = {}
        self.sent: dict[str, int] = {}
        self.reports_in: list[tuple[int, m.Report]] = []
        self.uploads: list[m.Upload] = []
        self.work_requests = 0
        self.left: list[str] = []
        self.verdict: Callable[[m.WireRollout], m.Outcome] | None = None
        self.flip: Callable[[str], Path | None] = lambda _digest: None
        self.changed = asyncio.Event()
        self.closing = False

    # ---- what a test does ------------------------------------------------------------------------

    def order(self, *orders: m.Order) -> None:
        """Hand orders to the only worker."""
        (lease,) = self.orders
        for order in orders:
            self.sent[lease] += 1
            self.orders[lease].append(m.Numbered(number=self.sent[lease], order=order))
        self._tell()

    async def until(self, condition: Callable[[], T], within_s: float = DEADLINE_S) -> T:
        """The first true value of a condition on what has come."""
        async with asyncio.timeout(within_s):
            while not (value := condition()):
                self.changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.1)
        return value

    def reports_of(self, kind: type[T]) -> list[T]:
        """Reports of a kind, in order."""
        return [report for _, report in self.reports_in if isinstance(report, kind)]

    async def report(self, kind: type[T], count: int = 1) -> T:
        """The `count`-th report of a kind, waited for."""
        return (
            await self.until(lambda: self.reports_of(kind)[count - 1 : count])
            and self.reports_of(kind)[count - 1]
        )

    async def group(self, group_id: int, rollouts: int) -> list[m.WireRollout]:
        """All rollouts of a group, waited for."""
        keys = [(group_id, index) for index in range(rollouts)]
        await self.until(lambda: all(key in self.rollouts_in for key in keys))
        return [self.rollouts_in[key] for key in keys]

    async def joined(self) -> None:
        """Wait for a worker."""
        await self.until(lambda: self.orders)

    def forget_leases(self) -> None:
        """What happens when a lease ends."""
        self.sessions.clear()
        self.orders.clear()
        self._tell()

    # ---- Coordinator -----------------------------------------------------------------------------

    def hello(self, hello: m.Hello, address: str) -> m.Welcome:
        if hello.session not in self.sessions:
            lease = secrets.token_hex(16)
            self.sessions[hello.session] = m.Welcome(
                run_id=self.store.run_id,
                worker_id="w0",
                lease=lease,
                lease_s=self.lease_s,
                run_key=self.store.run_key,
            )
            self.orders[lease], self.sent[lease] = [], 0
            self._tell()
        return self.sessions[hello.session]

    async def work(self, lease: str, request: m.WorkRequest) -> m.WorkReply:
        self.check_lease(lease)
        self.work_requests += 1
        until_s = time.monotonic() + request.wait_s
        self.orders[lease][:] = [n for n in self.orders[lease] if n.number > request.acked]
        while not self.closing and time.monotonic() < until_s:
            self.check_lease(lease)
            if self.orders[lease]:
                break
            await asyncio.sleep(0.005)
        self.check_lease(lease)
        return m.WorkReply(orders=tuple(self.orders[lease]))

    async def rollouts(self, lease: str, upload: m.Upload) -> m.UploadReply:
        self.check_lease(lease)
        self.uploads.append(upload)
        verdicts = [self._verdict(rollout) for rollout in upload.rollouts]
        self._tell()
        return m.UploadReply(verdicts=tuple(verdicts))

    def reports(self, lease: str, reports: m.Reports) -> None:
        self.check_lease(lease)
        self.reports_in += [(reports.incarnation, report) for report in reports.reports]
        self._tell()

    def leave(self, lease: str, leave: m.Leave) -> None:
        self.left.append(leave.cause)
        self._tell()

    def check_lease(self, lease: str) -> str:
        if lease not in self.orders:
            raise UnknownLease
        return "w0"

    def manifest(self, version: int) -> m.SignedManifest:
        return self.store.signed(version)

    async def pages(self, version: int, draft: str, number: int, wait_s: float) -> Pages:
        return await self.store.draft(version, draft).pages(number, wait_s)

    def chunk(self, digest: str) -> Path:
        return self.flip(digest) or self.store.chunk(digest)

    def metrics(self) -> str:
        return ""

    def health(self) -> dict[str, object]:
        return {}

    def _verdict(self, rollout: m.WireRollout) -> m.Verdict:
        key = (rollout.group_id, rollout.index)
        outcome: m.Outcome = "duplicate" if key in self.rollouts_in else "accepted"
        if self.verdict is not None:
            outcome = self.verdict(rollout)
        if outcome == "accepted":
            self.rollouts_in[key] = rollout
        return m.Verdict(group_id=rollout.group_id, index=rollout.index, outcome=outcome)

    def _tell(self) -> None:
        self.changed.set()


class Host:
    """The learner's host: a server that can be stopped and come back, its ledger and snapshots kept."""

    def __init__(self, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
        self.store = SnapshotStore(folder / "store", "run-1", model_files_of(TINY), RunKey.new())
        self.rollouts: dict[tuple[int, int], m.WireRollout] = {}
        self.weights = weights or {"w": torch.arange(4096.0)}
        self.port = 0
        self.wrap: Callable[[Any], Any] = lambda app: app
        self.bench = Bench(self.store, self.rollouts)

    def publish(self, version: int, weights: dict[str, torch.Tensor] | None = None) -> m.Manifest:
        """A snapshot, by default with weights of its own."""
        return self.store.put(version, weights or {k: v + version for k, v in self.weights.items()})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def up(self) -> Bench:
        """Start serving, with a coordinator that remembers no lease."""
        self.bench = Bench(self.store, self.rollouts)
        self.server = Server(self.wrap(make_app(self.bench, TOKEN)), port=self.port)
        await self.server.start()
        self.port = self.server.port
        return self.bench

    async def down(self) -> None:
        """Stop serving."""
        self.bench.closing = True
        await self.server.stop()


class LosesAnswers:
    """ASGI middleware: every request is carried out, every second answer is lost with its connection."""

    def __init__(self, app: Any) -> None:
        self.app, self.count, self.lost = app, 0, 0
        self.state = app.state  # the server looks there for its door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.count += scope["type"] == "http"
        if scope["type"] != "http" or self.count % 2:
            return await self.app(scope, receive, send)
        self.lost += 1

        async def nowhere(message: Any) -> None:
            pass

        await self.app(scope, receive, nowhere)
        raise ConnectionResetError("this answer is lost")


@asynccontextmanager
async def working(
    host: Host,
    folder: Path,
    make: EngineMaker | None = None,
    profile: SimulatedProfile = FAST,
    **limits: Any,
) -> AsyncIterator[Agent]:
    """An agent at work on `host`; its failure fails the test."""
    client = Client(host.url, TOKEN, give_up_s=1.0)
    hello = m.Hello(protocol=m.PROTOCOL, session=secrets.token_hex(8), pool="p", engine="simulated")
    maker = partial(make_engine, "simulated", profile=profile) if make is None else make
    agent = Agent(client, SnapshotReceiver(client, folder / "w"), maker, hello, AgentLimits(**limits))
    task = asyncio.create_task(agent.run())
    try:
        yield agent
        agent.end("the test is over", 1.0)
        async with asyncio.timeout(DEADLINE_S):
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def start(version: int, incarnation: int = 1, slots: int = 8, **values: Any) -> m.Start:
    """A start order."""
    return m.Start(incarnation=incarnation, version=version, slots=slots, context_tokens=0, **values)


def generate(group_id: int, rollouts: int = 4, max_tokens: int = 10, **values: Any) -> m.Generate:
    """A generate order."""
    fields: dict[str, Any] = {"prompt": group_id, "attempt": 0, "prompt_ids": (5, 3, 4, 12), "seed": 7}
    return m.Generate(group_id=group_id, rollouts=rollouts, max_tokens=max_tokens, **(fields | values))


def refusal(status: int) -> Refusal:
    return Refusal(status, "no", "not today")


def run(scenario: Any, within_s: float = 2 * DEADLINE_S) -> Any:
    """Run a test's coroutine to its end, or fail."""

    async def within() -> Any:
        async with asyncio.timeout(within_s):
            return await scenario

    return asyncio.run(within())
