"""A simulated rollout worker: continuous batching as a processor-sharing queue, sequence by sequence.

All running sequences gain one token per decode step, so their progress is one number, the `offset`: a
sequence that starts at offset `x` with length `L` ends when the offset reaches `x + L`. A step takes
`base_s[n] + slope_s[n] * c` seconds with `n` running sequences of mean context `c`, and `c` grows by one
a step; between two events the time for `d` tokens is therefore `d * (base + slope * (c + d / 2))`,
exactly. One timer a worker, at the next end of a sequence. Prefill is not modelled: a group's prompts
share their prefix, and decoding dominates.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

import simpy

from echo2.policy.generation import DecodeModel

Finished = Callable[["WorkerProcess", int, float, int], None]
TINY_TOKENS = 1e-6


class WorkerProcess:
    """The engine of one worker in the simulated world.

    `finished(worker, group_id, tokens, oldest_version)` is called at the end of each rollout.
    """

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        model: DecodeModel,
        slots: int,
        prompt_tokens: float,
        finished: Finished,
    ) -> None:
        self.env = env
        self.name = name
        self.version = 0
        self.busy_s = 0.0
        self.tokens = 0.0
        self._slots = slots
        self._prompt = prompt_tokens
        self._finished = finished
        table = [model.coefficients(n) for n in range(1, slots + 1)]
        self._base = [0.0] + [base for base, _ in table]
        self._slope = [0.0] + [slope for _, slope in table]
        self._running: list[tuple[float, int, int, float, int]] = []
        self._waiting: deque[tuple[int, float]] = deque()
        self._sequence = 0
        self._offset = 0.0
        self._context = 0.0
        self._updated_s = 0.0
        self._timer: simpy.Event | None = None
        self._paused_until = 0.0
        self._holds = 0
        self._handling = False

    @property
    def running(self) -> int:
        """Sequences being decoded now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Rollouts queued in the engine."""
        return len(self._waiting)

    def start(self, group_id: int, lengths: Sequence[float]) -> None:
        """Queue the rollouts of a group; they run as slots are free."""
        self._advance()
        for tokens in lengths:
            self._waiting.append((group_id, tokens))
        self._admit()
        self._arm()

    def cancel(self, group_id: int) -> None:
        """Stop a group's rollouts at once; nothing of it is reported."""
        self._advance()
        self._waiting = deque(item for item in self._waiting if item[0] != group_id)
        kept = []
        for item in self._running:
            if item[2] == group_id:
                self._context -= self._prompt + (item[3] - (item[0] - self._offset))
            else:
                kept.append(item)
        heapq.heapify(kept)
        self._running = kept
        self._admit()
        self._arm()

    def hold(self) -> None:
        """Stop decoding until `release` (the stall reading: a snapshot is being taken)."""
        self._advance()
        self._holds += 1
        self._timer = None

    def release(self) -> None:
        """Undo one `hold`."""
        if self._holds:
            self._advance()
            self._holds -= 1
            self._arm()

    def swap(self, version: int, pause_s: float) -> None:
        """Generate with `version` from now on, after a pause. Running rollouts keep their oldest version."""
        self._advance()
        self.version = version
        if pause_s > 0:
            self._paused_until = max(self._paused_until, self.env.now) + pause_s
        self._arm()

    def clear(self) -> None:
        """The worker is gone: everything on it is lost."""
        self._advance()
        self._running.clear()
        self._waiting.clear()
        self._context = 0.0
        self._holds = 0
        self._paused_until = 0.0
        self._timer = None

    def _advance(self) -> None:
        """Bring offset and context to the present."""
        now = self.env.now
        since = max(self._updated_s, self._paused_until)
        self._updated_s = now
        n = len(self._running)
        seconds = now - since
        if not n or self._holds or seconds <= 0.0:
            return
        slope = self._slope[n]
        speed = self._base[n] + slope * self._context / n
        if slope * seconds > 1e-9 * speed * speed:
            gained = (math.sqrt(speed * speed + 2.0 * slope * seconds) - speed) / slope
        else:
            gained = seconds / speed
        self._offset += gained
        self._context += gained * n
        self.busy_s += seconds
        self.tokens += gained * n

    def _admit(self) -> None:
        """Move waiting rollouts into free slots; each is stamped with the version that begins it."""
        running, waiting = self._running, self._waiting
        while waiting and len(running) < self._slots:
            group_id, tokens = waiting.popleft()
            self._sequence += 1
            end = self._first_offset() + tokens
            heapq.heappush(running, (end, self._sequence, group_id, tokens, self.version))
            self._context += self._prompt

    def _first_offset(self) -> float:
        """Where a sequence that is admitted now begins."""
        return self._offset

    def _arm(self) -> None:
        """Set the timer for the next end of a sequence; an older timer finds itself replaced."""
        if self._handling or self._holds or not self._running:
            if not self._handling:
                self._timer = None
            return
        n = len(self._running)
        tokens = max(0.0, self._running[0][0] - self._offset)
        speed = self._base[n] + self._slope[n] * (self._context / n + tokens / 2.0)
        delay = tokens * speed
        if self._paused_until > self.env.now:
            delay += self._paused_until - self.env.now
        timer = simpy.Timeout(self.env, delay)
        timer.callbacks.append(self._due)
        self._timer = timer

    def _due(self, event: simpy.Event) -> None:
        if event is not self._timer:
            return
        self._advance()
        running = self._running
        # The first one is due by construction; floating point must not make it late.
        limit = max(self._offset, running[0][0]) + TINY_TOKENS
        self._handling = True
        while running and running[0][0] <= limit:
            _, _, group_id, tokens, version = heapq.heappop(running)
            self._context -= self._prompt + tokens
            self._admit()
            self._finished(self, group_id, tokens, version)
            running = self._running
        if not running:
            self._context = 0.0
        self._handling = False
        self._arm()
