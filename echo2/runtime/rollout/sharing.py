"""Processor sharing of one simulated worker: which sequences run and when each ends. No clock of its own.

The live twin of `echo2.policy.generation.drain_times`, for arrivals at any time; the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from echo2.policy.generation import DecodeModel
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.request import GroupRequest


@dataclass(slots=True)
class Sequence:
    """A rollout of `tokens` tokens. It began when the worker's shared token counter stood at `began`."""

    request: GroupRequest
    index: int
    tokens: int
    began: float = 0.0
    segments: list[Segment] = field(default_factory=list)


class SharedWorker:
    """Sequences waiting and running on a worker; each running one gets a token in every decode step."""

    def __init__(self, decode: DecodeModel, max_running: int) -> None:
        self._decode = decode
        self._max_running = max_running
        self._heap: list[tuple[float, int, Sequence]] = []  # by the counter at which each ends
        self._order = 0
        self._counter = 0.0  # decode steps since the beginning
        self._now_s = 0.0
        self._context = 0.0  # sum over running of prompt - began
        self.waiting: deque[Sequence] = deque()

    @property
    def running(self) -> list[Sequence]:
        """Those that run, in no fixed order."""
        return [sequence for _, _, sequence in self._heap]

    def made(self, sequence: Sequence) -> int:
        """Whole tokens a running sequence has made."""
        return min(sequence.tokens, int(self._counter - sequence.began + 1e-9))

    def admit(self, version: int) -> None:
        """Start waiting sequences while there is room."""
        while self.waiting and len(self._heap) < self._max_running:
            sequence = self.waiting.popleft()
            sequence.began = self._counter
            sequence.segments = [Segment(0, version)]
            self._context += len(sequence.request.prompt_ids) - self._counter
            self._order += 1
            heappush(self._heap, (self._counter + sequence.tokens, self._order, sequence))

    def next_end_s(self) -> float | None:
        """When the next running sequence ends, if nothing changes until then. None: none runs."""
        if not self._heap:
            return None
        return self._now_s + (self._heap[0][0] - self._counter) * self._step_s()

    def advance(self, now_s: float, version: int, admit: bool) -> list[Sequence]:
        """Let time pass until `now_s`; returns what ended on the way, places filled again if `admit`."""
        ended: list[Sequence] = []
        if admit:
            self.admit(version)
        while (end_s := self.next_end_s()) is not None and end_s <= now_s:
            self._counter, _, sequence = heappop(self._heap)
            self._context -= len(sequence.request.prompt_ids) - sequence.began
            self._now_s = end_s
            ended.append(sequence)
            if admit:
                self.admit(version)
        if self._heap:
            self._counter += (now_s - self._now_s) / self._step_s()
        self._now_s = now_s
        return ended

    def skip_to(self, now_s: float) -> None:
        """Let time pass without a token: the worker was paused."""
        self._now_s = now_s

    def remove(self, gone: set[int]) -> None:
        """Take out running and waiting sequences by identity (`id`)."""
        if not gone:
            return
        self.waiting = deque(s for s in self.waiting if id(s) not in gone)
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        heapify(self._heap)
        self._context = float(sum(len(s.request.prompt_ids) - s.began for s in self.running))

    def _step_s(self) -> float:
        """Seconds of a decode step until the next end, at the mean context half-way there."""
        count = len(self._heap)
        ahead = (self._heap[0][0] - self._counter) / 2
        return self._decode.step_s(count, self._counter + self._context / count + ahead)
