"""A worker's decode rate against its running sequences, and the delays around it, from what the log shows.

The log has when a group was ordered and when each rollout was counted, not when the engine began and ended
it. So the orders of the log are fed to a processor-sharing engine, and its rate and the delays are moved
until its rollouts end when the recorded ones did (least mean absolute error, Nelder-Mead; ours). Called by
`calibrate`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
LEAST_GROUPS = 8
GATHER_S = 1e-3
"""Event loops wake up on the millisecond: what ends within one travels together."""
ANSWER_SHARE = 3 / 4
"""Of the delay around an engine: what an upload takes to be answered, where nothing shows it (ours)."""
MOST_ROLLOUTS = 600
EVALUATIONS = 45
BEGINS = (-9.0, -3.5, -2.3)
FULL_SHARES = (1.0, 0.9, 0.8, 0.65, 0.4, 0.15)
STEPS = np.diag([-0.05, 1.5, 0.5])
"""Where the search begins and how far it looks first. Once without time to begin, which is all it takes where
nothing tells it from the delay, and once with."""
DELAYS_S = (0.004, 0.008, 0.014, 0.02, 0.028, 0.036, 0.045, 0.055, 0.067, 0.08, 0.1, 0.13, 0.18, 0.25)
DELAY_COST = 0.1
"""Of two delays that explain the work alike, with the time to begin, the shorter one is taken."""


@dataclass(frozen=True)
class Job:
    """A group as the learner saw it: ordered at `start_s`, rollouts counted at `ends_s`, ascending.

    `tokens` of its rollouts, ascending as well.
    """

    start_s: float
    tokens: tuple[int, ...]
    ends_s: tuple[float, ...]


@dataclass(frozen=True)
class EngineFit:
    """A decode step with n running takes `base_s + per_sequence_s * n`.

    `whole_steps`: a sequence begins with a step, not within one; a simulated engine has no steps.

    `order_s`: from the decision to the engine; `report_s`: from the end of a rollout to its fact.
    `error_s`: how far the recorded ends are from the fitted ones, mean.
    """

    base_s: float
    per_sequence_s: float
    order_s: float
    report_s: float
    error_s: float
    begin_s: float = 0.0
    whole_steps: bool = False

    def step_s(self, running: float) -> float:
        """Seconds of a decode step."""
        return self.base_s + self.per_sequence_s * running


@dataclass(frozen=True)
class Work:
    """What one worker did: its groups, and when it stood still for a swap (start, end)."""

    jobs: Sequence[Job]
    pauses: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Alike:
    """Workers that share one engine profile, and their work.

    `tokens_per_s`: the rate is known, whatever runs (a simulated engine sleeps by it); 0: it is fitted.
    """

    names: tuple[str, ...]
    work: tuple[Work, ...]
    slots: int
    tokens_per_s: float = 0.0

    @property
    def whole_steps(self) -> bool:
        """Whether they decode in steps."""
        return not self.tokens_per_s


def parts_of(delay_s: float, answer_s: float) -> tuple[float, float]:
    """(write, hop) of a whole delay of three writes to the ledger and two hops, and of the answer to an
    upload, which takes a write and two hops (`plane`). Neither is negative."""
    write_s = min(max(0.0, (delay_s - answer_s) / 2), delay_s / 3)
    return write_s, (delay_s - 3 * write_s) / 2


def fit_engines(groups: Sequence[Alike], answer_s: float = 0.0) -> dict[str, EngineFit]:
    """The engines, and the one delay around all of them, that explain the work best; by worker.

    A longer delay and a faster engine explain batches of equal rollouts alike; different lengths tell them
    apart. All workers share the learner, its disk and its event loop, so the delay is searched for over all
    together. `answer_s`: what an upload takes to be answered, where it is known: the delay is longer.
    Workers with too little to do are left out; all of them where nobody has enough.
    """
    parts = {k: kept for k, group in enumerate(groups) if (kept := _kept(group))}
    if not parts:
        return {}
    tried: dict[float, dict[int, tuple[FloatArray, float]]] = {}
    longer = [delay_s for delay_s in DELAYS_S if delay_s > answer_s]
    for delay_s in longer or [DELAYS_S[-1]]:
        answered_s = answer_s or ANSWER_SHARE * delay_s
        tried[delay_s] = {k: _fit(groups[k], work, delay_s, answered_s) for k, work in parts.items()}

    def cost(delay_s: float) -> float:
        fits = [(error, parameters(theta, groups[k])[2]) for k, (theta, error) in tried[delay_s].items()]
        return sum(error + DELAY_COST * (delay_s + begin_s) for error, begin_s in fits) / len(fits)

    best = min(tried, key=cost)
    made: dict[str, EngineFit] = {}
    for k, (theta, error_s) in tried[best].items():
        base_s, each_s, begin_s = parameters(theta, groups[k])
        order_s = sum(parts_of(best, answer_s or ANSWER_SHARE * best))
        around = order_s, best - order_s
        fit = EngineFit(base_s, each_s, *around, error_s, begin_s, groups[k].whole_steps)
        made.update(dict.fromkeys(groups[k].names, fit))
    return made


def _kept(group: Alike) -> list[Work]:
    """The work that is fitted: the last of each worker, none where it is too little."""
    most = MOST_ROLLOUTS // len(group.names)
    kept = [Work(jobs, work.pauses) for work in group.work if len(jobs := _recent(work.jobs, most)) > 1]
    return kept if sum(len(work.jobs) for work in kept) >= LEAST_GROUPS else []


def _fit(group: Alike, work: Sequence[Work], delay_s: float, answer_s: float) -> tuple[FloatArray, float]:
    """(the engine's free numbers, mean absolute error in seconds) for a given delay."""
    from scipy.optimize import minimize

    ends = np.concatenate([np.array(job.ends_s) for part in work for job in part.jobs])
    order_s = sum(parts_of(delay_s, answer_s))

    def loss(theta: FloatArray) -> float:
        base_s, each_s, begin_s = parameters(theta, group)
        made = []
        for part in work:
            done = replay(part, group.slots, base_s, each_s, order_s + begin_s, group.whole_steps)
            made += counted(done, delay_s - order_s, answer_s)
        return float(np.mean(np.abs(np.concatenate(made) - ends)))

    if group.tokens_per_s:
        return np.zeros(0), loss(np.zeros(0))
    full_s = _first_guess(work, group.slots)
    found = [
        minimize(
            loss,
            first,
            method="Nelder-Mead",
            options={
                "maxfev": EVALUATIONS,
                "initial_simplex": np.vstack([first, *(first + step for step in STEPS)]),
                "xatol": 2e-3,
                "fatol": 1e-5,
            },
        )
        for begins in (BEGINS[:1], BEGINS[1:])
        for first in [
            min((np.array([np.log(full_s * part), 0.0, b]) for part in FULL_SHARES for b in begins), key=loss)
        ]
    ]
    best = min(found, key=lambda one: float(one.fun))
    return best.x, float(best.fun)


def parameters(theta: FloatArray, group: Alike) -> tuple[float, float, float]:
    """(base_s, per_sequence_s, begin_s) of the free numbers, none negative; of a known rate, where there are
    none.

    theta: log of the step with all slots running, logit of the share of it that grows with the sequences,
    log of the seconds before a sequence takes part.
    """
    if group.tokens_per_s:
        return 0.0, 1.0 / group.tokens_per_s, 0.0
    full = float(np.exp(np.clip(theta[0], -18.0, 5.0)))
    share = float(1.0 / (1.0 + np.exp(-np.clip(theta[1], -12.0, 12.0))))
    return full * (1.0 - share), full * share / group.slots, float(np.exp(np.clip(theta[2], -18.0, 5.0)))


def counted(ends: Sequence[FloatArray], count_s: float, answer_s: float) -> list[FloatArray]:
    """When rollouts that end so are counted: uploads go one at a time, each with all that has ended by then,
    is counted after `count_s` and answered after `answer_s`."""
    flat = np.concatenate(ends)
    order = np.argsort(flat, kind="stable")
    ascending, told = flat[order], np.empty_like(flat)
    free_s, at = -np.inf, 0
    while at < len(ascending):
        leaves_s = max(ascending[at] + GATHER_S, free_s)
        after = int(np.searchsorted(ascending, leaves_s, side="right"))
        told[order[at:after]] = leaves_s + count_s
        free_s, at = leaves_s + answer_s, after
    bounds = np.cumsum([len(one) for one in ends])[:-1]
    return [np.sort(one) for one in np.split(told, bounds)]


def replay(
    work: Work, slots: int, base_s: float, per_sequence_s: float, order_s: float, whole_steps: bool = False
) -> list[FloatArray]:
    """When an engine of this rate ends the rollouts of each job: ascending seconds, one array a job."""
    jobs, since = work.jobs, work.jobs[0].start_s
    engine = _Engine(slots, base_s, per_sequence_s, [len(job.tokens) for job in jobs], whole_steps)
    events: list[tuple[float, int, int]] = [(job.start_s + order_s, 0, k) for k, job in enumerate(jobs)]
    for start, end in work.pauses:
        if end > since:
            events += [(start, 1, 1), (end, 1, -1)]
    for t_s, kind, value in sorted(events):
        engine.until(t_s)
        if kind == 0:
            engine.waiting.extend((tokens, value) for tokens in jobs[value].tokens)
            engine.admit()
        else:
            engine.halted += value
    engine.halted = 0
    engine.until(float("inf"))
    return [np.sort(np.array(ends)) for ends in engine.ends]


class _Engine:
    """Processor sharing: every running sequence gains one token a decode step."""

    def __init__(
        self, slots: int, base_s: float, per_sequence_s: float, sizes: Sequence[int], whole_steps: bool
    ) -> None:
        self._whole_steps = whole_steps
        self.waiting: deque[tuple[int, int]] = deque()
        self.ends: list[list[float]] = [[] for _ in sizes]
        self.halted = 0
        self._slots, self._base_s, self._each_s = slots, base_s, per_sequence_s
        self._running: list[tuple[float, int]] = []
        self._now = self._offset = 0.0

    def admit(self) -> None:
        """Fill free slots."""
        while self.waiting and len(self._running) < self._slots:
            tokens, job = self.waiting.popleft()
            first = ceil(self._offset - 1e-6) if self._whole_steps else self._offset
            heappush(self._running, (first + tokens, job))

    def until(self, t_s: float) -> None:
        """Let time pass."""
        running = self._running
        while running and not self.halted:
            step_s = self._base_s + self._each_s * len(running)
            end_s = self._now + (running[0][0] - self._offset) * step_s
            if end_s > t_s:
                self._offset += max(0.0, t_s - self._now) / step_s
                break
            self._offset, self._now = running[0][0], end_s
            while running and running[0][0] <= self._offset + 1e-9:
                self.ends[heappop(running)[1]].append(end_s)
            self.admit()
        if t_s < float("inf"):
            self._now = max(self._now, t_s)


def _recent(jobs: Sequence[Job], most: int) -> list[Job]:
    """The last jobs with about `most` rollouts, in the order of their start."""
    ordered, count = sorted(jobs, key=lambda job: job.start_s), 0
    for at in range(len(ordered) - 1, -1, -1):
        count += len(ordered[at].tokens)
        if count >= most:
            return ordered[at:]
    return ordered


def _first_guess(parts: Sequence[Work], slots: int) -> float:
    """Seconds of a full decode step if the workers were full all the time."""
    tokens = sum(sum(job.tokens) for part in parts for job in part.jobs)
    seconds = sum(max(job.ends_s[-1] for job in part.jobs) - part.jobs[0].start_s for part in parts)
    return max(1e-6, slots * seconds / max(1, tokens))
