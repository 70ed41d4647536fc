"""One group of identical workers as a fluid: how many rollouts and prompt groups are how far from their end.

Driven by `march`. All running sequences of a worker advance together, one token a decode step, so time is
counted in bins of tokens: what is dispatched is spread over the bins by the length distribution, and each
time the worker has generated one bin, what stands at the head has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from echo2.policy.generation import TokenLengths
from echo2.policy.steady.problem import SteadyProblem, WorkerGroup

FloatArray = npt.NDArray[np.float64]

ROLLOUTS, AGE, STALE = 0, 1, 2
_POINTS = 4096


@dataclass(frozen=True)
class LengthBins:
    """Lengths in bins of `bin_tokens`: shares of rollouts, and of prompt groups, ending after 1..H bins."""

    bin_tokens: float
    rollouts: FloatArray
    groups: FloatArray

    @classmethod
    def of(cls, lengths: TokenLengths, G: int, bins_per_mean: float) -> LengthBins:
        """A group ends with its longest rollout: its quantile p is the length quantile p^(1/G)."""
        bin_tokens = lengths.mean / bins_per_mean
        points = (np.arange(_POINTS) + 0.5) / _POINTS
        count = max(1, int(np.ceil(lengths.max / bin_tokens - 1e-9)))
        single = _split(lengths.quantile(points) / bin_tokens, count)
        longest = _split(lengths.quantile(points ** (1.0 / G)) / bin_tokens, count)
        return cls(bin_tokens, single, longest)


def _split(bins: FloatArray, count: int) -> FloatArray:
    """Equal masses at real positions shared between the two bins around each: keeps the mean."""
    at = np.clip(bins, 1.0, count)
    low = np.minimum(np.floor(at + 1e-9).astype(int), count)
    high = np.minimum(low + 1, count)
    part = np.clip(at - low, 0.0, 1.0)
    mass = np.bincount(low, 1.0 - part, count + 1) + np.bincount(high, part, count + 1)
    return np.asarray(mass[1:] / len(bins), dtype=np.float64)


class FluidWorkers:
    """The state of one `WorkerGroup`: running rollouts, their ages, and the version each will end with."""

    def __init__(self, problem: SteadyProblem, group: WorkerGroup, bins: LengthBins) -> None:
        self.group = group
        self.prompt_tokens = problem.prompt_tokens
        self.bins = bins
        self.group_size = problem.G
        self.slots = group.count * group.slots
        self.rate = problem.worker_rate(group)
        self.running = 0.0
        self.age_tokens = 0.0
        self.live_version = 0
        self.arriving: int | None = None
        self.waiting: int | None = None
        self.paused = False
        self._kappa = problem.kappa
        self._row_version = [-problem.S - 1] + [0] * (problem.S // problem.kappa + 1)
        self._span = len(bins.rollouts)
        self._ahead = np.zeros((STALE + len(self._row_version), 4 * self._span + 2))
        self._head = 0
        self._progress = 0.0
        self._bins_per_s = 0.0
        self._since_s = 0.0
        index = np.arange(1, self._span + 1)
        self._token_shares = bins.rollouts * index * bins.bin_tokens

    def settle(self, now_s: float) -> None:
        """Bring the progress within the current bin up to `now_s`."""
        self._progress = min(1.0, self._progress + (now_s - self._since_s) * self._bins_per_s)
        self._since_s = now_s

    def due_s(self, rollouts: float) -> float:
        """Roughly when `rollouts` more would be done: what runs on one worker over its rate."""
        return (self.running / self.group.count + rollouts) / self.rate

    def reschedule(self) -> float:
        """When the current bin will be full, seconds, from the rollouts that run now."""
        if self.paused or self.running <= 1e-9:
            self._bins_per_s = 0.0
            return math.inf
        each = self.running / self.group.count
        # Halfway through the bin, as the context grows with every token.
        ahead = self.bins.bin_tokens / 2
        context = self.prompt_tokens + max(0.0, self.age_tokens) / self.running + ahead
        # More than the slots do not run at once: the surplus waits in the engine, which slows all alike.
        crowd = max(1.0, each / self.group.slots)
        step_s = crowd * self.group.model.step_s(each / crowd, context) / self.group.up_share
        self._bins_per_s = 1.0 / (step_s * self.bins.bin_tokens)
        return self._since_s + (1.0 - self._progress) / self._bins_per_s

    def dispatch(self, rollouts: float) -> None:
        """Start `rollouts` with the live version; partway through a bin they are shared with the next one."""
        row = self._row_of_live_version()
        if self._head + self._span + 1 >= self._ahead.shape[1]:
            self._rewind()
        parts = ((0, 1.0 - self._progress), (1, self._progress)) if self.running > 1e-9 else ((0, 1.0),)
        if self.running <= 1e-9:
            self._progress = 0.0
        for shift, part in parts:
            if part > 0:
                where = slice(self._head + shift, self._head + shift + self._span)
                self._ahead[ROLLOUTS, where] += rollouts * part * self.bins.rollouts
                self._ahead[AGE, where] += rollouts * part * self._token_shares
                self._ahead[row, where] += rollouts * part / self.group_size * self.bins.groups
        self.running += rollouts
        # They will be counted a whole bin older at its end, though they join partway through.
        self.age_tokens -= rollouts * self._progress * self.bins.bin_tokens

    def finish_bin(self, now_s: float) -> tuple[float, list[tuple[int, float]]]:
        """End what stands at the head: (rollouts, [(version, groups)])."""
        ended = self._ahead[:, self._head].tolist()
        self._head += 1
        self._progress, self._since_s = 0.0, now_s
        self.age_tokens += self.running * self.bins.bin_tokens - ended[AGE]
        self.running -= ended[ROLLOUTS]
        if self.running <= 1e-9:
            self.running = self.age_tokens = 0.0
        groups = [(v, g) for v, g in zip(self._row_version, ended[STALE:]) if g > 0]
        return ended[ROLLOUTS], groups

    def _row_of_live_version(self) -> int:
        """The row of the live version; what is left of the one it replaces is too old for training."""
        place = 1 + (self.live_version // self._kappa) % (len(self._row_version) - 1)
        row = STALE + place
        if self._row_version[place] != self.live_version:
            self._ahead[STALE] += self._ahead[row]
            self._ahead[row] = 0.0
            self._row_version[place] = self.live_version
        return row

    def _rewind(self) -> None:
        rest = self._ahead[:, self._head :].copy()
        self._ahead[:] = 0.0
        self._ahead[:, : rest.shape[1]] = rest
        self._head = 0
