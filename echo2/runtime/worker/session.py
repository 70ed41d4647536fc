"""The worker's standing with the learner: its lease, renewed when the learner has forgotten it.

Every message of the agent goes through here. A learner that does not answer is asked again until
`give_up_s` have passed without any answer; a lease that is lost is replaced by saying hello again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import LeaseLost
from echo2.runtime.transport.retry import Unreachable

log = logging.getLogger("echo2.worker")

T = TypeVar("T")
GIVE_UP_S = 900.0
REJOIN_S = 0.3
LONGEST_WAIT_S = 20.0


class LearnerGoneError(Exception):
    """The learner has not answered for too long: there is nobody to work for."""


class Learner(Protocol):
    """The learner as its HTTP client shows it. Each call has a deadline of its own."""

    async def hello(self, hello: m.Hello) -> m.Welcome: ...
    async def work(self, request: m.WorkRequest) -> m.WorkReply: ...
    async def rollouts(self, upload: m.Upload) -> m.UploadReply: ...
    async def reports(self, reports: m.Reports) -> None: ...
    async def leave(self, leave: m.Leave) -> None: ...
    async def manifest(self, version: int) -> m.Manifest: ...


class Session:
    """One worker process at one learner. `welcomed` is called with every new lease, before its first use."""

    def __init__(
        self,
        learner: Learner,
        hello: m.Hello,
        welcomed: Callable[[m.Welcome], None],
        give_up_s: float = GIVE_UP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learner, self._hello, self._welcomed = learner, hello, welcomed
        self._give_up_s, self._clock = give_up_s, clock
        self._heard_s = clock()
        self._silent = False
        self._joining = asyncio.Lock()
        self._joined = asyncio.Event()
        self._polling = False
        self._welcome: m.Welcome | None = None

    @property
    def wait_s(self) -> float:
        """How long a request for work may be held open, so that the lease is renewed in time."""
        lease_s = self._welcome.lease_s if self._welcome else 0.0
        return max(0.1, min(LONGEST_WAIT_S, lease_s / 3))

    async def join(self) -> m.Welcome:
        """Say hello until welcomed. Raises UserError (refused) or LearnerGoneError."""
        async with self._joining:
            return await self._join()

    async def work(self, request: Callable[[], m.WorkRequest]) -> m.WorkReply:
        """Ask for orders; the request is made anew for every lease."""
        self._polling = True
        try:
            return await self._call(lambda: self._learner.work(request()), joins=True)
        finally:
            self._polling = False

    async def rollouts(self, upload: m.Upload) -> m.UploadReply:
        """Send rollouts."""
        return await self._call(lambda: self._learner.rollouts(upload))

    async def reports(self, reports: m.Reports) -> None:
        """Send reports."""
        await self._call(lambda: self._learner.reports(reports))

    async def manifest(self, version: int) -> m.Manifest:
        """The manifest of a snapshot, -1 for the newest."""
        return await self._call(lambda: self._learner.manifest(version))

    async def leave(self, cause: str, within_s: float) -> None:
        """Say good-bye, once; the lease ends by itself if nobody listens."""
        try:
            async with asyncio.timeout(within_s):
                await self._learner.leave(m.Leave(cause=cause))
        except Exception as error:  # nothing depends on it
            log.debug("could not say good-bye: %s", error)

    async def _call(self, send: Callable[[], Awaitable[T]], joins: bool = False) -> T:
        while True:
            lease = self._welcome
            try:
                answer = await send()
            except LeaseLost:
                self._answered()
                await self._rejoin(lease, joins)
            except Unreachable as error:
                self._unanswered(error)
            else:
                self._answered()
                return answer

    async def _rejoin(self, lost: m.Welcome | None, joins: bool) -> None:
        """Get a new lease, unless another call has done so meanwhile.

        While a request for work is out, that one does it: it acknowledges orders of the lease it was made
        for, and must never be sent again under another.
        """
        if self._polling and not joins:
            self._joined.clear()
            if self._welcome is lost:
                await self._joined.wait()
            return
        async with self._joining:
            if self._welcome is lost:
                log.warning("the learner does not know this lease any more: saying hello again")
                await asyncio.sleep(random.uniform(0, REJOIN_S))  # all workers notice at once
                await self._join()

    async def _join(self) -> m.Welcome:
        while True:
            try:
                welcome = await self._learner.hello(self._hello)
            except Unreachable as error:
                self._unanswered(error)
                continue
            self._answered()
            before, self._welcome = self._welcome, welcome
            self._joined.set()
            if before is None or before.lease != welcome.lease:
                log.info("joined run %s as %s", welcome.run_id, welcome.worker_id)
                self._welcomed(welcome)
            return welcome

    def _answered(self) -> None:
        if self._silent:
            log.info("the learner answers again")
        self._silent, self._heard_s = False, self._clock()

    def _unanswered(self, error: Exception) -> None:
        silent_s = self._clock() - self._heard_s
        if silent_s >= self._give_up_s:
            raise LearnerGoneError(
                f"no answer from the learner for {silent_s:.0f} s, giving up (--give-up-after): {error}"
            )
        if not self._silent:
            log.warning("no answer from the learner, going on without it for now: %s", error)
        self._silent = True
