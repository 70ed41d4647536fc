"""What happened in a span of steps, by the facts and decisions alone: the same measure for both worlds.

Called by `compare` for the live log and for the logs of the simulations. Nothing here knows which world a
log is from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy import wire
from echo2.policy.scheduler import Scheduler
from echo2.policy.settings import SchedulerSettings
from echo2.sim.log import Entry

CAUSES = ("rollouts", "publication", "workers")


@dataclass
class Measures:
    """A span of steps. Shares are of its wall time; rollouts are counted one by one.

    `tails_s`: seconds until the last receiver had it, of each version published in the span.
    """

    steps: int = 0
    wall_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    bubble_s: dict[str, float] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)
    dispatched: int = 0
    dropped: int = 0
    tails_s: list[float] = field(default_factory=list)
    usd: float = 0.0
    paid_s: float = 0.0
    busy_s: float = 0.0


@dataclass
class _Seat:
    """A worker as the log shows it."""

    price_usd_per_h: float = 0.0
    in_flight: int = 0
    paid: bool = False
    up_since_s: float = float("inf")


class _Meter:
    """Walks a log once. Accounts the time between two facts to whatever held then."""

    def __init__(self, settings: SchedulerSettings, after: int, until: int) -> None:
        self.made = Measures()
        self._settings, self._after, self._until = settings, after, until
        self._version, self._now = 0, 0.0
        self._seats: dict[str, _Seat] = {}
        self._groups: dict[int, tuple[str, int]] = {}
        self._published: dict[int, float] = {}
        self._arrived: dict[int, float] = {}
        self._last_end_s = 0.0

    @property
    def inside(self) -> bool:
        """Whether the span is being walked."""
        return self._after <= self._version < self._until

    def fact(self, fact: f.Fact, idle: str) -> None:
        """`idle` is what the learner waited for since the fact before, "" while it trained."""
        seconds, self._now = fact.t_s - self._now, fact.t_s
        if self.inside:
            self._account(seconds, idle)
        match fact:
            case f.WorkerOffered():
                self._seat(fact.offer.worker_id).price_usd_per_h = fact.offer.price_usd_per_h
            case f.PriceChanged():
                self._seat(fact.worker_id).price_usd_per_h = fact.price_usd_per_h
            case f.WorkerJoined():
                self._seat(fact.worker_id).up_since_s = fact.t_s
            case f.WorkerLeft():
                self._left(fact.worker_id)
            case f.RolloutFinished():
                self._rollout(fact.group_id)
            case f.SnapshotLive():
                self._live(fact)
            case f.StepFinished():
                self._step(fact)

    def decision(self, decision: d.Decision) -> None:
        """What was decided on the last fact."""
        made, size = self.made, self._settings.group_size
        match decision:
            case d.StartWorker():
                self._seat(decision.worker_id).paid = True
            case d.StartGroup():
                self._groups[decision.group_id] = (decision.worker_id, decision.rollouts)
                self._seat(decision.worker_id).in_flight += decision.rollouts
                made.dispatched += decision.rollouts * self.inside
            case d.DropGroup():
                self._drop(decision.group_id)
                made.dropped += size * self.inside
            case d.TrainStep() if self.inside:
                for lag in decision.staleness:
                    made.staleness[lag] += size
            case d.PublishSnapshot():
                self._published.setdefault(decision.version, self._now)
                made.usd += decision.plan.egress_usd * self.inside
            case d.FetchSnapshot():
                self._published.setdefault(decision.version, self._now)

    def result(self) -> Measures:
        """The span, once the log has ended."""
        self.made.tails_s = list(self._arrived.values())
        return self.made

    def _account(self, seconds: float, idle: str) -> None:
        made = self.made
        made.wall_s += seconds
        if idle:
            made.bubble_s[idle] = made.bubble_s.get(idle, 0.0) + seconds
        paid = [seat for seat in self._seats.values() if seat.paid]
        price = self._settings.learner_usd_per_h + sum(seat.price_usd_per_h for seat in paid)
        made.usd += seconds * price / 3600.0
        made.paid_s += seconds * len(paid)
        made.busy_s += seconds * sum(seat.in_flight > 0 for seat in paid)

    def _seat(self, name: str) -> _Seat:
        return self._seats.setdefault(name, _Seat())

    def _left(self, name: str) -> None:
        seat = self._seat(name)
        seat.paid, seat.in_flight, seat.up_since_s = False, 0, float("inf")
        self._groups = {g: held for g, held in self._groups.items() if held[0] != name}

    def _rollout(self, group_id: int) -> None:
        if (held := self._groups.get(group_id)) is None:
            return
        self._seat(held[0]).in_flight -= 1
        self._groups[group_id] = (held[0], held[1] - 1)

    def _drop(self, group_id: int) -> None:
        if (held := self._groups.pop(group_id, None)) is not None:
            self._seat(held[0]).in_flight -= held[1]

    def _live(self, fact: f.SnapshotLive) -> None:
        published_s = self._published.get(fact.version)
        known = published_s is not None and self._seat(fact.worker_id).up_since_s <= published_s
        if known and published_s is not None and self._after <= fact.version < self._until:
            self._arrived[fact.version] = fact.t_s - published_s

    def _step(self, fact: f.StepFinished) -> None:
        if self.inside:
            self.made.steps += 1
            self.made.step_s.append(fact.t_s - self._last_end_s)
            self.made.train_s.append(fact.train_s)
        self._last_end_s = fact.t_s
        self._version = fact.version


def measure(entries: Sequence[Entry], settings: SchedulerSettings, after: int, until: int) -> Measures:
    """Steps `after` + 1 to `until` of a log, versions `after` to `until` - 1 published.

    The scheduler is replayed beside it: what an idle learner waits for is the scheduler's word.
    """
    meter, scheduler = _Meter(settings, after, until), Scheduler(settings)
    started = False
    for fact, answers in entries:
        waits = started and not scheduler.training and not scheduler.finished
        meter.fact(fact, scheduler.waiting_for() if waits else "")
        scheduler.observe(fact)
        started = started or isinstance(fact, f.RunStarted)
        for answer in answers:
            meter.decision(answer)
    return meter.result()


def first_difference(entries: Sequence[Entry], settings: SchedulerSettings) -> str:
    """Where the scheduler of this version decides otherwise than the log says; "" where it does not."""
    scheduler = Scheduler(settings)
    for fact, answers in entries[:-1]:  # the last fact's decisions may be cut off
        ours = scheduler.observe(fact)
        if ours != answers:
            pairs = zip([*map(wire.dumps, answers), "nothing more"], [*map(wire.dumps, ours), "nothing more"])
            was, now = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            return f"at {fact.t_s:.3f} s it decided {was[:160]}, now {now[:160]}"
    return ""
