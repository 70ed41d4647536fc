"""The roster: which workers are worth their price now. Starts and stops them, with hysteresis.

Called by the scheduler. At the start it provisions like the planner (`serial.provision_run`); afterwards
it keeps the rate that was found necessary with as few changes as possible (`activation.revise`): at once
when a worker is lost, otherwise when prices, rates or offers changed and the last review is old enough. The
plain rules (`selection.keep`) only fill gaps and stop nobody.
"""

from __future__ import annotations

from echo2.policy.activation import Activation, Candidate, HysteresisPolicy, revise
from echo2.policy.decisions import Decision, SetTimer, StartWorker
from echo2.policy.fleet import ACTIVE, Fleet, Status, Worker
from echo2.policy.provision import Provision
from echo2.policy.selection import keep
from echo2.policy.serial import provision_run
from echo2.policy.settings import SchedulerSettings
from echo2.policy.worth import Demand, cost_usd_per_h, effect, join_s

NO_COST_USD_PER_H = 1e-6
FIRST_COOL_DOWN_S = 60.0
LONGEST_COOL_DOWN_S = 900.0


class Roster:
    """Carries no clock: the time comes with every call."""

    def __init__(self, settings: SchedulerSettings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._began: Provision | None = None
        self._reviewed_s = 0.0
        self._egress_usd_per_h: dict[str, float] = {}
        self._banned_until: dict[str, float] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        self._relieves: dict[str, list[str]] = {}
        self._short = False
        self._guessed = self._grown = False
        self.changed = False
        self.bound_usd_per_h = 0.0

    def begin(self, t_s: float, out: list[Decision]) -> None:
        """Choose the first set of workers and start it. The offers known now are the pool."""
        pool = self._fleet.in_status(Status.OFFERED, *ACTIVE)
        self._reviewed_s = t_s
        if not pool:
            return
        activation = self._provision(pool).activation
        # Those that are up already and not chosen are weighed at the first review.
        self.changed = any(w.status in ACTIVE and w.worker_id not in activation.chosen for w in pool)
        self._short = not activation.feasible
        self._start_missing(t_s, activation, out)

    def offered(self, worker: Worker) -> None:
        """A worker is on offer, or its offer changed: it is weighed at the next review.

        Where the need is a guess from the pool (no plan, and a learner that has to idle), a larger pool may
        keep it busy: the guess is made anew at once.
        """
        self.changed = True
        if not worker.broadcast_s:
            worker.broadcast_s = self._settings.links.solo_s(worker.offer, self._settings.snapshot_bytes)
        if self._guessed and self._began and worker.worker_id not in self._began.broadcast_s:
            self._short = self._grown = True

    def _provision(self, pool: list[Worker]) -> Provision:
        settings = self._settings
        self._began = provision_run(
            [worker.offer for worker in pool],
            settings.links,
            settings.demand(settings.train_s),
            settings.learner_usd_per_h,
            settings.activation,
            settings.topologies,
            settings.serial_rate,
        )
        self._guessed = self._began.regime == "serial" and settings.serial_rate <= 0
        self._grown = False
        self.bound_usd_per_h = self._began.activation.bound_usd_per_h
        self._egress_usd_per_h = self._began.egress_usd_per_h
        for worker in pool:
            worker.broadcast_s = self._began.broadcast_s[worker.worker_id]
        return self._began

    def due(self, t_s: float) -> bool:
        """Whether something changed and the last review is old enough."""
        settings = self._settings
        return (self.changed or self._short) and t_s - self._reviewed_s >= settings.review_s

    def lost(self, t_s: float, worker: Worker, cause: str) -> None:
        """A worker left. One that failed is left alone for a while; a preempted one until it is offered.

        The while doubles with each failure, until it has held out for the longest of them.
        """
        if cause not in ("preempted", "stopped"):
            count, last_s = self._failures.get(worker.worker_id, (0, t_s))
            count = 0 if t_s - last_s > 2 * LONGEST_COOL_DOWN_S else count
            self._failures[worker.worker_id] = (count + 1, t_s)
            alone_s = min(LONGEST_COOL_DOWN_S, FIRST_COOL_DOWN_S * 2**count)
            self._banned_until[worker.worker_id] = t_s + alone_s
        self._short = True
        self._relieves.pop(worker.worker_id, None)

    def reached(self, worker: Worker) -> list[tuple[Worker, str]]:
        """A worker works: those it replaces can be stopped, each with the reason."""
        self._banned_until.pop(worker.worker_id, None)
        names = self._relieves.pop(worker.worker_id, [])
        relieved = [self._fleet[name] for name in names]
        return [(w, f"replaced by {worker.worker_id}") for w in relieved if w.status in ACTIVE]

    def overdue(self, name: str) -> Worker | None:
        """The worker of this name if it is still starting."""
        worker = self._fleet.get(name)
        return worker if worker is not None and worker.status is Status.STARTING else None

    def review(self, t_s: float, train_s: float, out: list[Decision]) -> list[tuple[Worker, str]]:
        """Start what is missing and return the workers to be stopped, each with the reason."""
        if self._began is None:
            self.begin(t_s, out)
            return []
        everyone = self._settings.activation == "all"
        if not (self._short or self.due(t_s) or (everyone and self.changed)):
            return []
        if self._grown:
            self._provision(self._fleet.in_status(Status.OFFERED, *ACTIVE))
        demand = self._settings.demand(train_s)
        options = self._candidates(t_s, demand)
        if not options:
            self._retry(t_s, out)
            return []
        if self._settings.activation != "cost":
            kept = keep(self._settings.activation, options, self._needed(demand))
            self._reviewed(t_s, kept, out)
            self._start_missing(t_s, kept, out)
            return []
        revision = revise(options, self._needed(demand), HysteresisPolicy())
        self._reviewed(t_s, revision.activation, out)
        for name, reason in revision.start:
            self._start(t_s, self._fleet[name], reason, out)
        # One that is replaced goes on until its successor works, so that nothing is lost meanwhile.
        for old, new in revision.handover:
            self._relieves.setdefault(new, []).append(old)
        held = {old for old, _ in revision.handover}
        stop = [(self._fleet[name], reason) for name, reason in revision.stop if name not in held]
        return [(worker, reason) for worker, reason in stop if worker.status in ACTIVE]

    def _reviewed(self, t_s: float, activation: Activation, out: list[Decision]) -> None:
        self.bound_usd_per_h = activation.bound_usd_per_h
        self._reviewed_s = t_s
        self.changed = False
        self._short = not activation.feasible
        if self._short or self._settings.activation == "all":
            self._retry(t_s, out)

    def _start_missing(self, t_s: float, activation: Activation, out: list[Decision]) -> None:
        reasons = dict(activation.reasons)
        for name in activation.chosen:
            if self._fleet[name].status is Status.OFFERED:
                self._start(t_s, self._fleet[name], reasons.get(name, activation.method), out)

    def _retry(self, t_s: float, out: list[Decision]) -> None:
        """Ask again when the first of the workers that failed has cooled down."""
        bans = [until for until in self._banned_until.values() if until > t_s]
        if bans:
            out.append(SetTimer(t_s, "review", min(bans), "workers that failed may be asked again then"))

    def _needed(self, demand: Demand) -> float:
        assert self._began is not None
        if self._began.regime == "overlap":
            return demand.rollouts_per_s
        return self._began.activation.needed

    def _candidates(self, t_s: float, demand: Demand) -> list[Candidate]:
        options = []
        leaving = {name for names in self._relieves.values() for name in names}
        for worker in self._fleet:
            active = worker.status in ACTIVE
            name = worker.worker_id
            if name in leaving:
                continue
            if not active and (
                worker.status is not Status.OFFERED or self._banned_until.get(name, 0.0) > t_s
            ):
                continue
            options.append(
                Candidate(
                    worker_id=name,
                    cost_usd_per_h=self._cost(worker, demand),
                    rate=self._rate(worker, demand),
                    active=active,
                    locked=active and t_s < worker.lease_until_s,
                    startup_s=worker.offer.startup_s,
                )
            )
        return options

    def _rate(self, worker: Worker, demand: Demand) -> float:
        assert self._began is not None
        if self._began.regime == "serial":
            return worker.offer.rollouts_per_s
        joins_s = join_s(worker.offer, self._settings.links, demand)
        return effect(worker.offer, demand, worker.broadcast_s, joins_s).rollouts_per_s

    def _cost(self, worker: Worker, demand: Demand) -> float:
        egress = self._egress_usd_per_h.get(worker.worker_id)
        if egress is None:
            links = self._settings.links
            price = links.egress[links.index(links.learner_site), links.index(worker.offer.site)]
            direct = float(price) * demand.snapshot_bytes / 1e9
            return max(NO_COST_USD_PER_H, cost_usd_per_h(worker.offer, direct, demand))
        return max(NO_COST_USD_PER_H, worker.offer.price_usd_per_h + egress)

    def _start(self, t_s: float, worker: Worker, reason: str, out: list[Decision]) -> None:
        worker.reset(Status.STARTING)
        worker.lease_until_s = t_s + worker.offer.min_lease_s
        out.append(StartWorker(t_s, worker.worker_id, reason, self.bound_usd_per_h))
        wait = 3.0 * worker.offer.startup_s + self._settings.grace_s
        out.append(SetTimer(t_s, f"startup:{worker.worker_id}", t_s + wait, "the worker must be up by then"))
