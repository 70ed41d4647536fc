"""The simulated world's driver: happenings become facts, decisions become happenings. It never decides.

`World.tell` gives a fact to the scheduler and carries out what it answers. Facts that arise while
decisions are carried out wait their turn, so the log reads: a fact, its decisions, the next fact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import simpy

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.broadcast import BroadcastPlan
from echo2.policy.links import LEARNER
from echo2.policy.provision import receiver_egress_usd
from echo2.policy.scheduler import Scheduler
from echo2.sim.chunks import ChunkNetwork
from echo2.sim.faults import Faults
from echo2.sim.inputs import PriceChange, SimWorker, WorldInputs
from echo2.sim.learner import StepTimes
from echo2.sim.lengths import LengthSource
from echo2.sim.machine import Machine
from echo2.sim.market import replay_availability, replay_prices
from echo2.sim.metrics import Metrics
from echo2.sim.network import Network
from echo2.sim.timeline import Timeline
from echo2.sim.worker import WorkerProcess

Entry = tuple[f.Fact, list[d.Decision]]
LINK_NEWS = 0.1


class World:
    """One simulated run. Build it, `run()`, then read `metrics`, `scheduler` and `entries`."""

    def __init__(self, inputs: WorldInputs, seed: int, keep_log: bool, timeline: Timeline) -> None:
        self.inputs = inputs
        self.env = simpy.Environment()
        self.scheduler = Scheduler(inputs.settings)
        self.metrics = Metrics()
        self.timeline = timeline
        self.entries: list[Entry] = []
        self.facts = self.decisions = 0
        self.wall_s = 0.0
        self._keep_log = keep_log
        self._settings = inputs.settings
        self._step_times = StepTimes(inputs.learner, inputs.prompt_tokens, seed)
        self._lengths = LengthSource(inputs.lengths, inputs.settings.group_size, seed)
        self._inbox: deque[f.Fact] = deque()
        self._carrying = False
        self._timers: dict[str, simpy.Event] = {}
        self._lengths_of: dict[int, list[float]] = {}
        self._egress: dict[tuple[str, int], float] = {}
        self._done = self.env.event()
        self.machines = {worker.offer.worker_id: self._machine(worker) for worker in inputs.workers}
        self.network = self._network()
        self._faults = Faults(self.env, inputs.relay_faults, inputs.workers, self.network, self.tell)
        self._carry: dict[type, Callable[[Any], None]] = {
            d.StartGroup: self._start_group,
            d.SetTimer: self._set_timer,
            d.TrainStep: self._train,
            d.PublishSnapshot: self._publish,
            d.Reroute: self._reroute,
            d.FetchSnapshot: self._fetch,
            d.AbortTransfer: self._abort,
            d.StartWorker: self._start_worker,
            d.StopWorker: self._stop_worker,
            d.CancelGroup: self._cancel_group,
            d.DropGroup: self._drop_group,
            d.FinishRun: self._finish,
        }

    def run(self, limit_s: float) -> bool:
        """Run to the end of the last step; False when `limit_s` of simulated time were not enough."""
        for worker in self.inputs.workers:
            if worker.availability is None:
                self._offer(worker)
            else:
                self.env.process(replay_availability(self.env, worker, self._offer, self._withdraw))
        self.env.process(replay_prices(self.env, self.inputs.price_changes, self._reprice))
        begin = simpy.Timeout(self.env, 0.0)
        begin.callbacks.append(lambda _: self.tell(f.RunStarted(self.env.now)))
        self.env.run(until=self.env.any_of([self._done, self.env.timeout(limit_s)]))
        self.wall_s = self.env.now
        for machine in self.machines.values():
            machine.meter.stop(self.wall_s)
        return bool(self._done.triggered)

    def tell(self, fact: f.Fact) -> None:
        """Give a fact to the scheduler and carry out its decisions."""
        self._inbox.append(fact)
        if self._carrying:
            return
        self._carrying = True
        carry = self._carry
        while self._inbox:
            fact = self._inbox.popleft()
            answers = self.scheduler.observe(fact)
            self.facts += 1
            self.decisions += len(answers)
            if self._keep_log:
                self.entries.append((fact, answers))
            for answer in answers:
                carry[type(answer)](answer)
        self._carrying = False

    # ---- workers -------------------------------------------------------------------------------

    def _machine(self, worker: SimWorker) -> Machine:
        offer, prompt = worker.offer, self.inputs.prompt_tokens
        engine = WorkerProcess(
            self.env, offer.worker_id, worker.decode, offer.slots, prompt, self._rollout_finished
        )
        return Machine(worker, engine)

    def _offer(self, worker: SimWorker) -> None:
        machine = self.machines[worker.offer.worker_id]
        machine.offered = True
        self.tell(f.WorkerOffered(self.env.now, machine.offer))

    def _withdraw(self, worker: SimWorker) -> None:
        machine = self.machines[worker.offer.worker_id]
        machine.offered = False
        self.tell(f.OfferWithdrawn(self.env.now, machine.name, "not available"))
        if machine.up or machine.starting is not None:
            self.metrics.preemptions += 1
            self._down(machine, "preempted")

    def _reprice(self, change: PriceChange) -> None:
        for machine in self.machines.values():
            if machine.spec.offer.pool == change.pool:
                price = machine.spec.offer.price_usd_per_h * change.factor
                machine.meter.change(self.env.now, price)
                self.tell(f.PriceChanged(self.env.now, machine.name, price))

    def _start_worker(self, decision: d.StartWorker) -> None:
        machine = self.machines[decision.worker_id]
        if not machine.offered:
            gone = f.WorkerLeft(self.env.now, machine.name, machine.incarnation, "not available")
            self.tell(gone)
            return
        machine.meter.start(self.env.now)
        timer = self.env.timeout(machine.spec.offer.startup_s, machine)
        timer.callbacks.append(self._came_up)
        machine.starting = timer

    def _came_up(self, event: simpy.Event) -> None:
        machine = cast(Machine, event.value)
        if event is not machine.starting:
            return
        machine.starting = None
        machine.up = True
        machine.up_since_s = self.env.now
        machine.incarnation += 1
        machine.engine.version = 0
        self.timeline.began("up", machine.name, self.env.now)
        self.tell(f.WorkerJoined(self.env.now, machine.name, machine.incarnation, 0))

    def _stop_worker(self, decision: d.StopWorker) -> None:
        self._down(self.machines[decision.worker_id], "stopped")

    def _down(self, machine: Machine, cause: str) -> None:
        if machine.up:
            self.timeline.ended("up", machine.name, self.env.now)
        machine.down(self.env.now)
        # The scheduler hears of it first, so that it does not fetch from the one that is gone.
        self.tell(f.WorkerLeft(self.env.now, machine.name, machine.incarnation, cause))
        self.network.leave(machine.name)

    # ---- rollouts ------------------------------------------------------------------------------

    def _start_group(self, decision: d.StartGroup) -> None:
        lengths = self._lengths.of(decision.prompt, decision.attempt)
        self.metrics.dispatched_rollouts += decision.rollouts
        total = sum(lengths)
        self.metrics.dispatched_tokens += total
        self._lengths_of[decision.group_id] = lengths
        self.machines[decision.worker_id].engine.start(decision.group_id, lengths)

    def _cancel_group(self, decision: d.CancelGroup) -> None:
        self.machines[decision.worker_id].engine.cancel(decision.group_id)

    def _drop_group(self, decision: d.DropGroup) -> None:
        self._lengths_of.pop(decision.group_id, None)
        size = self._settings.group_size
        self.metrics.dropped_rollouts += size
        self.metrics.requeued_rollouts += size if decision.requeued else 0

    def _rollout_finished(self, engine: WorkerProcess, group_id: int, tokens: float, version: int) -> None:
        self.machines[engine.name].rollouts += 1
        self.tell(f.RolloutFinished(self.env.now, engine.name, group_id, int(tokens), version))

    # ---- learner -------------------------------------------------------------------------------

    def _train(self, decision: d.TrainStep) -> None:
        size = self._settings.group_size
        for lag in decision.staleness:
            self.metrics.staleness[lag] += size
        lengths = [x for group_id in decision.group_ids for x in self._lengths_of.pop(group_id)]
        tokens = sum(lengths)
        self.metrics.trained_tokens += tokens
        self.metrics.trained_squares += sum(x * x for x in lengths)
        self.metrics.trained_rollouts += size * len(decision.group_ids)
        seconds = self._step_times.draw(self._settings.rollouts_per_step, tokens)
        timer = self.env.timeout(seconds, (decision.version + 1, seconds))
        timer.callbacks.append(self._step_finished)
        self.timeline.span("train", LEARNER, self.env.now, seconds, decision.version)

    def _step_finished(self, event: simpy.Event) -> None:
        version, seconds = cast(tuple[int, float], event.value)
        self.metrics.train_s.append(seconds)
        self.metrics.step_end_s.append(self.env.now)
        published = version % self._settings.publish_period == 0
        size = self._settings.snapshot_bytes if published else 0.0
        self.tell(f.StepFinished(self.env.now, version, seconds, size))

    # ---- snapshots -----------------------------------------------------------------------------

    def _network(self) -> Network | ChunkNetwork:
        inputs = self.inputs
        kind = ChunkNetwork if inputs.transport == "chunk" else Network
        return kind(
            self.env,
            self._settings.links,
            inputs.workers,
            self._arrived,
            self._sent,
            self._transfer_failed,
            inputs.learner_shape,
            inputs.learner_bucket,
        )

    def _publish(self, decision: d.PublishSnapshot) -> None:
        self.metrics.broadcast(decision)
        plan = decision.plan
        sites = {name: self.machines[name].spec.offer.site for name in plan.order}
        for name, usd in receiver_egress_usd(plan, self._settings.links, sites).items():
            self._egress[name, decision.version] = usd
        self._receive(plan, decision.version, LEARNER)

    def _fetch(self, decision: d.FetchSnapshot) -> None:
        self.metrics.published(decision.version, self.env.now)
        links = self._settings.links
        target = self.machines[decision.worker_id].spec.offer
        home = links.learner_site
        if decision.source_id != LEARNER:
            home = self.machines[decision.source_id].spec.offer.site
        price = float(links.egress[links.index(home), links.index(target.site)])
        size = self.machines[decision.worker_id].missing(decision.version) * decision.size_bytes
        self._egress[decision.worker_id, decision.version] = price * size / 1e9
        plan = direct_plan(decision.worker_id, size, decision.bound)
        self._receive(plan, decision.version, decision.source_id)

    def _reroute(self, decision: d.Reroute) -> None:
        self.metrics.rerouted(decision)
        shares, direct = decision.shares, decision.direct_share
        self.network.reroute(decision.version, decision.worker_ids, decision.without, shares, direct)

    def _receive(self, plan: BroadcastPlan, version: int, source: str) -> None:
        for name in plan.order:
            machine = self.machines[name]
            self.timeline.began("receive", name, self.env.now, version)
            machine.receives(version, source)
            if self._settings.reading == "stall":
                machine.hold(version)
        self.network.send(version, plan, source)
        self._faults.sent(version, plan, source)

    def _sent(self, name: str, version: int, share: float) -> None:
        usd = self._egress.pop((name, version), 0.0) * share
        self.metrics.egress_usd += usd
        self.machines[name].received(version, share)
        self.machines[name].egress_usd += usd

    def _arrived(self, name: str, version: int) -> None:
        machine = self.machines[name]
        # The last bits were under way when the transfer was given up for that of a newer version.
        if not machine.expects(version):
            return
        machine.release()
        self.timeline.ended("receive", name, self.env.now)
        self._measure_link(machine)
        machine.engine.swap(version, self._settings.swap_pause_s)
        self.metrics.live(version, self.env.now, name, machine.up_since_s)
        self.tell(f.SnapshotLive(self.env.now, name, machine.incarnation, version))

    def _measure_link(self, machine: Machine) -> None:
        """A worker reports what its link gives now when that differs from its last report by a quarter."""
        shape, offer = machine.spec.shape, machine.spec.offer
        factor = shape.at(self.env.now) if shape else 1.0
        if factor > 0 and abs(factor / machine.link_factor - 1.0) > LINK_NEWS:
            machine.link_factor = factor
            up, down = offer.uplink_bps * factor, offer.downlink_bps * factor
            self.tell(f.LinkMeasured(self.env.now, machine.name, up, down))

    def _abort(self, decision: d.AbortTransfer) -> None:
        self.machines[decision.worker_id].release()
        self.network.abort(decision.worker_id, decision.version)

    def _transfer_failed(self, name: str, version: int) -> None:
        machine = self.machines[name]
        machine.release()
        cause, source = "its source is gone", machine.source
        self.tell(f.SnapshotFailed(self.env.now, name, machine.incarnation, version, source, cause))

    # ---- time ----------------------------------------------------------------------------------

    def _set_timer(self, decision: d.SetTimer) -> None:
        timer = self.env.timeout(max(0.0, decision.at_s - self.env.now), decision.name)
        timer.callbacks.append(self._timer_fired)
        self._timers[decision.name] = timer

    def _timer_fired(self, event: simpy.Event) -> None:
        name = cast(str, event.value)
        if self._timers.get(name) is event:
            del self._timers[name]
            self.tell(f.TimerFired(self.env.now, name))

    def _finish(self, decision: d.FinishRun) -> None:
        if not self._done.triggered:
            self._done.succeed()


def direct_plan(worker_id: str, size_bytes: float, bound_s: float) -> BroadcastPlan:
    """A snapshot sent straight to one worker."""
    return BroadcastPlan(
        topology="star", order=(worker_id,), parents=(-1,), shares=(), direct_share=0.0, fanout=1, chunks=1,
        size_bytes=size_bytes, receiver_s=(bound_s,), time_s=bound_s, mean_s=bound_s, egress_usd=0.0,
        bound_s=bound_s, ratio=1.0, bound_kind="fluid", reason="sent to one worker",
    )  # fmt: skip
