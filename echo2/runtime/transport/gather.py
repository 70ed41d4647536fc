"""Gets the chunks of a payload to this worker: along its route, from whoever has them, and in any case.

Called by the receiver with the payload and a `put` for verified chunks; told new routes by the agent while
it is at work. A source that fails is reported once and asked no more for this payload; until a new route
comes, its chunks come from the learner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.chain import Put
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.gathering import Gathering
from echo2.runtime.transport.growing import Growing
from echo2.runtime.transport.pace import PaceLimits
from echo2.runtime.transport.relay import relay_key
from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink

log = logging.getLogger("echo2.worker")

STREAMS = 4


@dataclass(frozen=True, slots=True)
class GatherSettings:
    """`streams` to each source. A relay may hold a request open for `wait_s`; the chunks of a failed one
    wait `grace_s` for a new route; failures of the learner in a row may go on for `give_up_s`."""

    streams: int = STREAMS
    wait_s: float = 5.0
    grace_s: float = 0.5
    give_up_s: float = 120.0
    pace: PaceLimits = field(default_factory=PaceLimits)


class Gatherer:
    """Gathers one payload at a time. `failed` and `taken` hear what is to be reported to the learner."""

    def __init__(
        self,
        client: Client,
        token: str,
        link: ShapedLink = UNSHAPED,
        settings: GatherSettings | None = None,
        failed: Callable[[m.SourceFailed], None] = lambda _report: None,
        taken: Callable[[m.Taken], None] = lambda _report: None,
    ) -> None:
        self.client, self.key, self.link = client, relay_key(token), link
        self.settings = settings or GatherSettings()
        self.failed, self.taken = failed, taken
        self.worker_id = ""
        self._next: tuple[int, m.Route | None] | None = None
        self._running: Gathering | None = None

    def follow(self, version: int, route: m.Route | None) -> None:
        """Another route for `version`, of the payload that is being gathered, or the next one if none is."""
        if self._running is not None and self._running.version == version:
            self._running.follow(route)
        else:
            self._next = version, route

    async def gather(
        self,
        version: int,
        payload: Sequence[m.Chunk],
        missing: Sequence[m.Chunk],
        put: Put,
        route: m.Route | None,
    ) -> int:
        """Get the missing chunks of a payload, and what else is missing from the learner; bytes fetched.

        `put` takes a chunk's bytes and says whether they are right. A route that `follow` has given since
        goes before `route`. Raises SnapshotError for what the learner itself has wrong or no longer has,
        Unreachable when it is silent for too long, and what `put` raises. Cancelling is safe.
        """
        return await self._carried_out(Gathering(self, version, payload, missing, put), route)

    async def gather_growing(
        self,
        version: int,
        put: Put,
        route: m.Route | None,
        feed: Callable[[Growing], Coroutine[None, None, None]],
    ) -> int:
        """The same for chunks that are not known yet: `feed` runs beside it, tells more and closes the list.

        Ends when all are there. Raises also what `feed` does.
        """
        run = Growing(self, version, put)
        feeding = asyncio.create_task(feed(run), name=f"echo2-pages-{version}")
        feeding.add_done_callback(run.ended)
        try:
            return await self._carried_out(run, route)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _carried_out(self, run: Gathering, route: m.Route | None) -> int:
        version = run.version
        if self._next is not None and self._next[0] == version:
            route = self._next[1]
        self._next, self._running = None, run
        try:
            return await run.run(route)
        finally:
            self._running = None
            if run.bytes:
                came = ", ".join(f"{n:,} from {name}" for name, n in run.bytes_by_source().items())
                log.info("version %d: bytes came: %s", version, came)
                self.taken(m.Taken(version=version, sources=run.bytes_by_source()))
