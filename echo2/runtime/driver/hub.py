"""Who is there: leases, numbered orders and incarnations of the workers that dial in.

Between the HTTP server and the live world. It knows the protocol of `transport.messages` and nothing of
scheduling: what workers say becomes calls of `Happenings`, which the world turns into facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.coordinator import Refusal, UnknownLease

REASON_CHARS = 1000
STANDBY, STARTING, UP, STOPPING = "standby", "starting", "up", "stopping"


@dataclass(slots=True)
class Seat:
    """One worker's place: its lease while a process holds it, and the orders that wait for it.

    `relay_url`: where other workers reach the process that holds it; "": it passes nothing on.
    `incarnation` counts the starts; `state` is where the last one is.
    """

    worker_id: str
    pool: str
    local: bool
    lease: str = ""
    session: str = ""
    address: str = ""
    relay_url: str = ""
    seen_s: float = 0.0
    incarnation: int = 0
    state: str = STANDBY
    numbered: int = 0
    orders: deque[m.Numbered] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def present(self) -> bool:
        """Whether a process holds the seat."""
        return bool(self.lease)


class Happenings(Protocol):
    """What the world is told."""

    def arrived(self, seat: Seat) -> None:
        """A process has taken the seat, in standby."""
        ...

    def gone(self, seat: Seat, cause: str) -> None:
        """The process has left or is silent; the seat still has the state it had, for the world to change."""
        ...

    def reported(self, seat: Seat, report: m.Report) -> None:
        """A report of the current incarnation."""
        ...

    async def delivered(self, seat: Seat, upload: m.Upload) -> list[m.Verdict]:
        """Rollouts of a worker; durable when this returns."""
        ...


class Hub:
    """Seats by worker id. One event loop; `clock` in seconds."""

    def __init__(
        self,
        run_id: str,
        seats: Iterable[Seat],
        lease_s: float,
        happenings: Happenings,
        run_key: str | None = None,
    ) -> None:
        """`run_key`: what signs the manifests of this run; every welcome names it."""
        self.run_id, self.run_key = run_id, run_key
        self.seats = {seat.worker_id: seat for seat in seats}
        self.lease_s = lease_s
        self._happenings = happenings
        self._by_lease: dict[str, Seat] = {}
        self._closed: str | None = None

    # ---- the world's side ------------------------------------------------------------------------

    def post(self, worker_id: str, order: m.Order) -> None:
        """Put an order into a worker's mailbox; dropped when nobody holds the seat."""
        seat = self.seats[worker_id]
        if seat.present:
            seat.numbered += 1
            seat.orders.append(m.Numbered(number=seat.numbered, order=order))
            seat.news.set()

    def expire(self) -> None:
        """Take the seats of silent workers back."""
        deadline = time.monotonic() - self.lease_s
        for seat in list(self._by_lease.values()):
            if seat.seen_s < deadline:
                self.release(seat, f"silent for {self.lease_s:g} s")

    def release(self, seat: Seat, cause: str) -> None:
        """The process that held the seat is gone."""
        if not seat.present:
            return
        del self._by_lease[seat.lease]
        seat.lease = seat.session = seat.relay_url = ""
        seat.orders.clear()
        seat.numbered = 0
        # A request that waits for orders wakes up and finds its lease gone.
        seat.news.set()
        self._happenings.gone(seat, cause)

    def close(self, reason: str) -> None:
        """Tell everyone to leave, now and from now on."""
        self._closed = reason = reason[:REASON_CHARS]
        for seat in self._by_lease.values():
            self.post(seat.worker_id, m.Exit(reason=reason))

    # ---- the workers' side (transport.coordinator.Coordinator) -----------------------------------

    def hello(self, hello: m.Hello, address: str) -> m.Welcome:
        """Give a process a seat: its own by id, or a free one of its pool."""
        if self._closed is not None:
            raise Refusal(410, "run-over", f"the run is over: {self._closed}")
        known = next((s for s in self._by_lease.values() if s.session == hello.session), None)
        seat = known or self._seat(hello)
        if known is None:
            if seat.present:
                self.release(seat, "replaced by a new process of the same name")
            seat.lease, seat.session = secrets.token_hex(16), hello.session
            seat.news = asyncio.Event()
            seat.relay_url = hello.relay_url or ""
            self._by_lease[seat.lease] = seat
        seat.address, seat.seen_s = address, time.monotonic()
        if known is None:
            self._happenings.arrived(seat)
        return m.Welcome(
            run_id=self.run_id,
            worker_id=seat.worker_id,
            lease=seat.lease,
            lease_s=self.lease_s,
            run_key=self.run_key,
        )

    async def work(self, lease: str, request: m.WorkRequest) -> m.WorkReply:
        """Wait for orders."""
        seat = self.seat(lease)
        while seat.orders and seat.orders[0].number <= request.acked:
            seat.orders.popleft()
        if not seat.orders:
            seat.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(seat.news.wait(), min(request.wait_s, self.lease_s / 2))
            if seat.lease != lease:
                raise UnknownLease
            seat.seen_s = time.monotonic()
        return m.WorkReply(orders=tuple(seat.orders))

    async def rollouts(self, lease: str, upload: m.Upload) -> m.UploadReply:
        """Take rollouts in."""
        verdicts = await self._happenings.delivered(self.seat(lease), upload)
        return m.UploadReply(verdicts=tuple(verdicts))

    def reports(self, lease: str, reports: m.Reports) -> None:
        """Take reports in; those of an earlier start say nothing any more."""
        seat = self.seat(lease)
        for report in reports.reports:
            if reports.incarnation == seat.incarnation:
                self._happenings.reported(seat, report)

    def leave(self, lease: str, leave: m.Leave) -> None:
        """The process ends."""
        self.release(self.seat(lease), leave.cause or "left")

    def check_lease(self, lease: str) -> str:
        """The id of the worker that holds a lease."""
        return self.seat(lease).worker_id

    def seat(self, lease: str) -> Seat:
        """The seat of a lease, which this renews. Raises UnknownLease."""
        seat = self._by_lease.get(lease)
        if seat is None:
            raise UnknownLease
        seat.seen_s = time.monotonic()
        return seat

    def _seat(self, hello: m.Hello) -> Seat:
        if hello.worker_id is not None:
            seat = self.seats.get(hello.worker_id)
            if seat is None or seat.pool != hello.pool:
                raise Refusal(
                    404,
                    "unknown-worker",
                    f"worker {hello.worker_id!r} of pool {hello.pool!r} is not part of this run",
                )
            return seat
        mine = [seat for seat in self.seats.values() if seat.pool == hello.pool]
        if not mine:
            pools = ", ".join(sorted({seat.pool for seat in self.seats.values()}))
            raise Refusal(
                404, "unknown-pool", f"pool {hello.pool!r} is not in the configuration; pools: {pools}"
            )
        if mine[0].local:
            raise Refusal(
                409, "local-pool", f"pool {hello.pool!r} is started by the learner itself (local = true)"
            )
        free = [seat for seat in mine if not seat.present]
        if not free:
            raise Refusal(
                409,
                "pool-full",
                f"all {len(mine)} workers of pool {hello.pool!r} are there; raise its count, or wait "
                f"{self.lease_s:g} s where one has died",
            )
        return free[0]
