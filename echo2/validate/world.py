"""The simulated world with a live run's measured delays in it. Called by `check`.

`World` knows nothing of processes and HTTP. Here orders reach an engine late, rollouts are counted late, a
snapshot is live after writing, asking and checking, and workers report rates and links as live ones do.
The scheduler and the rest of the simulator are untouched: what is compared is their word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import simpy

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.generation import DecodeModel
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.inputs import SimWorker, WorldInputs
from echo2.sim.machine import Machine
from echo2.sim.network import Network
from echo2.sim.timeline import Timeline
from echo2.sim.worker import Finished, WorkerProcess
from echo2.sim.world import World
from echo2.validate.calibrate import Calibration, WorkerModel
from echo2.validate.engine_fit import EngineFit
from echo2.validate.plane import UNSHAPED_BPS, Delays, Downlink, Ledger, LinkQueue, Uplink, later


class Lengths:
    """Draws whole groups of the first part, with whatever their rollouts have in common."""

    def __init__(self, groups: Sequence[tuple[int, ...]], seed: int) -> None:
        self._groups, self._seed = groups, seed

    def of(self, prompt: int, attempt: int) -> list[float]:
        """Lengths of a group in tokens; the same for a prompt and attempt whatever the order of events."""
        rng = np.random.default_rng((self._seed, 3, prompt, attempt))
        return [float(tokens) for tokens in self._groups[int(rng.integers(len(self._groups)))]]


class Steps:
    """Step times in the order of the versions, from the calibrated kinds."""

    def __init__(self, calibration: Calibration, seed: int, spreading: Callable[[], bool]) -> None:
        self._model, self._rng = calibration.learner, np.random.default_rng((seed, 2))
        self._spreading = spreading
        self._known_s, self._version = calibration.known_s, 0

    def draw(self, rollouts: int, tokens: float) -> float:
        """Seconds of the next step."""
        self._version += 1
        seconds = self._model.draw(self._version, tokens, self._rng, self._spreading())
        return self._known_s.get(self._version, seconds)


class RemoteEngine(WorkerProcess):
    """An engine behind the control plane: orders arrive late, and what ends counts late."""

    def __init__(
        self, env: simpy.Environment, worker: SimWorker, model: WorkerModel, plane: Plane, told: Finished
    ) -> None:
        offer = worker.offer
        super().__init__(env, offer.worker_id, worker.decode, offer.slots, 0.0, self._made)
        self._told, self._ledger = told, plane.ledger
        self.link = LinkQueue(env, model.downlink_bps, plane.chance)
        hop_s, wait_s = plane.delays.hop_s[offer.worker_id], self.link.wait_s
        byte_s = 8.0 / offer.uplink_bps if model.downlink_bps <= UNSHAPED_BPS else 0.0
        self._uplink = Uplink(env, plane.ledger, hop_s, byte_s, wait_s, self._tell)
        self._downlink = Downlink(env, hop_s, wait_s, plane.apart, plane.chance)
        self._whole_steps, self._begin_s = model.engine.whole_steps, model.engine.begin_s
        self._life = 0
        self._cancelled: set[int] = set()
        self.began: Callable[[int], None] = lambda rollouts: None
        self.ended: Callable[[float], None] = lambda tokens: None

    def start(self, group_id: int, lengths: Sequence[float]) -> None:
        """Queue a group once the order has been recorded and has arrived."""
        order = partial(self._arrives, self._life, group_id, lengths)
        self._ledger.write("dispatch", partial(self._downlink.put, order))

    def cancel(self, group_id: int) -> None:
        """Stop a group, also one whose order is on its way."""
        self._cancelled.add(group_id)
        super().cancel(group_id)

    def swap(self, version: int, pause_s: float) -> None:
        """Generate with `version`: its pause is over, for it is live when it is told."""
        super().swap(version, 0.0)

    def _first_offset(self) -> float:
        """Engines that decode in steps take a sequence in at the end of the one they are at."""
        return math.ceil(self._offset - 1e-6) if self._whole_steps else self._offset

    def pause(self, seconds: float) -> None:
        """Stand still while a snapshot is taken on."""
        super().swap(self.version, seconds)

    def clear(self) -> None:
        """The worker is gone; nothing on its way to or from it counts."""
        self._life += 1
        super().clear()

    def _arrives(self, life: int, group_id: int, lengths: Sequence[float]) -> None:
        if life == self._life and group_id not in self._cancelled:
            self.began(len(lengths))
            later(self.env, self._begin_s, self._begins, life, group_id, lengths)

    def _begins(self, life: int, group_id: int, lengths: Sequence[float]) -> None:
        if life == self._life and group_id not in self._cancelled:
            super().start(group_id, lengths)

    def _made(self, engine: WorkerProcess, group_id: int, tokens: float, version: int) -> None:
        self.ended(tokens)
        self._uplink.put(tokens, self._life, group_id, tokens, version)

    def _tell(self, life: int, group_id: int, tokens: float, version: int) -> None:
        if life == self._life and group_id not in self._cancelled:
            self._told(self, group_id, tokens, version)


@dataclass(frozen=True)
class Plane:
    """What all engines share."""

    ledger: Ledger
    delays: Delays
    apart: float
    chance: np.random.Generator


class CalibratedWorld(World):
    """`World` with the numbers of a calibration; it ends after `steps`."""

    def __init__(self, inputs: WorldInputs, calibration: Calibration, seed: int, steps: int) -> None:
        self._calibration, self._seed, self._steps = calibration, seed, steps
        self._chance = np.random.default_rng((seed, 5))
        self._plane: Plane | None = None
        self._versions = sorted({v for model in calibration.workers.values() for v in model.spread_s})
        self._like: dict[int, int] = {}
        self._under_way: set[str] = set()
        super().__init__(inputs, seed, True, Timeline(False))
        self._step_times = Steps(calibration, seed, lambda: bool(self._under_way))  # type: ignore[assignment]
        self._lengths = Lengths(calibration.groups, seed)  # type: ignore[assignment]

    def _machine(self, worker: SimWorker) -> Machine:
        model = self._calibration.workers[worker.offer.worker_id]
        fitted = replace(worker, decode=decode_of(model.engine, worker.offer.slots))
        if self._plane is None:
            delays = self._calibration.delays
            chance = np.random.default_rng((self._seed, 4))
            ledger = Ledger(self.env, delays.write_s, chance)
            self._plane = Plane(ledger, delays, self._calibration.apart, chance)
        engine = RemoteEngine(self.env, fitted, model, self._plane, self._rollout_finished)
        self._meter(engine, worker.offer.slots, model)
        return Machine(worker, engine)

    def _meter(self, engine: RemoteEngine, slots: int, model: WorkerModel) -> None:
        """The worker measures its rate as a live one does, and tells it."""
        from echo2.runtime.worker.measure import RateMeter

        meter = RateMeter(slots, lambda: self.env.now)
        hop_s = self._calibration.delays.hop_s[engine.name]

        def ended(tokens: float) -> None:
            if (rate := meter.finished(int(tokens))) is not None:
                later(self.env, hop_s, self._rate, engine.name, rate.rollouts_per_s)

        engine.began, engine.ended = meter.began, ended

    def _rate(self, name: str, rollouts_per_s: float) -> None:
        self.tell(f.RateMeasured(self.env.now, name, rollouts_per_s))

    def _network(self) -> Network | ChunkNetwork:
        """Links as they are: shaped workers have their rate, everything else is in the measured spread."""
        inputs, links = self.inputs, self._settings.links
        open_links = replace(links, learner_uplink_bps=UNSHAPED_BPS, learner_downlink_bps=UNSHAPED_BPS)
        workers = tuple(replace(worker, offer=self._linked(worker.offer)) for worker in inputs.workers)
        kind = ChunkNetwork if inputs.transport == "chunk" else Network
        return kind(
            self.env, open_links, workers, self._arrived, self._sent, self._transfer_failed, None, None
        )

    def _linked(self, offer: f.WorkerOffer) -> f.WorkerOffer:
        """The offer with the rates that its link has here."""
        down_bps = self._calibration.workers[offer.worker_id].downlink_bps
        if down_bps <= UNSHAPED_BPS:
            return replace(offer, downlink_bps=down_bps)
        return replace(offer, downlink_bps=UNSHAPED_BPS, uplink_bps=UNSHAPED_BPS)

    def _train(self, decision: d.TrainStep) -> None:
        if self._plane is not None:
            self._plane.ledger.write("claim", lambda: None)
        super()._train(decision)

    def _step_finished(self, event: simpy.Event) -> None:
        version, seconds = cast(tuple[int, float], event.value)
        turn_s = float(self._chance.choice(self._calibration.learner.turns_s))
        later(self.env, turn_s, self._told, version, seconds)

    def _told(self, version: int, seconds: float) -> None:
        """The end of a step, as the driver comes to it."""
        self.metrics.train_s.append(seconds)
        self.metrics.step_end_s.append(self.env.now)
        size = 0.0
        if version % self._settings.publish_period == 0:
            drawn = float(self._chance.choice(self._calibration.payloads))
            size = self._calibration.published.get(version, drawn)
        self.tell(f.StepFinished(self.env.now, version, seconds, size))
        if version >= self._steps and not self._done.triggered:
            self._done.succeed()

    def _start_worker(self, decision: d.StartWorker) -> None:
        machine = self.machines[decision.worker_id]
        machine.meter.start(self.env.now)
        seconds = self._calibration.workers[machine.name].startup_s
        timer = self.env.timeout(seconds, machine)
        timer.callbacks.append(self._came_up)
        machine.starting = timer

    def _receive(self, plan: BroadcastPlan, version: int, source: str) -> None:
        for name in plan.order:
            cast(RemoteEngine, self.machines[name].engine).link.begins(version, plan.size_bytes)
            self._under_way.add(name)
        super()._receive(plan, version, source)

    def _arrived(self, name: str, version: int) -> None:
        cast(RemoteEngine, self.machines[name].engine).link.ends(version)
        spread = self._calibration.workers[name].spread_s
        like = self._like.setdefault(version, int(self._chance.choice(self._versions)))
        seconds = spread.get(like)
        if seconds is None:
            seconds = float(self._chance.choice(list(spread.values())))
        pause_s = min(max(0.0, seconds), self._calibration.workers[name].pause_s)
        later(self.env, seconds - pause_s, self._pauses, name, version, pause_s)

    def _pauses(self, name: str, version: int, pause_s: float) -> None:
        """The swap begins: what was seen from publication to live ends with it."""
        if self.machines[name].expects(version):
            cast(RemoteEngine, self.machines[name].engine).pause(pause_s)
        later(self.env, pause_s, self._goes_live, name, version)

    def _goes_live(self, name: str, version: int) -> None:
        if self.machines[name].expects(version):
            self._under_way.discard(name)
            if reported := self._calibration.workers[name].reported_bps:
                bps = float(self._chance.choice(reported))
                self.tell(f.LinkMeasured(self.env.now, name, 0.0, bps))
            super()._arrived(name, version)

    def _down(self, machine: Machine, cause: str) -> None:
        self._under_way.discard(machine.name)
        super()._down(machine, cause)

    def _abort(self, decision: d.AbortTransfer) -> None:
        self._under_way.discard(decision.worker_id)
        super()._abort(decision)

    def _measure_link(self, machine: Machine) -> None:
        """Told with each snapshot, as live workers do."""


def decode_of(fit: EngineFit, slots: int) -> DecodeModel:
    """The fitted engine as a decode model: a table of its two ends, linear in between."""
    ends = (1.0, float(max(2, slots)))
    return DecodeModel(ends, tuple(fit.step_s(n) for n in ends), (0.0, 0.0), max_running=slots)
