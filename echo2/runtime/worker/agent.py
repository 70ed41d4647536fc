"""The rollout worker itself: carries out the learner's orders and never waits inside one.

Run by the worker process (`run`), or many in one process for load tests. Orders come by the work loop; each
start, group and fetch is a task of its own. See `echo2.runtime.transport.messages` for the state machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from echo2.runtime.rollout.engine import Engine
from echo2.runtime.transport import messages as m
from echo2.runtime.worker.bring_up import bring_up
from echo2.runtime.worker.engines import EngineMaker
from echo2.runtime.worker.groups import Groups, cause_of
from echo2.runtime.worker.keeper import START_S, STOP_S, Keeper
from echo2.runtime.worker.mail import flush, send_reports, send_rollouts
from echo2.runtime.worker.measure import RateMeter
from echo2.runtime.worker.outbox import LIMIT_BYTES, Outbox
from echo2.runtime.worker.peers import Peers
from echo2.runtime.worker.reports import ReportQueue
from echo2.runtime.worker.session import GIVE_UP_S, Learner, Session
from echo2.runtime.worker.swaps import FETCH_S, SWAP_S, Receiver, Swaps

log = logging.getLogger("echo2.worker")

FLUSH_S = 5.0
EXIT_FLUSH_S = 30.0
LEAVE_S = 1.0
AGAIN_S = 0.1
"""Pause before asking again after an answer without anything new: a learner may answer at once."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """How long a worker waits for what, in seconds, and how many bytes of rollouts it holds back."""

    give_up_s: float = GIVE_UP_S
    start_s: float = START_S
    stop_s: float = STOP_S
    fetch_s: float = FETCH_S
    swap_s: float = SWAP_S
    exit_flush_s: float = EXIT_FLUSH_S
    outbox_bytes: int = LIMIT_BYTES


DEFAULTS = AgentLimits()


class Agent:
    """One worker at one learner. `run` ends at an `Exit` order or after `end`."""

    def __init__(
        self,
        learner: Learner,
        receiver: Receiver,
        make: EngineMaker,
        hello: m.Hello,
        limits: AgentLimits = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        peers: Peers | None = None,
    ) -> None:
        """`peers`: what takes routes and passes chunks on; without, all comes from the learner."""
        self._clock, self._limits, self._peers = clock, limits, peers
        self._session = Session(learner, hello, self._welcomed, limits.give_up_s, clock)
        self._outbox = Outbox(limits.outbox_bytes)
        self._reports = ReportQueue()
        self._keeper = Keeper(make, limits.start_s, limits.stop_s)
        self._groups = Groups(self._outbox, self._reports.put, self._engine_died)
        self._swaps = Swaps(
            receiver, self._reports.put, self._engine_died, limits.fetch_s, limits.swap_s, peers
        )
        if peers is not None:
            peers.report_to(lambda report: self._reports.put(self._incarnation, report))
        self._run_id = ""
        self._incarnation = 0
        self._acked = 0
        self._life: asyncio.Task[None] | None = None
        self._life_lock = asyncio.Lock()
        self._sending: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        self._end_cause = ""
        self._flush_s = FLUSH_S

    # ---- from the outside ------------------------------------------------------------------------

    async def run(self) -> str:
        """Work until told to leave; returns why. Raises UserError or LearnerGoneError, the engine stopped."""
        work = asyncio.create_task(self._work(), name="echo2-work")
        mail = asyncio.create_task(self._mail(), name="echo2-mail")
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({work, mail, ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, mail):
                if task.done():
                    task.result()
            await _cancelled(work)
            await self._wind_up()
        finally:
            await _cancelled(work, ending, mail, self._life)
            await self._stand_down()
            await self._keeper.settle()
        return self._end_cause

    def end(self, cause: str, flush_s: float = FLUSH_S) -> None:
        """Let `run` end: stop generating, send what is finished within `flush_s`, leave, stop the engine."""
        if not self._ending.is_set():
            log.info("leaving: %s", cause)
            self._end_cause, self._flush_s = cause, flush_s
            self._ending.set()

    # ---- orders ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        await self._session.join()
        while True:
            reply = await self._session.work(self._request)
            new = [numbered for numbered in reply.orders if numbered.number > self._acked]
            for numbered in new:
                log.debug("order %d: %r", numbered.number, numbered.order)
                self._acked = numbered.number
                self._carry_out(numbered.order)
            if not new:
                await asyncio.sleep(AGAIN_S)

    def _request(self) -> m.WorkRequest:
        return m.WorkRequest(
            acked=self._acked,
            wait_s=self._session.wait_s,
            running=len(self._groups),
            unsent=len(self._outbox),
        )

    def _carry_out(self, order: m.Order) -> None:
        """Set an order going. Never waits: what takes time is a task."""
        match order:
            case m.Start():
                self._incarnation = order.incarnation
                self._live(self._start(order, order.incarnation))
            case m.Stop():
                self._live(self._stop(f"stopped: {order.reason}" if order.reason else "stopped"))
            case m.Generate():
                self._generate(order)
            case m.Cancel():
                self._groups.cancel(order.group_id)
            case m.Fetch():
                self._fetch(order)
            case m.Abort():
                self._swaps.abort(order.version)
            case m.Exit():
                self.end(order.reason or "the learner says so", self._limits.exit_flush_s)

    def _generate(self, order: m.Generate) -> None:
        held = self._keeper.held
        if held is None:
            report = m.GroupFailed(group_id=order.group_id, cause="this worker's engine does not run")
            self._reports.put(self._incarnation, report)
        else:
            self._groups.start(held.engine, order, self._incarnation, held.order.model)

    def _fetch(self, order: m.Fetch) -> None:
        held = self._keeper.held
        if held is None:
            report = m.Failed(version=order.version, cause="this worker's engine does not run")
            self._reports.put(self._incarnation, report)
        else:
            self._swaps.fetch(held, order, self._incarnation)

    # ---- the engine's life -----------------------------------------------------------------------

    def _live(self, work: Coroutine[None, None, None]) -> None:
        """Start or stop: the latest word counts, so what an earlier one is at is given up first."""
        before, lock = self._life, self._life_lock
        if before is not None:
            before.cancel()

        async def alone() -> None:
            async with lock:
                await work

        self._life = asyncio.create_task(alone(), name="echo2-life")
        self._life.add_done_callback(lambda _: work.close())  # cancelled before it began

    async def _start(self, order: m.Start, incarnation: int) -> None:
        log.info("start %d: version %d, %d slots", incarnation, order.version, order.slots)
        await self._groups.cancel_all()  # of an earlier start: the learner has given them to others
        try:
            held = await bring_up(order, self._run_id, self._keeper, self._swaps, self._session)
        except Exception as error:
            log.error("the engine could not be started: %s", error)
            await self._stand_down()
            self._reports.put(incarnation, m.Down(cause=cause_of(error)))
            return
        self._groups.meter = RateMeter(order.slots, self._clock)
        limits, version = held.engine.limits, held.engine.version
        log.info("up at version %d, weights %s", version, held.weights[:12])
        up = m.Up(
            version=version,
            weights=held.weights,
            vocab_size=limits.vocab_size,
            context_tokens=limits.context_tokens,
        )
        self._reports.put(incarnation, up)

    async def _stop(self, cause: str) -> None:
        incarnation = self._incarnation
        await self._stand_down()
        log.info("standby: %s", cause)
        self._reports.put(incarnation, m.Down(cause=cause))

    def _engine_died(self, engine: Engine, cause: str) -> None:
        """Called by every group and swap the engine takes with it; the first is heard."""
        held = self._keeper.held
        if held is not None and held.engine is engine and not held.dead:
            held.dead = True
            log.error("the engine died: %s", cause)
            self._live(self._stop(cause))

    async def _stand_down(self) -> None:
        """Groups, fetches and engine end; what is finished stays in the outbox."""
        self._swaps.cancel()
        await self._groups.cancel_all()
        await self._keeper.stop()
        await self._swaps.settle()

    # ---- coming and going ------------------------------------------------------------------------

    def _welcomed(self, welcome: m.Welcome) -> None:
        """A new lease numbers its orders from 1; a new run has no use for anything of the old one."""
        self._acked = 0
        if self._peers is not None:
            self._peers.welcomed(welcome)
        if self._run_id not in ("", welcome.run_id):
            dropped = self._outbox.clear() + self._reports.clear()
            log.warning("another run: %d rollouts and reports of %s dropped", dropped, self._run_id)
            for task in self._sending:
                task.cancel()  # what it is sending must never reach the other run
            self._live(self._stand_down())
        self._run_id = welcome.run_id

    async def _mail(self) -> None:
        """Send rollouts and reports for ever; begun anew when the run is another one."""
        while True:
            self._sending = [
                asyncio.create_task(send_rollouts(self._outbox, self._session), name="echo2-rollouts"),
                asyncio.create_task(send_reports(self._reports, self._session), name="echo2-reports"),
            ]
            try:
                await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
                for task in self._sending:
                    if task.done() and not task.cancelled():
                        task.result()
            finally:
                await _cancelled(*self._sending)

    async def _wind_up(self) -> None:
        """While the mail still goes: stop generating, send what is finished, say good-bye."""
        await _cancelled(self._life)
        stopping = asyncio.create_task(self._stand_down())
        await flush(self._outbox, self._reports, self._flush_s)
        await self._session.leave(self._end_cause, LEAVE_S)
        await stopping


async def _cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    wanted = [task for task in tasks if task is not None]
    for task in wanted:
        task.cancel()
    await asyncio.gather(*wanted, return_exceptions=True)
