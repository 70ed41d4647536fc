"""Staleness control: the version ledger, the admission gate, and the buffer that trains oldest first.

Called by the scheduler only. Admission comes first and dropping last. A rollout may start on a worker
that holds snapshot version `u` only while

    trained + buffered + running < (S + u + 1) * B

AReaL's gate (arXiv 2505.24298, section 5.1) with the version that *generates* in place of the learner's;
ours is therefore tighter by the age of the snapshot. Reason: the n-th admitted rollout is trained in step
n // B, so its staleness is n // B - u, and n < (S + u + 1) * B keeps that <= S as long as rollouts are
trained in the order of admission. A slow rollout can be overtaken; the one that got too old anyway is
dropped at the door, counted, and its prompt goes back to the front.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field


def staleness(trained_version: int, oldest_version: int) -> int:
    """Staleness of a rollout: the version it is trained on minus the oldest that generated any token.

    Used by the buffer, the metric and the log alike. Negative means that two version authorities
    disagree, which is refused: ValueError.
    """
    lag = trained_version - oldest_version
    if lag < 0:
        raise ValueError(
            f"a rollout of version {oldest_version} cannot be trained at version {trained_version}: "
            "staleness would be negative, so two learners are counting versions"
        )
    return lag


class VersionLedger:
    """The one version authority: optimiser steps finished, and the snapshots published. Never goes back.

    `newest_full` is the newest published version of which there is a full snapshot: of the others there are
    deltas alone.
    """

    def __init__(self) -> None:
        self.version = 0
        self.published = 0
        self.newest_full = 0
        self._since_full_bytes = 0.0
        self._payload_bytes: dict[int, float] = {}
        self._parents: dict[int, int] = {}

    def resume(self, version: int) -> None:
        """Begin at a checkpoint's version, which is there in full. Raises ValueError if it would go back."""
        if version < self.version:
            raise ValueError(f"version cannot go back from {self.version} to {version}")
        self.version = self.published = self.newest_full = version

    def advance(self, version: int) -> None:
        """The learner finished a step. Raises ValueError unless the version grew by exactly one."""
        if version != self.version + 1:
            raise ValueError(
                f"version goes from {self.version} to {version}; it grows by one per step and never goes back"
            )
        self.version = version

    def publish(self, payload_bytes: float, full: bool = True) -> int:
        """Make the current version the newest published one; returns its parent.

        `full`: there is a full snapshot of it, beside the delta if there is one.
        """
        parent = self.published
        self.published = self.version
        self._payload_bytes[self.version] = payload_bytes
        self._parents[self.version] = parent
        self._since_full_bytes += payload_bytes
        if full:
            self.newest_full, self._since_full_bytes = self.version, 0.0
        return parent

    def payload_bytes(self, held: int, full_bytes: float) -> tuple[float, int]:
        """(bytes, parent version) a worker holding `held` needs for the newest published version.

        The deltas on the way from `held`, or the newest full snapshot and the deltas since, whichever is
        less; parent is -1 for the latter.
        """
        anew = full_bytes + self._since_full_bytes
        total, at = 0.0, self.published
        while at > held and at in self._parents:
            total += self._payload_bytes[at]
            if total >= anew:
                return anew, -1
            at = self._parents[at]
        return (total, held) if at == held else (anew, -1)


@dataclass(slots=True)
class AdmissionGate:
    """Counts rollouts by where they are and says whether more may start. Units: rollouts."""

    bound: int
    batch: int
    trained: int = 0
    buffered: int = 0
    running: int = 0
    last_version: int | None = None

    def limit(self, version: int) -> int:
        """Rollouts that may have been admitted so that one started on `version` stays within the bound."""
        steps = self.bound + version + 1
        if self.last_version is not None:
            steps = min(steps, self.last_version)
        return steps * self.batch

    @property
    def admitted(self) -> int:
        """Rollouts trained, buffered or running."""
        return self.trained + self.buffered + self.running

    def room(self, version: int) -> int:
        """Rollouts that may still start on a worker holding `version` (negative: none)."""
        return self.limit(version) - self.admitted


@dataclass(slots=True)
class Group:
    """The rollouts of one prompt, from dispatch to training. `oldest_version` over all of them.

    `stamp` is the version its worker held at dispatch, `remaining` the rollouts still to end.
    """

    group_id: int
    prompt: int
    attempt: int
    worker_id: str
    rollouts: int
    oldest_version: int
    started_s: float
    remaining: int = 0
    tokens: int = 0
    stamp: int = 0

    def __post_init__(self) -> None:
        self.remaining = self.rollouts
        self.stamp = self.oldest_version


class GroupBuffer:
    """Complete groups waiting to be trained, oldest version first, then first come."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Group]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, group: Group) -> None:
        """Add a complete group."""
        heapq.heappush(self._heap, (group.oldest_version, group.group_id, group))

    def pop_stale(self, version: int, bound: int) -> list[Group]:
        """Take out the groups that are too old to be trained at `version`."""
        stale = []
        while self._heap and staleness(version, self._heap[0][0]) > bound:
            stale.append(heapq.heappop(self._heap)[2])
        return stale

    def pop_batch(self, groups: int) -> list[Group]:
        """Take the `groups` oldest. The caller has made sure that there are as many."""
        return [heapq.heappop(self._heap)[2] for _ in range(groups)]


@dataclass(slots=True)
class PromptQueue:
    """Prompt ordinals in order, with those to be tried again in front. `size` 0: they never end."""

    size: int = 0
    next_ordinal: int = 0
    again: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def empty(self) -> bool:
        """Whether every prompt has been taken."""
        return bool(self.size) and self.next_ordinal >= self.size and not self.again

    def take(self) -> tuple[int, int]:
        """(prompt ordinal, attempt) to generate next."""
        if self.again:
            return self.again.popleft()
        self.next_ordinal += 1
        return self.next_ordinal - 1, 0

    def put_back(self, prompt: int, attempt: int) -> None:
        """Put a prompt at the front; the next try has number `attempt`."""
        self.again.appendleft((prompt, attempt))
