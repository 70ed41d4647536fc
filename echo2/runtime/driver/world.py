"""The live world's driver: happenings become facts, decisions become happenings. It never decides.

The counterpart of `echo2.sim.world`, around the same scheduler. Everything here runs on one event loop;
training, the ledger, judging and snapshots have threads of their own. What is done about workers, groups and
snapshots is in the modules of these names; here they are put together, and the learner trains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from echo2.config import Config
from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.scheduler import Scheduler
from echo2.policy.settings import SchedulerSettings
from echo2.runtime.driver import hub as h
from echo2.runtime.driver.desk import Desk
from echo2.runtime.driver.groups import Groups
from echo2.runtime.driver.learner_host import LearnerHost, Step
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.driver.life import Life
from echo2.runtime.driver.prompts import PromptReader
from echo2.runtime.driver.records import Records
from echo2.runtime.driver.snapshots import Snapshots
from echo2.runtime.driver.workers import Workers
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.sim.log import RunLog

TICK_S = 0.5


class LiveWorld(Life):
    """Build it, set `hub` and `workers.processes`, `begin`, then wait for `over`."""

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
        super().__init__(Scheduler(settings), records, log)
        self.settings, self.config = settings, config
        self.host, self.queue, self.desk, self.prompts = host, queue, desk, prompts
        self.stepping: asyncio.Task[None] | None = None
        self.snapshots = Snapshots(self, store, settings, offers)
        self.workers = Workers(self, config, offers, self.snapshots, say)
        self.groups = Groups(self, config, settings.group_size, queue, desk, prompts, stop_token_ids)
        # With these it is the hub's `Happenings`.
        self.arrived, self.gone, self.reported = (
            self.workers.arrived,
            self.workers.gone,
            self.workers.reported,
        )
        self.delivered = self.groups.delivered
        self._show = show
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="echo2-learner")
        self.carry = {
            d.StartGroup: self.groups.start,
            d.SetTimer: self.set_timer,
            d.TrainStep: self._train,
            d.PublishSnapshot: self.snapshots.publish,
            d.Reroute: self.snapshots.reroute,
            d.FetchSnapshot: self.snapshots.fetch,
            d.AbortTransfer: self.snapshots.abort,
            d.StartWorker: self.workers.start,
            d.StopWorker: self.workers.stop,
            d.CancelGroup: self.groups.cancel,
            d.DropGroup: self.groups.drop,
            d.FinishRun: self._finish,
        }

    # ---- beginning and end -----------------------------------------------------------------------

    def begin(self, facts: list[f.Fact]) -> None:
        """Offer the local workers and start the run; `facts` are the recovered groups and the start."""
        self.workers.offer_local()
        for fact in facts:
            self.tell(replace(fact, t_s=self.now()))
        self.spawn(self._look_after())

    async def stop(self) -> None:
        """Nothing new from now on; what is being written, and the step that runs, may end."""
        self.leaving = True
        await self.end_tasks(self.stepping)
        await self.queue.settled()

    def close(self) -> None:
        """End the log and the threads; one that is at work still is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.snapshots.close()
        self._log.close()

    def _finish(self, decision: d.FinishRun) -> None:
        left_out = self.prompts.trouble()
        if left_out and not self.prompts.asked:
            self.fail(UserError(f"{decision.reason}, but {left_out}: train.max_prompt_tokens is too low"))
        if not self.over.done():
            self.over.set_result(f"{decision.reason}; {left_out}" if left_out else decision.reason)

    # ---- the deadline on everything --------------------------------------------------------------

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
        there = sum(seat.present for seat in self.hub.seats.values())
        why = list(self.workers.why_left.items())[-3:]
        causes = "".join(f"; {name} left: {cause}" for name, cause in why)
        return (
            f"the learner waits for {self.scheduler.waiting_for()}, {self._up()} workers are up, {there} of "
            f"{len(self.hub.seats)} are there, {len(self.desk.open)} groups are open{causes}"
        )

    def _up(self) -> int:
        return sum(seat.state == h.UP for seat in self.hub.seats.values())

    # ---- learner ---------------------------------------------------------------------------------

    def step_running(self) -> bool:
        """Whether the learner's thread is at work."""
        return self.stepping is not None and not self.stepping.done()

    async def save_checkpoint(self) -> float:
        """Write a checkpoint of the learner as it is; not while a step runs. Raises UserError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.host.save, self._state())

    def _state(self) -> dict[str, Any]:
        usd = sum(self.records.usd(self.now()).values()) + self.records.carried_usd
        return {"usd": usd, "run_id": self.hub.run_id}

    def _train(self, decision: d.TrainStep) -> None:
        for group_id in decision.group_ids:
            self.desk.open.pop(group_id, None)
        self.stepping = self.spawn(self._step(decision))

    async def _step(self, decision: d.TrainStep) -> None:
        began = time.monotonic()
        version = decision.version + 1
        publish = version % self.settings.publish_period == 0 and version < self.settings.total_steps
        loop = asyncio.get_running_loop()
        step = await loop.run_in_executor(self._thread, self._work, decision, publish)
        if step.weights is not None and not self.leaving:
            await self.snapshots.take(version, step.weights)
        train_s = time.monotonic() - began
        size = self.snapshots.payload_bytes() if publish else 0.0
        now = self.progress_s = self.now()
        self._show(self.records.step(now, step.metrics, train_s, step.lengths, self.scheduler, self._up()))
        self.tell(f.StepFinished(now, step.metrics.version, train_s, size))

    def _work(self, decision: d.TrainStep, publish: bool) -> Step:
        """In the learner's thread."""
        step = self.host.step(self.queue.ledger, decision.version, decision.group_ids, publish)
        version = step.metrics.version
        if version % self.config.train.checkpoint_every == 0 or version >= self.settings.total_steps:
            self.host.save(self._state())
        return step
