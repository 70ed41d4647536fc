"""How fast one worker generates: decode steps, rollout lengths, and the rates that follow from both.

Read by the planner (rates, tails), by the simulator (the same decode model, sequence by sequence) and by
the live driver when it has measured nothing yet. Numbers in, numbers out.

An inference engine that batches continuously makes one token for every running sequence in a decode step.
So `n` running sequences share the GPU like customers in a processor-sharing queue: a step takes
`step_s(n, c)` seconds at mean context `c`, each sequence gains one token, and the worker makes
`n / step_s(n, c)` tokens per second. Measured steps are close to linear in the context (attention reads
the KV cache), hence `step_s(n, c) = base_s[n] + slope_s[n] * c`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heapreplace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
TAIL_QUANTILE = 0.99


@dataclass(frozen=True, eq=False)
class TokenLengths:
    """A distribution of rollout lengths in tokens: bins `lo..hi` (inclusive) with probability `mass`."""

    lo: FloatArray
    hi: FloatArray
    mass: FloatArray
    name: str = ""

    @classmethod
    def constant(cls, tokens: float, name: str = "constant") -> TokenLengths:
        """Every rollout has the same length."""
        if not tokens > 0:
            raise ValueError(f"length must be > 0 tokens, got {tokens}")
        point = np.array([float(tokens)])
        return cls(point, point, np.ones(1), name)

    @cached_property
    def _cumulative(self) -> FloatArray:
        return np.cumsum(self.mass) / np.sum(self.mass)

    @cached_property
    def mean(self) -> float:
        """E[L] in tokens."""
        return float(np.dot((self.lo + self.hi) / 2, self.mass) / np.sum(self.mass))

    @cached_property
    def mean_square(self) -> float:
        """E[L^2] in tokens^2, uniform within a bin."""
        second = (self.lo**2 + self.lo * self.hi + self.hi**2) / 3
        return float(np.dot(second, self.mass) / np.sum(self.mass))

    @property
    def cv(self) -> float:
        """Coefficient of variation of the length."""
        return float(np.sqrt(max(0.0, self.mean_square / self.mean**2 - 1.0)))

    @property
    def max(self) -> float:
        """The longest possible rollout in tokens."""
        return float(self.hi[-1])

    def quantile(self, p: float | FloatArray) -> FloatArray:
        """Length in tokens below which a share `p` of rollouts stays; linear within a bin."""
        at = np.asarray(p, dtype=np.float64)
        index = np.minimum(np.searchsorted(self._cumulative, at, side="left"), len(self.mass) - 1)
        below = np.where(index > 0, self._cumulative[index - 1], 0.0)
        width = np.maximum(self._cumulative[index] - below, 1e-300)
        inside = np.clip((at - below) / width, 0.0, 1.0)
        tokens: FloatArray = self.lo[index] + inside * (self.hi[index] - self.lo[index])
        return tokens

    def longest_of(self, count: int) -> float:
        """Expected length in tokens of the longest of `count` independent rollouts."""
        if count == 1:
            return self.mean
        shares = (np.arange(2048) + 0.5) / 2048
        return float(np.mean(self.quantile(shares ** (1.0 / count))))

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """`count` independent lengths, whole tokens, at least 1."""
        whole: FloatArray = np.maximum(1.0, np.rint(self.quantile(rng.random(count))))
        return whole

    def truncated(self, max_tokens: float) -> TokenLengths:
        """The same population cut at `max_tokens` (generation stops there, it is not redrawn)."""
        if max_tokens >= self.max:
            return self
        if not max_tokens > 0:
            raise ValueError(f"max_tokens must be > 0, got {max_tokens}")
        return TokenLengths(
            np.minimum(self.lo, max_tokens), np.minimum(self.hi, max_tokens), self.mass, self.name
        )


@dataclass(frozen=True)
class DecodeModel:
    """Seconds of one decode step on one worker, by running sequences and mean context.

    `batch[j]` sequences take `base_s[j] + slope_s[j] * context_tokens` seconds a step, linear in between
    and, beyond the last entry, linear in the number of sequences (the GPU is saturated). `kv_pool_tokens`
    is how many tokens of KV cache fit (0: not limiting). `max_running` caps the sequences by hand
    (0: no cap). `speedup` scales the whole worker, 2.0 halves every step.
    """

    batch: tuple[float, ...]
    base_s: tuple[float, ...]
    slope_s: tuple[float, ...]
    kv_pool_tokens: float = 0.0
    max_running: int = 0
    speedup: float = 1.0

    @classmethod
    def constant_rate(cls, tokens_per_s: float, running: int, speedup: float = 1.0) -> DecodeModel:
        """A worker of fixed total rate, whatever the number of sequences: pure processor sharing."""
        if not tokens_per_s > 0 or running < 1:
            raise ValueError(f"needs tokens_per_s > 0 and running >= 1, got {tokens_per_s}, {running}")
        return cls((1.0,), (1.0 / tokens_per_s,), (0.0,), max_running=running, speedup=speedup)

    def coefficients(self, running: float) -> tuple[float, float]:
        """(base_s, slope_s_per_context_token) of a decode step with `running` sequences."""
        batch = self.batch
        if running >= batch[-1]:
            scale = running / batch[-1]
            base, slope = self.base_s[-1] * scale, self.slope_s[-1] * scale
        elif running <= batch[0]:
            base, slope = self.base_s[0], self.slope_s[0]
        else:
            j = bisect_left(batch, running)
            share = (running - batch[j - 1]) / (batch[j] - batch[j - 1])
            base = self.base_s[j - 1] + share * (self.base_s[j] - self.base_s[j - 1])
            slope = self.slope_s[j - 1] + share * (self.slope_s[j] - self.slope_s[j - 1])
        return base / self.speedup, slope / self.speedup

    def step_s(self, running: float, context_tokens: float) -> float:
        """Seconds of one decode step."""
        base, slope = self.coefficients(running)
        return base + slope * context_tokens

    def tokens_per_s(self, running: float, context_tokens: float) -> float:
        """Tokens per second of the whole worker."""
        return running / self.step_s(running, context_tokens)


@dataclass(frozen=True)
class GenerationRate:
    """Steady state of one worker kept full: what the scheduler and the planner know of it.

    `rollouts_per_s` (mu_i), `slots` sequences at a time, `mean_s` and `tail_s` (p99) seconds a rollout,
    `group_s` seconds until the last rollout of a group is done, on average.
    """

    slots: int
    rollouts_per_s: float
    mean_s: float
    tail_s: float
    group_s: float
    context_tokens: float


def running_context(lengths: TokenLengths, prompt_tokens: float) -> float:
    """Mean context of a running sequence in steady state: the prompt plus E[L^2] / (2 E[L]).

    A sequence of length L is seen running in proportion to L (inspection paradox) and is half done on
    average, hence the length-biased half mean.
    """
    return prompt_tokens + lengths.mean_square / (2.0 * lengths.mean)


def slots_that_fit(model: DecodeModel, lengths: TokenLengths, prompt_tokens: float) -> int:
    """Sequences to keep running: as many as the KV pool holds on average, within the caps. 0: none fits."""
    limit = float(model.max_running) if model.max_running else 4096.0
    if model.kv_pool_tokens:
        if model.kv_pool_tokens < prompt_tokens + lengths.max:
            return 0
        limit = min(limit, model.kv_pool_tokens / running_context(lengths, prompt_tokens))
    elif not model.max_running:
        limit = model.batch[-1]
    return max(1, int(limit))


def steady_rate(
    model: DecodeModel,
    lengths: TokenLengths,
    prompt_tokens: float,
    slots: int | None = None,
    group_size: int = 1,
) -> GenerationRate:
    """Rate and latencies of a worker that always has `slots` sequences running.

    mu = slots / (E[L] * step_s(slots, c)), with c from `running_context` (Little's law).
    """
    if slots is None:
        slots = slots_that_fit(model, lengths, prompt_tokens)
    if slots < 1:
        raise ValueError("no sequence fits this worker's KV cache: a shorter max_tokens or a bigger GPU")
    context = running_context(lengths, prompt_tokens)
    step = model.step_s(slots, context)
    return GenerationRate(
        slots=slots,
        rollouts_per_s=slots / (lengths.mean * step),
        mean_s=lengths.mean * step,
        tail_s=float(lengths.quantile(TAIL_QUANTILE)) * step,
        group_s=lengths.longest_of(group_size) * step,
        context_tokens=context,
    )


def drain_times(
    model: DecodeModel, lengths: TokenLengths, prompt_tokens: float, rollouts: int, slots: int
) -> FloatArray:
    """When each of `rollouts`, started together on an idle worker, ends: (rollouts,) seconds, ascending.

    Lengths stand at the midpoints of equal shares of the distribution, so it is the expected course of a
    batch. With more rollouts than `slots` they are dealt out evenly long and short, and a waiting one
    starts as one ends; every sequence running gets one token a step, and steps quicken as the batch empties.
    """
    shares = (np.arange(rollouts) + 0.5) / rollouts
    tokens: list[float] = lengths.quantile(shares).tolist()
    order = _dealt_evenly(rollouts)
    waiting = [tokens[i] for i in reversed(order[slots:])]
    # (token offset at which it ends, offset at which it began); all running advance the offset together.
    running = [(tokens[i], 0.0) for i in order[:slots]]
    heapify(running)
    began_sum = offset = now = 0.0
    ends: list[float] = []
    while running:
        count = len(running)
        target = running[0][0]
        context = prompt_tokens + offset - began_sum / count + (target - offset) / 2
        now += (target - offset) * model.step_s(count, context)
        offset = target
        began_sum -= running[0][1]
        ends.append(now)
        if waiting:
            heapreplace(running, (offset + waiting.pop(), offset))
            began_sum += offset
        else:
            heappop(running)
    return np.array(ends)


def _dealt_evenly(count: int) -> list[int]:
    """A fixed order that mixes short and long: indices by a golden-ratio stride, no randomness."""
    keys = (np.arange(count) * 0.6180339887498949) % 1.0
    return [int(i) for i in np.argsort(keys, kind="stable")]
