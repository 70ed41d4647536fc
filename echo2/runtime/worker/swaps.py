"""New weights for a running engine: fetched and verified while it generates, then swapped in.

Called by the agent for `Fetch` and `Abort`. A download can be given up at any time; a swap, once begun, is
seen through, for an engine stopped in the middle of one holds neither version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Protocol

from echo2.errors import UserError
from echo2.runtime.rollout.engine import EngineError, SwapReport
from echo2.runtime.transport import messages as m
from echo2.runtime.worker.groups import Died, Tell, cause_of
from echo2.runtime.worker.keeper import Held
from echo2.runtime.worker.measure import link_of
from echo2.runtime.worker.peers import Peers

log = logging.getLogger("echo2.worker")

FETCH_S = 3600.0
SWAP_S = 600.0


class Received(Protocol):
    """A snapshot on disk, verified: a model directory."""

    @property
    def path(self) -> Path: ...
    @property
    def manifest(self) -> m.Manifest: ...
    @property
    def transfer_s(self) -> float: ...
    @property
    def check_s(self) -> float: ...
    @property
    def bytes(self) -> int: ...


class Receiver(Protocol):
    """Fetches a snapshot, whole and verified or not at all. Cancelling leaves nothing behind."""

    async def fetch(self, version: int, parent: int = -1, route: m.Route | None = None) -> Received: ...


class Swaps:
    """At most one download at a time: a newer one takes the place of an older."""

    def __init__(
        self,
        receiver: Receiver,
        tell: Tell,
        died: Died,
        fetch_s: float = FETCH_S,
        swap_s: float = SWAP_S,
        peers: Peers | None = None,
    ) -> None:
        self._receiver, self._tell, self._died = receiver, tell, died
        self._fetch_s, self._swap_s, self._peers = fetch_s, swap_s, peers
        self._download: tuple[int, asyncio.Task[None]] | None = None
        self._swapping: dict[int, asyncio.Task[None]] = {}

    def fetch(self, held: Held, order: m.Fetch, incarnation: int) -> None:
        """Begin to fetch a version. One that is on its way goes on, along the route that the order gives;
        any other is given up."""
        version = order.version
        if version in self._swapping:
            return None
        if self._download is not None and self._download[0] == version:
            if self._peers is not None:
                self._peers.follow(version, order.route)
            return None
        if version <= held.engine.version:
            return self._needless(held, version, incarnation)
        self.cancel()
        task = asyncio.create_task(self._fetch(held, order, incarnation), name=f"echo2-fetch-{version}")
        self._download = (version, task)
        task.add_done_callback(self._downloaded)
        return None

    def abort(self, version: int) -> None:
        """Give up fetching `version`, unless its swap has begun."""
        if self._download is not None and self._download[0] == version:
            log.info("fetching version %d given up", version)
            self.cancel()

    def cancel(self) -> None:
        """Give up whatever is being fetched."""
        if self._download is not None:
            self._download[1].cancel()
            self._download = None

    async def finished(self) -> None:
        """Give up a download and see a swap through."""
        self.cancel()
        if self._swapping:
            await asyncio.wait(self._swapping.values())

    async def settle(self) -> None:
        """Give up a download; wait for a swap to end, which it does when its engine has been stopped."""
        self.cancel()
        if self._swapping:
            _, late = await asyncio.wait(self._swapping.values(), timeout=1.0)
            for task in late:
                task.cancel()

    async def receive(self, version: int, parent: int = -1, route: m.Route | None = None) -> Received:
        """A verified snapshot, within the deadline. Raises UserError."""
        try:
            async with asyncio.timeout(self._fetch_s):
                return await self._receiver.fetch(version, parent, route)
        except TimeoutError:
            raise UserError(f"the snapshot did not come within {self._fetch_s:g} s") from None
        except OSError as error:
            raise UserError(
                f"{error.filename or 'snapshot'}: {error.strerror or error}; free some space or choose "
                "another place with --work-dir"
            ) from error

    async def update(self, held: Held, received: Received) -> None:
        """Swap at once. Raises UserError (nothing changed) or EngineError (the engine is dead)."""

        async def swap() -> None:
            await self._update(held, received)

        await asyncio.shield(self._see_through(received.manifest.version, swap()))

    def _needless(self, held: Held, version: int, incarnation: int) -> None:
        if version == held.engine.version:
            self._tell(incarnation, m.Live(version=version, transfer_s=0.0, check_s=0.0, pause_s=0.0))
        else:
            cause = f"the engine is at version {held.engine.version} already; versions only go up"
            self._tell(incarnation, m.Failed(version=version, cause=cause))

    def _downloaded(self, task: asyncio.Task[None]) -> None:
        if self._download is not None and self._download[1] is task:
            self._download = None

    async def _fetch(self, held: Held, order: m.Fetch, incarnation: int) -> None:
        version = order.version
        try:
            received = await self.receive(version, order.parent, order.route)
        except Exception as error:
            self._failed(version, incarnation, error)
            return
        uplink_bps = self._peers.uplink_bps() if self._peers is not None else 0.0
        if (link := link_of(received.bytes, received.transfer_s, uplink_bps)) is not None:
            self._tell(incarnation, link)
        self._see_through(version, self._swap(held, received, incarnation))

    async def _swap(self, held: Held, received: Received, incarnation: int) -> None:
        version = received.manifest.version
        try:
            report = await self._update(held, received)
        except UserError as error:
            self._failed(version, incarnation, error)
        except Exception as error:
            self._died(held.engine, cause_of(error))
        else:
            live = m.Live(
                version=version,
                transfer_s=received.transfer_s,
                check_s=received.check_s + report.check_s,
                pause_s=report.pause_s,
            )
            log.info(
                "version %d live: transfer %.2f s, check %.2f s, pause %.3f s",
                version, live.transfer_s, live.check_s, live.pause_s,
            )  # fmt: skip
            self._tell(incarnation, live)

    async def _update(self, held: Held, received: Received) -> SwapReport:
        version = received.manifest.version
        try:
            async with asyncio.timeout(self._swap_s):
                report = await held.engine.update_weights(version, received.path, held.swap)
        except TimeoutError:
            raise EngineError(f"the swap to version {version} took over {self._swap_s:g} s") from None
        held.weights = received.manifest.weights
        return report

    def _see_through(self, version: int, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"echo2-swap-{version}")
        self._swapping[version] = task
        task.add_done_callback(lambda _: self._swapping.pop(version, None))
        return task

    def _failed(self, version: int, incarnation: int, error: Exception) -> None:
        log.warning("version %d failed, the old weights go on: %s", version, error)
        self._tell(incarnation, m.Failed(version=version, cause=cause_of(error)))
