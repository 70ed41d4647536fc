"""Training: which complete groups make the next batch, and which have become too old for any.

Called by the scheduler. Keeps the buffer of complete groups and the gate's account of them.
"""

from __future__ import annotations

from echo2.policy.decisions import Decision, TrainStep
from echo2.policy.dispatch import Dispatch
from echo2.policy.settings import SchedulerSettings
from echo2.policy.staleness import AdmissionGate, Group, GroupBuffer, staleness


class Training:
    """Carries no clock: the time comes with every call. `busy`: a step is being trained."""

    def __init__(self, settings: SchedulerSettings, gate: AdmissionGate, dispatch: Dispatch) -> None:
        self._settings = settings
        self._gate = gate
        self._dispatch = dispatch
        self.buffer = GroupBuffer()
        self.busy = False

    @property
    def batch_ready(self) -> bool:
        """Whether enough complete groups are there for a step."""
        return len(self.buffer) >= self._settings.groups_per_step

    def add(self, group: Group) -> None:
        """Take in a complete group."""
        self._gate.buffered += group.rollouts
        self.buffer.push(group)

    def go_on(self, t_s: float, version: int, out: list[Decision]) -> bool:
        """Drop what is too old for `version` and train a batch if there is one. True if any was dropped."""
        settings, gate = self._settings, self._gate
        bound = settings.staleness_bound
        stale = self.buffer.pop_stale(version, bound)
        for group in stale:
            gate.buffered -= group.rollouts
            self._dispatch.give_back(t_s, group, "too old when its turn came", out)
        if self.batch_ready:
            batch = self.buffer.pop_batch(settings.groups_per_step)
            gate.buffered -= settings.rollouts_per_step
            gate.trained += settings.rollouts_per_step
            self.busy = True
            ids = tuple(group.group_id for group in batch)
            lags = tuple(staleness(version, group.oldest_version) for group in batch)
            out.append(TrainStep(t_s, version, ids, lags, "a full batch, oldest first", bound))
        return bool(stale)
