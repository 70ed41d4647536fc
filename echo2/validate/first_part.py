"""The first part of a live run, sorted by what it says something of. Called by `calibrate`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.sim.log import Entry
from echo2.validate.steps import SeenStep


@dataclass(frozen=True)
class Life:
    """A snapshot that a worker has taken on: `took_s` from the order of `size` bytes until it was live."""

    version: int
    live_s: float
    took_s: float
    size: float


@dataclass
class FirstPart:
    """Seconds of the run. `ordered`: (worker, when, rollouts) by group; `ends`: (when, tokens) by group;
    `published`: bytes by version."""

    steps: list[SeenStep] = field(default_factory=list)
    until_s: float = 0.0
    offers: dict[str, f.WorkerOffer] = field(default_factory=dict)
    ordered: dict[int, tuple[str, float, int]] = field(default_factory=dict)
    ends: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    started_s: dict[str, float] = field(default_factory=dict)
    startup_s: dict[str, float] = field(default_factory=dict)
    sent: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    lives: dict[str, list[Life]] = field(default_factory=dict)
    links: dict[str, list[float]] = field(default_factory=dict)
    published: dict[int, float] = field(default_factory=dict)
    _under_way: dict[str, int] = field(default_factory=dict)
    _spreading: bool = False
    _training: int = 0
    _decided_s: float = 0.0

    def fact(self, fact: f.Fact) -> None:
        """Take in what happened."""
        match fact:
            case f.WorkerOffered():
                self.offers[fact.offer.worker_id] = fact.offer
            case f.WorkerJoined() if fact.worker_id in self.started_s:
                self.startup_s.setdefault(fact.worker_id, fact.t_s - self.started_s[fact.worker_id])
            case f.RolloutFinished():
                self.ends.setdefault(fact.group_id, []).append((fact.t_s, fact.tokens))
            case f.LinkMeasured() if fact.downlink_bps > 0:
                self.links.setdefault(fact.worker_id, []).append(fact.downlink_bps)
            case f.WorkerLeft() | f.SnapshotFailed():
                self._under_way.pop(fact.worker_id, None)
            case f.SnapshotLive() if (fact.worker_id, fact.version) in self.sent:
                self._under_way.pop(fact.worker_id, None)
                sent_s, size = self.sent[fact.worker_id, fact.version]
                life = Life(fact.version, fact.t_s, fact.t_s - sent_s, size)
                self.lives.setdefault(fact.worker_id, []).append(life)
            case f.StepFinished():
                turn_s = fact.t_s - self._decided_s - fact.train_s
                seen = SeenStep(fact.version, fact.train_s, self._training, turn_s, self._spreading)
                self.steps.append(seen)
                self.until_s = fact.t_s
                if fact.snapshot_bytes > 0:
                    self.published[fact.version] = fact.snapshot_bytes

    def decision(self, decision: d.Decision) -> None:
        """Take in what was decided."""
        match decision:
            case d.StartWorker():
                self.started_s.setdefault(decision.worker_id, decision.t_s)
            case d.StartGroup():
                self.ordered[decision.group_id] = (decision.worker_id, decision.t_s, decision.rollouts)
            case d.TrainStep():
                ends = [end for group_id in decision.group_ids for end in self.ends.get(group_id, ())]
                self._training = sum(tokens for _, tokens in ends)
                self._decided_s, self._spreading = decision.t_s, bool(self._under_way)
            case d.PublishSnapshot():
                for name in decision.plan.order:
                    self.sent[name, decision.version] = (decision.t_s, decision.plan.size_bytes)
                    self._under_way[name] = decision.version
            case d.FetchSnapshot():
                self.sent[decision.worker_id, decision.version] = (decision.t_s, decision.size_bytes)
                self._under_way[decision.worker_id] = decision.version
            case d.AbortTransfer():
                self._under_way.pop(decision.worker_id, None)


def look(entries: Iterable[Entry], steps: int) -> FirstPart:
    """The log up to the end of step `steps`. UserError for a log that has fewer."""
    seen = FirstPart()
    for fact, answers in entries:
        seen.fact(fact)
        for answer in answers:
            seen.decision(answer)
        if len(seen.steps) == steps:
            return seen
    raise UserError(
        f"the run has {len(seen.steps)} steps, fewer than the {steps} to calibrate from; lower --calibrate"
    )
