"""Makes a link behave like a recorded one: rate over time, round trip, and a cloud card's token bucket.

A worker's client sends and receives through a `ShapedLink`, since its access link is what a trace describes;
the server can hold one `Shaper` for the learner's uplink. Rates are of the bytes of bodies.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.sim.inputs import LinkShape, NicBucket

CREDIT_S = 0.05
"""How far a sender may lag behind its link and catch up: what event loops wake up late must not be lost."""

_EPS_BITS = 1e-3


class Shaper:
    """One direction of a link: a queue that is served at the trace's rate, first come first served.

    A reservation of n bytes ends when the integral of the rate, from where the one before ended, reaches
    8 n bits. A link that was idle gives no credit beyond `CREDIT_S`, so over any T seconds at most
    rate x (T + 0.05 s) get through. With a `bucket` the rate is also capped as a token bucket says:
    its tokens (bits) change by sustained minus actual rate. All from `echo2.sim`'s access links (ours).
    """

    def __init__(
        self,
        level_bps: float,
        shape: LinkShape | None = None,
        bucket: NicBucket | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        start_s: float | None = None,
    ) -> None:
        """`start_s`: the clock's reading at run time 0, now if left out. Raises UserError for a rate <= 0."""
        if not 0 < level_bps < float("inf"):
            raise UserError(f"a link's rate is {level_bps:g} bit/s; it must be above 0")
        if shape is not None and not any(factor > 0 for factor in shape.factor):
            raise UserError(f"link shape {shape.trace_id!r} is 0 everywhere; nothing would ever get through")
        self._level_bps, self._shape, self._bucket = level_bps, shape, bucket
        self._clock, self._sleep = clock, sleep
        self._start_s = clock() if start_s is None else start_s
        self._free_s = self._now()
        self._tokens_bits = bucket.bucket_bits if bucket else 0.0
        self._arrivals = itertools.count()
        self._queue: list[tuple[float, int, asyncio.Future[None]]] = []
        self._serving = False

    def restart(self) -> None:
        """Begin the trace anew, at run time 0 and with nothing in the queue."""
        self._start_s, self._free_s = self._clock(), 0.0

    def rate_bps(self, t_s: float) -> float:
        """What the trace says of run time `t_s`, without the bucket."""
        return self._level_bps * (self._shape.at(t_s) if self._shape else 1.0)

    async def take(self, n_bytes: int, order: float = 0.0) -> None:
        """Wait until `n_bytes` more have passed. Ends when the trace lets them, however long an outage.

        Of those that wait, the lowest `order` is served first: a sender keeps to the order of its plan.
        """
        if self._serving:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._queue, (order, next(self._arrivals), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._serving = True
        try:
            if (wait_s := self.delay_s(n_bytes)) > 0:
                await self._sleep(wait_s)
        finally:
            self._next()

    def delay_s(self, n_bytes: int) -> float:
        """Reserve `n_bytes`; returns for how long from now the link is busy with them."""
        return self.reserve(n_bytes) - self._now()

    def _next(self) -> None:
        """Give the turn to the first of those that wait."""
        while self._queue:
            turn = heapq.heappop(self._queue)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._serving = False

    def reserve(self, n_bytes: int) -> float:
        """Put bytes in the queue; returns the run time at which the last of them has passed."""
        begin_s = max(self._free_s, self._now() - CREDIT_S)
        if self._bucket:
            gained = self._bucket.sustained_bps * (begin_s - self._free_s)
            self._tokens_bits = min(self._bucket.bucket_bits, self._tokens_bits + gained)
        self._free_s = self._served(begin_s, 8.0 * n_bytes)
        return self._free_s

    def _served(self, t_s: float, bits: float) -> float:
        """When `bits` that begin at `t_s` are through; moves the bucket's tokens along."""
        while bits > _EPS_BITS:
            rate = self.rate_bps(t_s)
            step_s = self._shape.next_change_s(t_s) - t_s if self._shape else float("inf")
            if self._bucket:
                full = self._tokens_bits > 1.0
                rate = min(rate, self._bucket.burst_bps if full else self._bucket.sustained_bps)
                if full and (drain := rate - self._bucket.sustained_bps) > 0:
                    step_s = min(step_s, self._tokens_bits / drain)
            if rate > 0:
                step_s = min(step_s, bits / rate)
            if self._bucket:
                left = self._tokens_bits + (self._bucket.sustained_bps - rate) * step_s
                self._tokens_bits = min(self._bucket.bucket_bits, max(0.0, left))
            bits -= rate * step_s
            t_s += step_s
        return t_s

    def _now(self) -> float:
        return self._clock() - self._start_s


@dataclass(frozen=True)
class ShapedLink:
    """A machine's link: `down` and `up` (None: not shaped), and `rtt_s` that every request pays once."""

    down: Shaper | None = None
    up: Shaper | None = None
    rtt_s: float = 0.0

    async def send(self, n_bytes: int) -> None:
        """A request goes out with a body of `n_bytes`."""
        if self.rtt_s > 0:
            await asyncio.sleep(self.rtt_s)
        if self.up is not None and n_bytes:
            # before any chunk that this machine passes on: rollouts must not wait for snapshots
            await self.up.take(n_bytes, -1.0)

    async def receive(self, n_bytes: int) -> None:
        """A piece of an answer comes in."""
        if self.down is not None and n_bytes:
            await self.down.take(n_bytes)


UNSHAPED = ShapedLink()


def shaper_for(
    level_mbps: float,
    trace_id: str | None,
    seed: int,
    name: str,
    upward: bool = False,
    instance: str | None = None,
    start_s: float | None = None,
) -> Shaper:
    """A shaper whose rate is a level (Mbit/s) x the shape of a trace, begun where the simulator begins it.

    The same `seed` and machine `name` give the simulator's own offset into the trace. `instance`: the EC2
    type whose token bucket caps it. Raises UserError for an unknown trace or instance.
    """
    # pandas comes with the traces: only for links that are shaped
    from echo2.scenario.varying import link_shape, nic_bucket

    shape = link_shape(trace_id, seed, name, upward) if trace_id else None
    bucket = nic_bucket(instance) if instance else None
    return Shaper(level_mbps * 1e6, shape, bucket, start_s=start_s)


def link_for(
    down_mbps: float,
    up_mbps: float,
    rtt_s: float,
    trace_id: str | None,
    seed: int,
    name: str,
    instance: str | None = None,
    start_s: float | None = None,
) -> ShapedLink:
    """A worker's link. As in the simulator both directions have one shape, and the bucket caps sending."""
    down = shaper_for(down_mbps, trace_id, seed, name, False, None, start_s)
    up = shaper_for(up_mbps, trace_id, seed, name, False, instance, start_s)
    return ShapedLink(down, up, rtt_s)
