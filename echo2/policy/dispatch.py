"""Dispatch: which worker generates which prompt next, and what becomes of a group until it is complete.

Called by the scheduler. A worker gets groups while it has free slots and the admission gate is open for the
version it holds. Where the gate admits less than the pool could run, each worker gets a share by its rate,
so that a batch ends everywhere at about the same time.
"""

from __future__ import annotations

import heapq

from echo2.policy.decisions import CancelGroup, Decision, DropGroup, SetTimer, StartGroup
from echo2.policy.fleet import NONE, Fleet, Status, Worker
from echo2.policy.settings import SchedulerSettings
from echo2.policy.staleness import AdmissionGate, Group, PromptQueue, VersionLedger


class Dispatch:
    """Groups from start to completion. Carries no clock: the time comes with every call."""

    def __init__(
        self, settings: SchedulerSettings, fleet: Fleet, ledger: VersionLedger, gate: AdmissionGate
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._ledger = ledger
        self._gate = gate
        self.prompts = PromptQueue(settings.prompts)
        self.groups: dict[int, Group] = {}
        self._stamps: dict[int, dict[int, Group]] = {}
        self._next_group = 0
        self._in_flight = 0
        self._claim_rate = 0.0
        self._claim_slots = 0

    def resume(self, next_prompt: int, next_group: int, again: tuple[tuple[int, int], ...]) -> None:
        """Go on where a stopped run was. Raises ValueError for a prompt that is still to come."""
        if late := [prompt for prompt, _ in again if prompt >= next_prompt]:
            raise ValueError(f"prompt {late[0]} cannot be tried again: fresh prompts go on at {next_prompt}")
        self.prompts.next_ordinal = next_prompt
        self.prompts.again.extend(again)
        self._next_group = next_group

    # ---- starting groups -------------------------------------------------------------------------

    def fill(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """Start groups on one worker while it has room.

        A group may exceed the slots by its last members: they wait inside the engine, which keeps it full.
        """
        if worker.status is not Status.READY or self._blocked(worker):
            return
        size, gate = self._settings.group_size, self._gate
        if gate.room(worker.version) < size:
            return
        cap = self._cap(worker)
        while worker.in_flight < cap and gate.room(worker.version) >= size and not self.prompts.empty:
            self._start(t_s, worker, out)

    def fill_all(self, t_s: float, out: list[Decision]) -> None:
        """Hand out what the gate admits to whoever will finish it first: least (in flight + G) / rate."""
        size, gate = self._settings.group_size, self._gate
        heap = []
        for index, worker in enumerate(self._fleet.in_status(Status.READY)):
            if not self._blocked(worker) and worker.in_flight < (cap := self._cap(worker)):
                heap.append((self._due_s(worker), index, cap, worker))
        heapq.heapify(heap)
        while heap and not self.prompts.empty:
            _, index, cap, worker = heapq.heappop(heap)
            if gate.room(worker.version) < size:
                continue
            self._start(t_s, worker, out)
            if worker.in_flight < cap:
                heapq.heappush(heap, (self._due_s(worker), index, cap, worker))

    def recount_claims(self) -> None:
        """Rate and slots of the workers that will take work in time, those that are starting included."""
        claimants = [worker for worker in self._fleet.active() if not worker.late]
        self._claim_rate = sum(worker.offer.rollouts_per_s for worker in claimants)
        self._claim_slots = sum(worker.offer.slots for worker in claimants)

    def watch(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        """Expect progress of a worker that has work; the watchdog is one timer a worker."""
        worker.watched = True
        name = f"watch:{worker.worker_id}:{worker.incarnation}"
        out.append(SetTimer(t_s, name, t_s + self.patience_s(worker), "a rollout must have ended by then"))

    def check_progress(self, t_s: float, worker: Worker, out: list[Decision]) -> str:
        """Whether a watched worker still makes progress: "" or for how long it has not."""
        worker.watched = False
        if not worker.groups:
            return ""
        if worker.inbound != NONE and self._settings.reading == "stall":
            worker.progress_s = t_s
        if t_s - worker.progress_s >= self.patience_s(worker):
            return f"no rollout has ended for {t_s - worker.progress_s:.0f} s"
        self.watch(t_s, worker, out)
        return ""

    def patience_s(self, worker: Worker) -> float:
        """How long a worker with work may end no rollout before it is given up."""
        return self._settings.patience * worker.offer.generation_tail_s + self._settings.grace_s

    def _blocked(self, worker: Worker) -> bool:
        """No weights yet, or stopped for a snapshot (the stall reading)."""
        stopped = worker.inbound != NONE and self._settings.reading == "stall"
        return worker.version == NONE or stopped

    def _due_s(self, worker: Worker) -> float:
        return (worker.in_flight + self._settings.group_size) / worker.offer.rollouts_per_s

    def _cap(self, worker: Worker) -> int:
        """In-flight rollouts a worker may have: its slots, or its share by rate of a scarce gate.

        What can run in all is what runs plus what the gate still admits. Nothing is held back for a worker
        whose snapshot is late.
        """
        window = self._gate.room(worker.version) + self._in_flight
        slots = worker.offer.slots
        if window >= self._claim_slots or not self._claim_rate:
            return slots
        size = self._settings.group_size
        share = window * worker.offer.rollouts_per_s / self._claim_rate / size
        return min(slots, max(1, round(share)) * size)

    def _start(self, t_s: float, worker: Worker, out: list[Decision]) -> None:
        reason = "tried again" if self.prompts.again else "next prompt"
        prompt, attempt = self.prompts.take()
        size, version = self._settings.group_size, worker.version
        group_id = self._next_group
        self._next_group += 1
        name = worker.offer.worker_id
        group = Group(group_id, prompt, attempt, name, size, version, t_s)
        self.groups[group_id] = worker.groups[group_id] = group
        self._stamps.setdefault(version, {})[group_id] = group
        limit = self._gate.limit(version)
        worker.in_flight += size
        self._in_flight += size
        self._gate.running += size
        out.append(StartGroup(t_s, group_id, name, prompt, attempt, size, version, reason, limit))
        if not worker.watched:
            worker.progress_s = t_s
            self.watch(t_s, worker, out)

    # ---- ending groups ---------------------------------------------------------------------------

    def rollout_ended(self, group: Group, worker: Worker, tokens: int, oldest_version: int) -> bool:
        """One rollout of a group has ended; True when the group is complete with it."""
        worker.in_flight -= 1
        self._in_flight -= 1
        first = group.remaining == group.rollouts
        group.remaining -= 1
        group.tokens += tokens
        if first or oldest_version < group.oldest_version:
            group.oldest_version = oldest_version
        if group.remaining:
            return False
        self._forget(group, worker)
        return True

    def take_back(self, t_s: float, group: Group, reason: str, out: list[Decision]) -> None:
        """The worker of a running group is gone; that does not count as an attempt."""
        self._drop(group)
        self._give_back(t_s, group, group.attempt, reason, out)

    def give_back(self, t_s: float, group: Group, reason: str, out: list[Decision]) -> None:
        """A complete group cannot be trained: its prompt is tried again, in front of all others."""
        self._give_back(t_s, group, group.attempt + 1, reason, out)

    def fail(self, t_s: float, group: Group, reason: str, out: list[Decision]) -> None:
        """A running group cannot be completed where it runs: that was an attempt."""
        out.append(CancelGroup(t_s, group.group_id, group.worker_id, reason, group.stamp))
        self._drop(group)
        self._give_back(t_s, group, group.attempt + 1, reason, out)

    def cancel_doomed(self, t_s: float, out: list[Decision]) -> None:
        """Stop what can no longer be trained: even in the step that begins now it would be too old."""
        version = self._ledger.version
        oldest = version - self._settings.staleness_bound
        for stamp in [stamp for stamp in self._stamps if stamp < oldest]:
            for group in list(self._stamps[stamp].values()):
                reason = f"generated with version {stamp}, the learner is at {version}"
                out.append(CancelGroup(t_s, group.group_id, group.worker_id, reason, oldest))
                self._drop(group)
                self._give_back(t_s, group, group.attempt + 1, reason, out)
            del self._stamps[stamp]

    def _forget(self, group: Group, worker: Worker) -> None:
        """A group no longer runs."""
        del self.groups[group.group_id], worker.groups[group.group_id]
        del self._stamps[group.stamp][group.group_id]
        self._gate.running -= group.rollouts

    def _drop(self, group: Group) -> None:
        worker = self._fleet[group.worker_id]
        self._forget(group, worker)
        worker.in_flight -= group.remaining
        self._in_flight -= group.remaining

    def _give_back(self, t_s: float, group: Group, attempt: int, reason: str, out: list[Decision]) -> None:
        again = attempt < self._settings.max_attempts
        if again:
            self.prompts.put_back(group.prompt, attempt)
        lag = self._ledger.version - group.oldest_version
        bound = self._settings.staleness_bound
        out.append(DropGroup(t_s, group.group_id, group.prompt, lag, again, reason, bound))
