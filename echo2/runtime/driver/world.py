"""The live world's driver: happenings become facts, decisions become happenings. It never decides.

The counterpart of `echo2.sim.world`, around the same scheduler. Everything here runs on one event loop;
training, the ledger, judging and snapshots have threads of their own. `tell` gives a fact to the scheduler,
logs it with its answers and carries them out; facts that arise meanwhile wait their turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from echo2.config import Config
from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.links import LEARNER
from echo2.policy.scheduler import Scheduler
from echo2.policy.settings import SchedulerSettings
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.data.task import Prompt
from echo2.runtime.driver import hub as h
from echo2.runtime.driver.desk import Desk, OpenGroup
from echo2.runtime.driver.learner_host import LearnerHost, Step
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.driver.processes import LocalProcesses
from echo2.runtime.driver.prompts import BrokenTaskError, PromptReader
from echo2.runtime.driver.records import Records
from echo2.runtime.rollout.request import group_seed
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.sim.log import RunLog

STOP_S = 30.0
REASON_CHARS = 500
TICK_S = 0.5


class LiveWorld:
    """One life of a live run. Build it, set `hub` and `processes`, `begin`, then wait for `over`."""

    hub: h.Hub
    processes: LocalProcesses

    def __init__(
        self,
        config: Config,
        settings: SchedulerSettings,
        offers: Mapping[str, f.WorkerOffer],
        host: LearnerHost,
        queue: LedgerQueue,
        desk: Desk,
        store: SnapshotStore,
        records: Records,
        log: RunLog,
        prompts: PromptReader,
        stop_token_ids: tuple[int, ...],
        show: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self.scheduler = Scheduler(settings)
        self.settings, self.config = settings, config
        self.offers, self.host, self.queue, self.desk, self.store = offers, host, queue, desk, store
        self.records, self.prompts = records, prompts
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.progress_s = 0.0
        self.stepping: asyncio.Task[None] | None = None
        self.leaving = False
        self._began = time.monotonic()
        self._log, self._show, self._say = log, show, say
        self._stop_token_ids = stop_token_ids
        self._pools = {pool.name: pool for pool in config.pool}
        self._inbox: deque[f.Fact] = deque()
        self._carrying = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._snapshots: dict[int, asyncio.Future[m.Manifest]] = {}
        self._why_left: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="echo2-learner")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="echo2-snapshot")
        self._up_since_s: dict[str, float] = {}
        self._carry: dict[type, Callable[[Any], None]] = {
            d.StartGroup: self._start_group,
            d.SetTimer: self._set_timer,
            d.TrainStep: self._train,
            d.PublishSnapshot: self._publish,
            d.FetchSnapshot: self._fetch,
            d.AbortTransfer: self._abort,
            d.StartWorker: self._start_worker,
            d.StopWorker: self._stop_worker,
            d.CancelGroup: self._cancel_group,
            d.DropGroup: self._drop_group,
            d.FinishRun: self._finish,
        }

    # ---- facts and decisions ---------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since this life of the run began."""
        return time.monotonic() - self._began

    def tell(self, fact: f.Fact) -> None:
        """Give a fact to the scheduler and carry out its decisions.

        Once the run is left, only a step that ends is told, for the log; nothing is begun any more.
        """
        if self.leaving and not isinstance(fact, f.StepFinished):
            return
        self._inbox.append(fact)
        if self._carrying:
            return
        self._carrying = True
        try:
            while self._inbox and not self.over.done():
                fact = self._inbox.popleft()
                answers = self.scheduler.observe(fact)
                self._write_log(fact, answers)
                for answer in () if self.leaving else answers:
                    self._carry[type(answer)](answer)
        except Exception as error:
            self.fail(error)
        finally:
            self._carrying = False

    def _write_log(self, fact: f.Fact, answers: list[d.Decision]) -> None:
        try:
            self._log.write(fact, answers)
        except OSError as error:
            raise UserError(
                f"the run's log cannot be written ({error.strerror}); free some space and go on with --resume"
            ) from error

    def begin(self, facts: list[f.Fact]) -> None:
        """Offer the local workers and start the run; `facts` are the recovered groups and the start."""
        for offer in self.offers.values():
            if self._pools[offer.pool].local:
                self.tell(f.WorkerOffered(self.now(), offer))
        for fact in facts:
            self.tell(replace(fact, t_s=self.now()))
        self._spawn(self._look_after())

    def fail(self, error: BaseException) -> None:
        """The run cannot go on."""
        if not self.over.done():
            self.over.set_exception(error)

    async def stop(self) -> None:
        """Nothing new from now on; what is being written, and the step that runs, may end."""
        self.leaving = True
        for timer in self._timers.values():
            timer.cancel()
        ending = [task for task in self._tasks if task is not self.stepping]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.queue.settled()

    def close(self) -> None:
        """End the log and the threads; one that is at work still is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._log.close()

    def step_running(self) -> bool:
        """Whether the learner's thread is at work."""
        return self.stepping is not None and not self.stepping.done()

    async def save_checkpoint(self) -> float:
        """Write a checkpoint of the learner as it is; not while a step runs. Raises UserError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.host.save, self._state())

    def _state(self) -> dict[str, Any]:
        usd = sum(self.records.usd(self.now()).values()) + self.records.carried_usd
        return {"usd": usd, "run_id": self.hub.run_id}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _look_after(self) -> None:
        """Leases, and the deadline on everything: a run in which nothing happens is ended."""
        patience = self.config.train.patience_s
        while True:
            await asyncio.sleep(TICK_S)
            self.hub.expire()
            if self.step_running():
                self.progress_s = self.now()
            elif self.now() - self.progress_s > patience:
                raise UserError(
                    f"nothing has happened for {patience:g} s: {self._who_waits()}; see to it and go on with "
                    "--resume, or raise train.patience_s"
                )

    def _who_waits(self) -> str:
        seats = self.hub.seats.values()
        there = sum(seat.present for seat in seats)
        up = sum(seat.state == h.UP for seat in seats)
        causes = "".join(f"; {name} left: {cause}" for name, cause in list(self._why_left.items())[-3:])
        return (
            f"the learner waits for {self.scheduler.waiting_for()}, {up} workers are up, {there} of "
            f"{len(self.hub.seats)} are there, {len(self.desk.open)} groups are open{causes}"
        )

    # ---- workers (hub.Happenings) ----------------------------------------------------------------

    def arrived(self, seat: h.Seat) -> None:
        """A process has taken a seat."""
        if seat.state == h.STARTING:
            self._send_start(seat)
        elif not seat.local:
            self.tell(f.WorkerOffered(self.now(), self.offers[seat.worker_id]))

    def gone(self, seat: h.Seat, cause: str) -> None:
        """The process that held a seat is gone."""
        if seat.local:
            self._left(seat, cause)
            return
        self.tell(f.OfferWithdrawn(self.now(), seat.worker_id, cause))
        # A machine that goes is no failed start: when it comes back it is used at once.
        self._left(seat, cause, "preempted")

    def exited(self, worker_id: str, cause: str) -> None:
        """A local process ended by itself."""
        seat = self.hub.seats[worker_id]
        if seat.present:
            self.hub.release(seat, cause)
        else:
            self._left(seat, cause)

    def reported(self, seat: h.Seat, report: m.Report) -> None:
        """What a worker reports becomes facts."""
        now, name = self.now(), seat.worker_id
        match report:
            case m.Up():
                self._came_up(seat, report)
            case m.Live():
                self.records.pauses_s.append(report.pause_s)
                self.records.transfers_s.append(report.transfer_s)
                self.records.metrics.arrived(report.version, now, self._up_since_s.get(name, now))
                self.progress_s = now
                self.tell(f.SnapshotLive(now, name, seat.incarnation, report.version))
            case m.Failed():
                failed = f.SnapshotFailed(now, name, seat.incarnation, report.version, LEARNER, report.cause)
                self.tell(failed)
            case m.GroupFailed():
                self.tell(f.GroupFailed(now, name, report.group_id, report.cause))
            case m.Rate():
                self.tell(f.RateMeasured(now, name, report.rollouts_per_s))
            case m.Link():
                self.tell(f.LinkMeasured(now, name, report.uplink_bps, report.downlink_bps))
            case m.Down():
                self._left(seat, report.cause)

    def _came_up(self, seat: h.Seat, report: m.Up) -> None:
        if seat.state != h.STARTING:
            return
        seat.state = h.UP
        now = self._up_since_s[seat.worker_id] = self.progress_s = self.now()
        try:
            proven = self.store.manifest(report.version).weights == report.weights
        except UserError:
            proven = False
        holds = report.version if proven else -1
        self.tell(f.WorkerJoined(now, seat.worker_id, seat.incarnation, holds))

    def _left(self, seat: h.Seat, cause: str, kind: str = "") -> None:
        """The start that was under way, or up, is over; it is paid for no more.

        `kind` is what the scheduler is told where that is not the cause itself.
        """
        if seat.state == h.STANDBY:
            return
        if seat.state == h.STARTING and seat.local and self.processes.returning(seat.worker_id):
            return  # it is the process before that has gone, and the new one comes now
        stopped = seat.state == h.STOPPING
        seat.state = h.STANDBY
        now = self.now()
        self.records.meters[seat.worker_id].stop(now)
        if not stopped:
            self.records.preemptions += 1
            self._lost(seat, cause)
        told = "stopped" if stopped else kind or cause
        self.tell(f.WorkerLeft(now, seat.worker_id, seat.incarnation, told))

    def _lost(self, seat: h.Seat, cause: str) -> None:
        """Say that a worker is lost, and why: its own log is on another screen, or in a file."""
        if self.leaving:
            return
        self._why_left.pop(seat.worker_id, None)
        self._why_left[seat.worker_id] = cause
        self._say(f"worker {seat.worker_id} is lost: {cause}")

    def _start_worker(self, decision: d.StartWorker) -> None:
        seat = self.hub.seats[decision.worker_id]
        seat.incarnation += 1
        seat.state = h.STARTING
        self.records.meters[seat.worker_id].start(self.now())
        if seat.present and not (seat.local and not self.processes.stays(seat.worker_id)):
            self._send_start(seat)
        elif seat.local:
            # One that runs without a seat says hello soon; one that leaves is waited for.
            try:
                self.processes.start(seat.worker_id, self._pools[seat.pool], self._options(seat.worker_id))
            except OSError as error:
                self._left(seat, f"its process cannot be started: {error.strerror}")
        else:
            self._left(seat, "it is not there")

    def _options(self, worker_id: str) -> list[str]:
        """What the command line of a local worker says beyond where and who."""
        pool, offer = self._pools[self.offers[worker_id].pool], self.offers[worker_id]
        options: list[str] = []
        if pool.engine == "simulated":
            rollout = self.config.rollout
            tokens = min(rollout.max_tokens, max(1, round(rollout.tokens or rollout.max_tokens / 2)))
            options += ["--simulated", f"{offer.rollouts_per_s * tokens:.6g}:{tokens}"]
        if pool.shape_links:
            options += ["--uplink-mbps", f"{offer.uplink_bps / 1e6:.6g}"]
            options += ["--downlink-mbps", f"{offer.downlink_bps / 1e6:.6g}"]
            options += ["--link", pool.link_shape] if pool.link_shape else []
        return options

    def _send_start(self, seat: h.Seat) -> None:
        train, rollout = self.config.train, self.config.rollout
        start = m.Start(
            incarnation=seat.incarnation,
            version=self.scheduler.ledger.published,
            slots=self.offers[seat.worker_id].slots,
            context_tokens=train.max_prompt_tokens + rollout.max_tokens,
            swap=train.swap,
        )
        self.hub.post(seat.worker_id, start)

    def _stop_worker(self, decision: d.StopWorker) -> None:
        seat = self.hub.seats[decision.worker_id]
        if seat.state not in (h.STARTING, h.UP):
            return
        seat.state = h.STOPPING
        if not seat.present:
            if seat.local:
                self.processes.kill(seat.worker_id)
            self._left(seat, "stopped")
            return
        self.hub.post(seat.worker_id, m.Stop(reason=decision.reason[:REASON_CHARS]))
        if seat.local:
            self.hub.post(seat.worker_id, m.Exit(reason=decision.reason[:REASON_CHARS]))
            self.processes.leave(seat.worker_id)
        self._spawn(self._stop_deadline(seat, seat.incarnation))

    async def _stop_deadline(self, seat: h.Seat, incarnation: int) -> None:
        await asyncio.sleep(STOP_S)
        if seat.incarnation == incarnation and seat.state == h.STOPPING:
            if seat.local:
                self.processes.kill(seat.worker_id)
            self.hub.release(seat, f"it has not stopped within {STOP_S:g} s")

    # ---- rollouts --------------------------------------------------------------------------------

    def _start_group(self, decision: d.StartGroup) -> None:
        self.records.metrics.dispatched_rollouts += decision.rollouts
        try:
            prompt, ids = self.prompts.encoded(decision.prompt)
        except BrokenTaskError:
            raise
        except UserError as error:
            self.tell(f.GroupFailed(self.now(), decision.worker_id, decision.group_id, str(error)))
            return
        group = OpenGroup(
            decision.group_id, decision.worker_id, prompt, ids, decision.attempt, decision.rollouts
        )
        self.desk.open[group.group_id] = group
        train = self.config.train
        order = m.Generate(
            group_id=group.group_id,
            prompt=decision.prompt,
            attempt=decision.attempt,
            prompt_ids=ids,
            rollouts=decision.rollouts,
            seed=group_seed(self.config.seed, decision.prompt, decision.version),
            max_tokens=self.config.rollout.max_tokens,
            stop_token_ids=self._stop_token_ids,
            temperature=train.temperature,
            top_k=train.top_k,
            top_p=train.top_p,
        )
        self._spawn(self._send_group(group, order, self.hub.seats[group.worker_id].incarnation))

    async def _send_group(self, group: OpenGroup, order: m.Generate, incarnation: int) -> None:
        await self.queue.dispatch(group.tickets())
        seat = self.hub.seats[group.worker_id]
        if self.desk.open.get(group.group_id) is group and seat.incarnation == incarnation:
            self.hub.post(group.worker_id, order)

    def _cancel_group(self, decision: d.CancelGroup) -> None:
        self.hub.post(decision.worker_id, m.Cancel(group_id=decision.group_id))

    def _drop_group(self, decision: d.DropGroup) -> None:
        group = self.desk.open.pop(decision.group_id, None)
        size = group.rollouts if group is not None else self.settings.group_size
        self.records.metrics.dropped_rollouts += size
        self.records.metrics.requeued_rollouts += size if decision.requeued else 0
        self._spawn(self._give_up(decision))

    async def _give_up(self, decision: d.DropGroup) -> None:
        await self.queue.give_up(decision.group_id, decision.requeued, decision.reason)

    async def delivered(self, seat: h.Seat, upload: m.Upload) -> list[m.Verdict]:
        """Rollouts at the door."""
        newest = self.scheduler.ledger.published
        verdicts, accepted, broken = await self.desk.take(seat.worker_id, upload, newest)
        for group_id, cause in broken.items():
            self.tell(f.GroupFailed(self.now(), seat.worker_id, group_id, f"refused at the door: {cause}"))
        if accepted and not self.leaving:
            prompts = {
                rollout.group_id: group.prompt
                for rollout in accepted
                if (group := self.desk.open.get(rollout.group_id)) is not None
            }
            self._spawn(self._judge(accepted, prompts))
        return verdicts

    async def _judge(self, accepted: list[Rollout], prompts: dict[int, Prompt]) -> None:
        counting = [rollout for rollout in accepted if rollout.group_id in prompts]
        for judged in await self.desk.judge(counting, prompts):
            rollout = judged.rollout
            self.records.finished(rollout.worker_id, rollout.tokens)
            now = self.progress_s = self.now()
            self.tell(
                f.RolloutFinished(
                    now, rollout.worker_id, rollout.group_id, rollout.tokens, rollout.oldest_version
                )
            )

    # ---- learner ---------------------------------------------------------------------------------

    def _train(self, decision: d.TrainStep) -> None:
        for group_id in decision.group_ids:
            self.desk.open.pop(group_id, None)
        self.stepping = self._spawn(self._step(decision))

    async def _step(self, decision: d.TrainStep) -> None:
        began = time.monotonic()
        version = decision.version + 1
        publish = version % self.settings.publish_period == 0 and version < self.settings.total_steps
        loop = asyncio.get_running_loop()
        step = await loop.run_in_executor(self._thread, self._work, decision, publish)
        if step.weights is not None and not self.leaving:
            await self._written()
            self._snapshots[version] = self.write_snapshot(version, step.weights)
        train_s = time.monotonic() - began
        size = self.settings.snapshot_bytes if publish else 0.0
        now = self.progress_s = self.now()
        up = sum(seat.state == h.UP for seat in self.hub.seats.values())
        self._show(self.records.step(now, step.metrics, train_s, step.lengths, self.scheduler, up))
        self.tell(f.StepFinished(now, step.metrics.version, train_s, size))

    def _work(self, decision: d.TrainStep, publish: bool) -> Step:
        """In the learner's thread."""
        step = self.host.step(self.queue.ledger, decision.version, decision.group_ids, publish)
        version = step.metrics.version
        if version % self.config.train.checkpoint_every == 0 or version >= self.settings.total_steps:
            self.host.save(self._state())
        return step

    # ---- snapshots -------------------------------------------------------------------------------

    def write_snapshot(self, version: int, weights: Mapping[str, Any]) -> asyncio.Future[m.Manifest]:
        """Cut a version into chunks, in a thread."""
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._writer, self.store.put, version, weights)
        # Whoever waits for it raises its error; when the run ends first, nobody does.
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return writing

    async def _written(self) -> None:
        """Wait for the snapshots that are being written: no more than one copy of the weights waits."""
        for version, writing in list(self._snapshots.items()):
            await asyncio.shield(writing)
            self._snapshots.pop(version, None)

    def _publish(self, decision: d.PublishSnapshot) -> None:
        self._spawn(self._order_fetches(decision.version, decision.plan.order))

    def _fetch(self, decision: d.FetchSnapshot) -> None:
        self._spawn(self._order_fetches(decision.version, (decision.worker_id,)))

    async def _order_fetches(self, version: int, workers: tuple[str, ...]) -> None:
        self.records.metrics.published(version, self.now())
        if (writing := self._snapshots.get(version)) is not None:
            await asyncio.shield(writing)
        links = self.settings.links
        home = links.index(links.learner_site)
        for name in workers:
            self.hub.post(name, m.Fetch(version=version))
            price = float(links.egress[home, links.index(self.offers[name].site)])
            self.records.egress_usd[name] += price * self.settings.snapshot_bytes / 1e9

    def _abort(self, decision: d.AbortTransfer) -> None:
        self.hub.post(decision.worker_id, m.Abort(version=decision.version))

    # ---- time ------------------------------------------------------------------------------------

    def _set_timer(self, decision: d.SetTimer) -> None:
        if (old := self._timers.pop(decision.name, None)) is not None:
            old.cancel()
        delay = max(0.0, decision.at_s - self.now())
        loop = asyncio.get_running_loop()
        self._timers[decision.name] = loop.call_later(delay, self._timer_fired, decision.name)

    def _timer_fired(self, name: str) -> None:
        self._timers.pop(name, None)
        self.tell(f.TimerFired(self.now(), name))

    def _finish(self, decision: d.FinishRun) -> None:
        left_out = self.prompts.trouble()
        if left_out and not self.prompts.asked:
            self.fail(UserError(f"{decision.reason}, but {left_out}: train.max_prompt_tokens is too low"))
        if not self.over.done():
            self.over.set_result(f"{decision.reason}; {left_out}" if left_out else decision.reason)
