"""The march of learner and fluid workers through time until a cycle of steps has been measured (ours).

The gate is the scheduler's: a worker holding snapshot version u starts rollouts only while
trained + buffered + running < (S + u + 1) * B. Versions that are multiples of kappa are published when
finished and are live on a worker `broadcast_s` later; one still under way is followed by the newest. The
learner trains the oldest whole groups as soon as B rollouts are there, and drops what is older than S.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from echo2.policy.generation import steady_rate
from echo2.policy.steady.fluid import FluidWorkers, LengthBins
from echo2.policy.steady.limit import marched_steps
from echo2.policy.steady.problem import Binding, SteadyProblem, SteadyState
from echo2.policy.steady.units import march_units

BINS_PER_MEAN = 4.0
# Of the groups a worker may still start, the part it is given at a time.
HANDFUL = 8
# A batch of k whole groups is complete, on average, when the fluid has brought k - 1/2 of them.
HALF_GROUP = 0.5
# A slot is free half a rollout past the last whole one, for the same reason.
HALF_ROLLOUT = 0.5 - 1e-6
_NEVER = math.inf


def predict(problem: SteadyProblem) -> SteadyState:
    """Steps/s, utilisation and staleness the run settles to, and what binds it (ours).

    Rollout lengths enter as shares of a fluid, so chance is left out: with few prompt groups a batch and
    heavy tails a real run drops somewhat more. Deterministic; milliseconds grow with steps x units.
    With S above `limit.LARGEST_S` as many steps are taken as one as bring it down to that.
    """
    march = marched_steps(problem.S, problem.kappa, problem.lengths.cv)
    scale = march.scale
    if scale == 1:
        return _March(problem).measure()
    coarse = replace(
        problem, S=march.S, kappa=march.kappa, B=problem.B * scale, train_s=problem.train_s * scale
    )
    state = _March(coarse).measure()
    return replace(
        state,
        steps_per_s=state.steps_per_s * scale,
        step_s=state.step_s / scale,
        mean_lag=min(float(problem.S), state.mean_lag * scale),
        max_lag=min(problem.S, state.max_lag * scale),
    )


class _March:
    """Clock, learner, gate and workers of one march.

    `admitted` is trained + buffered + running in rollouts; `buffer` whole groups waiting, by version; `owed`
    groups trained half a group ahead of the fluid, paid back by the completions of `owed_version` or older.
    """

    def __init__(self, problem: SteadyProblem) -> None:
        self.problem = problem
        groups = march_units(problem)
        bins = LengthBins.of(problem.lengths, problem.G, BINS_PER_MEAN)
        self.workers = [FluidWorkers(problem, group, bins) for group in groups]
        self.all_slots = sum(w.slots for w in self.workers)
        self.total_rate = math.fsum(w.rate * w.group.count for w in self.workers)
        self.ends = [_NEVER] * len(self.workers)
        self.arrivals = [_NEVER] * len(self.workers)
        self.now_s = 0.0
        self.version = 0
        self.trained_at = _NEVER
        self.admitted = 0.0
        self.owed = 0.0
        self.owed_version = 0
        self.buffer: dict[int, float] = defaultdict(float)
        self.made = self.dropped = 0.0
        self.lags: dict[int, float] = defaultdict(float)

    def measure(self) -> SteadyState:
        steps = marched_steps(self.problem.S, self.problem.kappa, self.problem.lengths.cv)
        self._fill(range(len(self.workers)))
        self._run_until(steps.warm)
        began_s = self.now_s
        self.made = self.dropped = 0.0
        self.lags.clear()
        self._run_until(steps.warm + steps.measured)
        return self._state(steps.measured, self.now_s - began_s)

    def _state(self, steps: int, seconds: float) -> SteadyState:
        problem = self.problem
        trained = math.fsum(self.lags.values())
        learner = steps * problem.train_s / seconds
        workers = self.made / seconds / problem.total_rate
        return SteadyState(
            steps_per_s=steps / seconds,
            learner_utilisation=min(1.0, learner),
            worker_utilisation=min(1.0, workers),
            binding=_binding(problem, learner, workers),
            mean_lag=sum(lag * amount for lag, amount in self.lags.items()) / max(trained, 1e-300),
            max_lag=max((lag for lag, amount in self.lags.items() if amount > 1e-3 * trained), default=0),
            step_s=seconds / steps,
            dropped_share=self.dropped / max(self.made, 1e-300),
        )

    def _run_until(self, version: int) -> None:
        while self.version < version:
            self._next_event()

    def _next_event(self) -> None:
        """Whatever comes first: the learner ends a step, a snapshot is live, a worker ends a bin."""
        first_end, first_arrival = min(self.ends), min(self.arrivals)
        self.now_s = min(self.trained_at, first_end, first_arrival)
        if self.now_s == _NEVER:
            raise ValueError(f"no progress at version {self.version}: {self.problem}")
        if self.trained_at <= self.now_s:
            self._finish_step()
        elif first_arrival <= self.now_s:
            self._arrive(self.arrivals.index(first_arrival))
        else:
            self._finish_bin(self.ends.index(first_end))

    def _finish_bin(self, index: int) -> None:
        workers = self.workers[index]
        dropped = self.dropped
        rollouts, groups = workers.finish_bin(self.now_s)
        self.made += rollouts
        for version, amount in groups:
            if version <= self.owed_version:
                paid = min(amount, self.owed)
                self.owed -= paid
                amount -= paid
            if self.version - version > self.problem.S:
                self._drop(amount)
            else:
                self.buffer[version] += amount
        self.ends[index] = workers.reschedule()
        self._train_if_ready()
        # The gate of the others has not moved unless something was dropped.
        self._fill(range(len(self.workers)) if self.dropped > dropped else (index,))

    def _drop(self, groups: float) -> None:
        self.admitted -= groups * self.problem.G
        self.dropped += groups * self.problem.G

    def _train_if_ready(self) -> None:
        problem = self.problem
        if self.trained_at < _NEVER:
            return
        for version in [v for v in self.buffer if self.version - v > problem.S]:
            self._drop(self.buffer.pop(version))
        batch = problem.B / problem.G
        if math.fsum(self.buffer.values()) - self.owed < batch - HALF_GROUP - 1e-6:
            return
        left = batch
        for version in sorted(self.buffer):
            taken = min(left, max(0.0, self.buffer[version]))
            self.buffer[version] -= taken
            self.lags[self.version - version] += taken
            left -= taken
        self.owed += left
        self.owed_version = max(self.buffer)
        self.trained_at = self.now_s + problem.train_s

    def _finish_step(self) -> None:
        self.trained_at = _NEVER
        self.version += 1
        if self.version % self.problem.kappa == 0:
            for index, workers in enumerate(self.workers):
                if workers.arriving is None:
                    self._send(index)
                else:
                    workers.waiting = self.version
        self._train_if_ready()
        self._fill(range(len(self.workers)))

    def _send(self, index: int) -> None:
        workers = self.workers[index]
        workers.arriving, workers.waiting = self.version // self.problem.kappa * self.problem.kappa, None
        self.arrivals[index] = self.now_s + workers.group.broadcast_s
        if self.problem.reading == "stall":
            self._pause(index, True)

    def _pause(self, index: int, paused: bool) -> None:
        workers = self.workers[index]
        workers.settle(self.now_s)
        workers.paused = paused
        self.ends[index] = workers.reschedule()

    def _arrive(self, index: int) -> None:
        """The snapshot is there: swap (a pause when generation had gone on), then it is live."""
        workers = self.workers[index]
        pause_s = self.problem.swap_pause_s if self.problem.reading == "overlap" else 0.0
        if pause_s > 0 and not workers.paused:
            self._pause(index, True)
            self.arrivals[index] = self.now_s + pause_s
            return
        self._pause(index, False)
        assert workers.arriving is not None
        workers.live_version, workers.arriving = workers.arriving, None
        self.arrivals[index] = _NEVER
        if workers.waiting is not None:
            self._send(index)
        self._fill((index,))

    def _fill(self, candidates: Iterable[int]) -> None:
        """Start whole groups where slots are free and the gate is open, on whoever will end them first.

        As in the scheduler, a worker's part of a scarce gate is its share by rate (`_cap`).
        """
        G = self.problem.G
        given: dict[int, float] = {}
        buffered = self.admitted - math.fsum(w.running for w in self.workers)
        waiting = []
        for i in candidates:
            w = self.workers[i]
            if w.arriving is not None and self.problem.reading == "stall":
                continue
            room = (self.problem.S + w.live_version + 1) * self.problem.B - buffered
            cap = self._cap(w, room)
            if w.running < cap - HALF_ROLLOUT:
                waiting.append((w.due_s(G), i, cap))
        heapq.heapify(waiting)
        while waiting:
            _, i, cap = heapq.heappop(waiting)
            w, more = self.workers[i], given.get(i, 0.0)
            # Half a group of room stands for a whole one, as fluid stands for a count.
            if self.admitted + G / 2 - 1e-6 > (self.problem.S + w.live_version + 1) * self.problem.B:
                continue
            room = (self.problem.S + w.live_version + 1) * self.problem.B - self.admitted
            left = cap - w.running - more
            handful = G * max(1, int(min(left, room / len(self.workers)) / G / HANDFUL))
            given[i] = more + handful
            self.admitted += handful
            if left - handful > HALF_ROLLOUT:
                heapq.heappush(waiting, (w.due_s(given[i] / w.group.count + G), i, cap))
        for i, rollouts in given.items():
            self.workers[i].settle(self.now_s)
            self.workers[i].dispatch(rollouts)
            self.ends[i] = self.workers[i].reschedule()

    def _cap(self, w: FluidWorkers, window: float) -> float:
        """Rollouts the unit may run: its slots, or its share by rate of a gate that admits fewer."""
        if window >= self.all_slots:
            return w.slots
        G, count = self.problem.G, w.group.count
        share = window * w.rate / self.total_rate / G
        return min(w.slots, max(1, round(share)) * G * count)


def _binding(problem: SteadyProblem, learner: float, workers: float) -> Binding:
    """What holds the run: a busy learner, busy workers, or the wait for fresh weights and its larger part."""
    if learner > 0.97:
        return "learner"
    if workers > 0.95:
        return "rollouts"
    generation_s = min(
        steady_rate(g.model, problem.lengths, problem.prompt_tokens, g.slots).tail_s for g in problem.workers
    )
    broadcast_s = math.fsum(g.count * g.broadcast_s for g in problem.workers)
    return "broadcast" if broadcast_s / sum(g.count for g in problem.workers) > generation_s else "freshness"
