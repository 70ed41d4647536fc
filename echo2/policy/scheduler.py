"""The scheduler: one state machine that both worlds drive.

`observe(fact) -> decisions`. The simulation and the live runtime tell it what happened and carry out what
it answers; neither decides anything. It has no clock (every fact carries its time), no I/O and no
randomness, so the same facts give the same decisions to the byte.

It composes the parts that decide: the admission gate (`staleness`), who generates what (`dispatch`), what
is trained (`training`), what is published to whom (`publication`), which workers are worth their price
(`roster`), and how they leave (`departures`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from echo2.policy import facts as f
from echo2.policy.decisions import Decision, FinishRun, StopWorker
from echo2.policy.departures import Departures
from echo2.policy.dispatch import Dispatch
from echo2.policy.fleet import NONE, UP, Fleet, Status, Worker
from echo2.policy.offers import Offers
from echo2.policy.publication import Publication
from echo2.policy.roster import Roster
from echo2.policy.settings import SchedulerSettings
from echo2.policy.staleness import AdmissionGate, Group, VersionLedger
from echo2.policy.training import Training

TRAIN_TIME_MEMORY = 0.2


class Scheduler:
    """See the module. Not re-entrant; one instance per run."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.fleet = Fleet()
        self.ledger = VersionLedger()
        self.gate = AdmissionGate(settings.staleness_bound, settings.rollouts_per_step)
        self.gate.last_version = settings.total_steps
        self.dispatch = Dispatch(settings, self.fleet, self.ledger, self.gate)
        self.publication = Publication(settings, self.fleet, self.ledger)
        self.roster = Roster(settings, self.fleet)
        self._offers = Offers(self.fleet, self.dispatch, self.roster)
        self._train = Training(settings, self.gate, self.dispatch)
        self._leave = Departures(self.dispatch, self.publication, self.roster)
        self.bubble_s = {"rollouts": 0.0, "publication": 0.0, "workers": 0.0}
        self.late_rollouts = 0
        self.finished = False
        self.now = 0.0
        self.train_s = settings.train_s
        self._started = False
        self._handlers: dict[type, Callable[[Any, list[Decision]], None]] = {
            f.RolloutFinished: self._rollout_finished,
            f.GroupFailed: self._group_failed,
            f.GroupRecovered: self._group_recovered,
            f.RunStarted: self._run_started,
            f.WorkerOffered: self._worker_offered,
            f.OfferWithdrawn: self._offers.withdrawn,
            f.WorkerJoined: self._worker_joined,
            f.WorkerLeft: self._worker_left,
            f.PriceChanged: self._offers.price,
            f.RateMeasured: self._offers.rate,
            f.LinkMeasured: self._offers.link,
            f.StepFinished: self._step_finished,
            f.SnapshotLive: self._snapshot_live,
            f.SnapshotFailed: self._snapshot_failed,
            f.RelayFailed: self.publication.relay_failed,
            f.TimerFired: self._timer_fired,
        }

    def observe(self, fact: f.Fact) -> list[Decision]:
        """Take in one fact and answer with what is to be done. Facts come in the order of their time."""
        t_s = fact.t_s
        if t_s < self.now:
            raise ValueError(f"time goes back from {self.now} to {t_s} s with {fact}")
        if not self.training and self._started and not self.finished:
            self.bubble_s[self.waiting_for()] += t_s - self.now
        self.now = t_s
        out: list[Decision] = []
        self._handlers[type(fact)](fact, out)
        if self.dispatch.prompts.empty:
            self._check_exhausted(out)
        return out

    @property
    def training(self) -> bool:
        """Whether the learner trains a step now."""
        return self._train.busy

    def waiting_for(self) -> str:
        """What an idle learner waits for: rollouts being made, a publication under way, or workers."""
        if self.gate.running:
            return "rollouts"
        return "publication" if self.publication.in_transit else "workers"

    # ---- the pool ------------------------------------------------------------------------------

    def _run_started(self, fact: f.RunStarted, out: list[Decision]) -> None:
        if self._started:
            raise ValueError(f"the run has begun already; it cannot begin again at version {fact.version}")
        self.ledger.resume(fact.version)
        self.dispatch.resume(fact.next_prompt, fact.next_group, fact.again)
        self.gate.trained = fact.version * self.settings.rollouts_per_step
        self._started = True
        if fact.version >= self.settings.total_steps:
            self._finish("all steps are done", out)
            return
        self.roster.begin(fact.t_s, out)
        self.publication.begin(fact.t_s, out)
        self.dispatch.recount_claims()
        self._try_train(out)
        self._fill_all(out)

    def _group_recovered(self, fact: f.GroupRecovered, out: list[Decision]) -> None:
        if self._started:
            raise ValueError(f"groups are recovered before the run begins, not after: {fact}")
        size, oldest = self.settings.group_size, fact.oldest_version
        group = Group(fact.group_id, fact.prompt, fact.attempt, fact.worker_id, size, oldest, fact.t_s)
        group.remaining, group.tokens = 0, fact.tokens
        self._train.add(group)

    def _worker_offered(self, fact: f.WorkerOffered, out: list[Decision]) -> None:
        self.roster.offered(self.fleet.offer(fact.offer))
        self._review(out)

    def _worker_joined(self, fact: f.WorkerJoined, out: list[Decision]) -> None:
        worker = self.fleet.get(fact.worker_id)
        if worker is None or self.finished or fact.incarnation <= worker.incarnation:
            return
        if worker.status is Status.STOPPING:
            # It came up too late or crossed its own stop on the way: `WorkerLeft` is still owed for it.
            return
        anew, leaving = worker.status in UP, worker.status is Status.DRAINING
        if anew:
            self._leave.take_down(self.now, worker, "it started anew without leaving", out)
        worker.reset(Status.DRAINING if leaving else Status.READY)
        worker.incarnation = fact.incarnation
        self._leave.stop_if_idle(self.now, worker, out)
        if leaving:
            self._fill_all(out)
            return
        worker.version = self.publication.known(fact.holds_version) if self._started else fact.holds_version
        worker.progress_s = fact.t_s
        worker.lease_until_s = max(worker.lease_until_s, fact.t_s + worker.offer.min_lease_s)
        self.publication.catch_up(fact.t_s, worker, out)
        relieved = self.roster.reached(worker) if worker.inbound == NONE else []
        self._leave.drain(self.now, relieved, out)
        self._fill_all(out) if anew else self._fill(worker, out)

    def _worker_left(self, fact: f.WorkerLeft, out: list[Decision]) -> None:
        worker = self.fleet.get(fact.worker_id)
        if worker is None or fact.incarnation < worker.incarnation:
            return
        self._leave.take_down(self.now, worker, fact.cause, out)
        worker.reset(Status.GONE if worker.withdrawn else Status.OFFERED)
        worker.incarnation = max(worker.incarnation, fact.incarnation)
        self.dispatch.recount_claims()
        if not self.finished:
            self.roster.lost(fact.t_s, worker, fact.cause)
            self._review(out)
            self._fill_all(out)

    def _review(self, out: list[Decision]) -> None:
        """Let the roster start and stop workers; those told to stop finish what they have first."""
        if not self._started or self.finished:
            return
        self._leave.drain(self.now, self.roster.review(self.now, self.train_s, out), out)

    # ---- rollouts ------------------------------------------------------------------------------

    def _rollout_finished(self, fact: f.RolloutFinished, out: list[Decision]) -> None:
        group = self.dispatch.groups.get(fact.group_id)
        if group is None or group.worker_id != fact.worker_id:
            self.late_rollouts += 1
            return
        if fact.oldest_version > self.ledger.published:
            raise ValueError(f"version {self.ledger.published} is the newest published one, but: {fact}")
        worker = self.fleet[fact.worker_id]
        worker.progress_s = fact.t_s
        if self.dispatch.rollout_ended(group, worker, fact.tokens, fact.oldest_version):
            self._group_complete(group, worker, out)
        # Most rollouts end on a worker that is still full: its group's other members wait in the engine.
        if worker.in_flight < worker.offer.slots:
            self._fill(worker, out)

    def _group_failed(self, fact: f.GroupFailed, out: list[Decision]) -> None:
        group = self.dispatch.groups.get(fact.group_id)
        if group is None or group.worker_id != fact.worker_id:
            return
        worker = self.fleet[fact.worker_id]
        worker.progress_s = fact.t_s
        self.dispatch.fail(fact.t_s, group, fact.cause, out)
        self._leave.stop_if_idle(self.now, worker, out)
        self._fill_all(out)

    def _group_complete(self, group: Group, worker: Worker, out: list[Decision]) -> None:
        self._train.add(group)
        self._leave.stop_if_idle(self.now, worker, out)
        self._try_train(out)

    def _fill(self, worker: Worker, out: list[Decision]) -> None:
        if self._started and not self.finished:
            self.dispatch.fill(self.now, worker, out)

    def _fill_all(self, out: list[Decision]) -> None:
        if self._started and not self.finished:
            self.dispatch.fill_all(self.now, out)

    # ---- training and publication ---------------------------------------------------------------

    def _try_train(self, out: list[Decision]) -> None:
        if self.training or self.finished or not self._started:
            return
        if self._train.go_on(self.now, self.ledger.version, out):
            self._fill_all(out)

    def _step_finished(self, fact: f.StepFinished, out: list[Decision]) -> None:
        self.ledger.advance(fact.version)
        self._train.busy = False
        self.train_s += TRAIN_TIME_MEMORY * (fact.train_s - self.train_s)
        if fact.version >= self.settings.total_steps:
            self._finish("all steps are done", out)
            return
        if fact.version % self.settings.publish_period == 0:
            self.publication.publish(fact.t_s, fact.snapshot_bytes, self.train_s, out)
        self.dispatch.cancel_doomed(fact.t_s, out)
        self._try_train(out)
        if self.roster.due(fact.t_s):
            self._review(out)
        self._fill_all(out)

    def _snapshot_live(self, fact: f.SnapshotLive, out: list[Decision]) -> None:
        worker = self._current(fact.worker_id, fact.incarnation)
        if worker is None or fact.version > self.ledger.published:
            return
        was_late = worker.late
        worker.progress_s = fact.t_s
        self.publication.live(fact.t_s, worker, fact.version, out)
        relieved = self.roster.reached(worker)
        if relieved or was_late:
            self._leave.drain(self.now, relieved, out)
        self._fill(worker, out)

    def _snapshot_failed(self, fact: f.SnapshotFailed, out: list[Decision]) -> None:
        worker = self._current(fact.worker_id, fact.incarnation)
        if worker is not None and self.publication.concerns(worker, fact.version, fact.source_id):
            self._transfer_failed(worker, fact.cause, out)

    def _transfer_failed(self, worker: Worker, cause: str, out: list[Decision]) -> None:
        if not self.publication.failed(self.now, worker, out):
            self._expel(worker, f"cannot receive snapshots: {cause}", out)

    def _expel(self, worker: Worker, cause: str, out: list[Decision]) -> None:
        """Give a worker up at once: its groups go to others."""
        self._leave.expel(self.now, worker, cause, out)
        self._review(out)
        self._fill_all(out)

    def _current(self, worker_id: str, incarnation: int) -> Worker | None:
        worker = self.fleet.get(worker_id)
        up = worker is not None and worker.status in UP and worker.incarnation == incarnation
        return worker if up else None

    def _timer_fired(self, fact: f.TimerFired, out: list[Decision]) -> None:
        if self.finished:
            return
        kind, _, rest = fact.name.partition(":")
        if kind == "late":
            if self.publication.late(self.now, int(rest.partition(":")[0]), out):
                self.dispatch.recount_claims()
                self._fill_all(out)
        elif kind == "transfer":
            version = int(rest.partition(":")[0])
            for late in self.publication.overdue(self.now, version):
                # What became of the one before may have replaced this one's transfer.
                if self.publication.give_up(self.now, late, version, out):
                    self._transfer_failed(late, f"version {version} is overdue", out)
        elif kind == "watch":
            name, _, incarnation = rest.rpartition(":")
            worker = self._current(name, int(incarnation))
            if worker is not None and (stuck := self.dispatch.check_progress(self.now, worker, out)):
                self._expel(worker, stuck, out)
        elif kind == "review":
            self._review(out)
        elif kind == "startup" and (worker := self.roster.overdue(rest)) is not None:
            self._expel(worker, "it has not come up in time", out)

    def _check_exhausted(self, out: list[Decision]) -> None:
        """No prompt is left, none runs, and what is complete does not make a batch: a clear end."""
        idle = self._started and not self.training and not self.finished and not self.gate.running
        if idle and not self._train.batch_ready:
            count = self.settings.prompts
            self._finish(f"the data is exhausted: all {count} prompts have been generated", out)

    def _finish(self, reason: str, out: list[Decision]) -> None:
        self.finished = True
        for worker in self.fleet.in_status(Status.STARTING, *UP):
            out.append(StopWorker(self.now, worker.worker_id, reason, 0.0))
        out.append(FinishRun(self.now, self.ledger.version, reason))
