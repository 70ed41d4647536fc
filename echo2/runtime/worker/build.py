"""Puts a worker together from what the command line says. Called by `echo2 worker`."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.gather import Gatherer
from echo2.runtime.transport.receive import SnapshotReceiver
from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink
from echo2.runtime.transport.shelf import Shelf
from echo2.runtime.worker.agent import Agent, AgentLimits
from echo2.runtime.worker.engines import SimulatedProfile, check_engine, make_engine
from echo2.runtime.worker.peers import Peers, RelaySettings, made_relay, relay_url

if TYPE_CHECKING:
    from echo2.runtime.rollout.openai_engine import EndpointSettings

CALL_GIVE_UP_S = 20.0
"""Longest one message is tried by the client before the session takes stock."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The link to imitate: rates in Mbit/s (0: as it is), round trip in ms, a trace for its shape."""

    down_mbps: float = 0.0
    up_mbps: float = 0.0
    rtt_ms: float = 0.0
    trace: str | None = None
    seed: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker process. `work_dir` None: a temporary one, removed at the end. `run_key`: the only key
    whose manifests are believed; "": the one that the learner names first."""

    url: str
    token: str
    session: str
    pool: str = "remote"
    engine: str = "vllm"
    worker_id: str | None = None
    work_dir: Path | None = None
    ca: Path | None = None
    run_key: str = ""
    relay: RelaySettings = field(default_factory=RelaySettings)
    link: LinkSettings = field(default_factory=LinkSettings)
    limits: AgentLimits = field(default_factory=AgentLimits)
    profile: SimulatedProfile = field(default_factory=SimulatedProfile)
    endpoint: EndpointSettings | None = None


@asynccontextmanager
async def opened(settings: WorkerSettings) -> AsyncIterator[Agent]:
    """An agent ready to run, its connections and directory closed afterwards. Raises UserError."""
    check_engine(settings.engine)
    hello, link = _hello(settings), shaped(settings.link)
    with _directory(settings.work_dir) as directory:
        give_up_s = min(CALL_GIVE_UP_S, settings.limits.give_up_s)
        client = Client(settings.url, settings.token, settings.ca, give_up_s, link, settings.run_key)
        shelf, gatherer = Shelf(), Gatherer(client, settings.token, link)
        relay, host = made_relay(settings.relay, shelf, settings.token, settings.url, link)
        try:
            if relay is not None:
                await relay.start()
                hello = hello.model_copy(update={"relay_url": relay_url(host, relay.port)})
            yield Agent(
                client,
                SnapshotReceiver(client, directory / "snapshots", gatherer=gatherer, shelf=shelf),
                partial(make_engine, settings.engine, profile=settings.profile, endpoint=settings.endpoint),
                hello,
                settings.limits,
                peers=Peers(gatherer, relay),
            )
        finally:
            if relay is not None:
                await relay.stop()
            await client.close()


def shaped(link: LinkSettings) -> ShapedLink:
    """The link as the client takes it. Raises UserError for an unknown trace or half a link."""
    if not (link.down_mbps or link.up_mbps or link.trace):
        return UNSHAPED if not link.rtt_ms else ShapedLink(rtt_s=link.rtt_ms / 1e3)
    if not (link.down_mbps > 0 and link.up_mbps > 0):
        raise UserError(
            f"a shaped link has --downlink-mbps {link.down_mbps:g} and --uplink-mbps {link.up_mbps:g}; give "
            "both, above 0"
        )
    from echo2.runtime.transport.shaping import link_for

    return link_for(link.down_mbps, link.up_mbps, link.rtt_ms / 1e3, link.trace, link.seed, link.name)


def _hello(settings: WorkerSettings) -> m.Hello:
    for option, value in (("--pool", settings.pool), ("--worker-id", settings.worker_id)):
        if value is not None and not _is_name(value):
            raise UserError(
                f"{option} is {value!r}; use 1 to 100 letters, digits, dots, hyphens and underscores"
            )
    return m.Hello(
        protocol=m.PROTOCOL,
        session=settings.session,
        pool=settings.pool,
        engine=settings.engine,
        worker_id=settings.worker_id,
    )


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= 100 and text.isascii() and all(c.isalnum() or c in "._-" for c in text)


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The working directory, for this process alone."""
    if given is None:
        made = Path(tempfile.mkdtemp(prefix="echo2-worker-"))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return
    try:
        given.mkdir(parents=True, exist_ok=True)
        lock = os.open(given / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"--work-dir {given}: cannot be used ({error.strerror or error}); choose another directory"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UserError(f"--work-dir {given}: another worker uses it; give each its own") from None
    try:
        yield given
    finally:
        os.close(lock)
