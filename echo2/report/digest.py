"""What a report needs of a run's log: one pass over `log.jsonl`, whatever its length.

Called by `record`. It keeps spans, counts and a capped sample of the decisions, never the log itself. The
idle causes follow the scheduler's own rule (`Scheduler.waiting_for`), so their sums equal the summary's;
a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.report.decisions import DecisionSample
from echo2.sim.log import DECISIONS, END

Message = dict[str, Any]
Steps = list[tuple[float, int]]


@dataclass
class Dissemination:
    """One version on its way: when published, to how many, predicted and real seconds.

    `arrivals_s` are of the workers the plan named; `caught_up` counts later ones (joiners, stragglers).
    """

    version: int
    published_s: float
    topology: str
    targets: set[str] = field(default_factory=set)
    size_bytes: float = 0.0
    planned_s: float = 0.0
    bound_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    caught_up: int = 0

    @property
    def tail_s(self) -> float | None:
        """Seconds until the last planned receiver had it; None while none has."""
        return max(self.arrivals_s, default=None)


@dataclass
class LogDigest:
    """The course of a run. Seconds since its beginning; step functions are (time, value from then on)."""

    settings: Message = field(default_factory=dict)
    train: list[tuple[float, float, int]] = field(default_factory=list)
    idle: list[tuple[float, float, str]] = field(default_factory=list)
    workers_up: Steps = field(default_factory=lambda: [(0.0, 0)])
    receiving: Steps = field(default_factory=lambda: [(0.0, 0)])
    versions: dict[int, Dissemination] = field(default_factory=dict)
    activations: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    decisions: DecisionSample = field(default_factory=DecisionSample)
    end_s: float = 0.0
    note: str = ""

    def idle_by_cause(self) -> dict[str, float]:
        """Idle seconds of the learner by what it waited for."""
        out: dict[str, float] = {}
        for _, seconds, cause in self.idle:
            out[cause] = out.get(cause, 0.0) + seconds
        return out


def digest(path: Path) -> LogDigest:
    """Read a log. One that was cut off is read as far as it goes, and `note` says so."""
    reader = _Reader()
    for number, message in _messages(path, reader.out):
        try:
            reader.take(message)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path}:{number}: not a line of a run log ({type(error).__name__}: {error}); was it edited?"
            ) from error
    return reader.out


def _messages(path: Path, out: LogDigest) -> Iterator[tuple[int, Message]]:
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    if line.endswith("\n"):
                        raise UserError(
                            f"{path}:{number}: not JSON: {line[:80]!r}; was it edited?"
                        ) from error
                    out.note = f"the log ends in the middle of line {number}: the run was cut off there"
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start}); give the log as it was written"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


class _Reader:
    """Follows the log line by line."""

    def __init__(self) -> None:
        self.out = LogDigest()
        self._now = 0.0
        self._busy_since: float | None = None
        self._started = self._finished = False
        self._running: dict[int, list[int]] = {}
        self._rollouts = 0
        self._up: set[str] = set()
        self._inbound: set[str] = set()
        self._handlers: dict[str, Callable[[Message], None]] = {
            "Settings": self._settings,
            "RunStarted": self._run_started,
            "WorkerJoined": self._joined,
            "WorkerLeft": self._left,
            "RolloutFinished": self._rollout,
            "StepFinished": self._step,
            "SnapshotLive": self._live,
            "SnapshotFailed": self._not_received,
            "AbortTransfer": self._not_received,
            "StartGroup": self._start_group,
            "CancelGroup": self._group_gone,
            "DropGroup": self._group_gone,
            "TrainStep": self._train,
            "PublishSnapshot": self._publish,
            "FetchSnapshot": self._fetch,
            "StartWorker": self._start_worker,
            "FinishRun": self._finish,
        }

    def take(self, message: Message) -> None:
        """One line of the log."""
        kind = message["kind"]
        if kind in DECISIONS:
            self.out.decisions.add(message)
        elif kind not in ("Settings", END):
            self._pass_time(float(message["t_s"]))
        if (handler := self._handlers.get(kind)) is not None:
            handler(message)

    def _pass_time(self, t_s: float) -> None:
        if self._started and not self._finished:
            if self._busy_since is None and t_s > self._now:
                self._add_idle(t_s - self._now)
            self.out.end_s = t_s
        self._now = t_s

    def _add_idle(self, seconds: float) -> None:
        cause = "rollouts" if self._rollouts else "publication" if self._inbound else "workers"
        idle = self.out.idle
        if idle and idle[-1][2] == cause and abs(sum(idle[-1][:2]) - self._now) < 1e-9:
            idle[-1] = (idle[-1][0], idle[-1][1] + seconds, cause)
        else:
            idle.append((self._now, seconds, cause))

    # ---- the run -------------------------------------------------------------------------------

    def _settings(self, m: Message) -> None:
        self.out.settings = m

    def _run_started(self, m: Message) -> None:
        self._started = True

    def _finish(self, m: Message) -> None:
        self._finished = True

    def _train(self, m: Message) -> None:
        self._busy_since = float(m["t_s"])

    def _step(self, m: Message) -> None:
        begun = self._now if self._busy_since is None else self._busy_since
        self.out.train.append((begun, self._now - begun, int(m["version"])))
        self._busy_since = None

    # ---- rollouts ------------------------------------------------------------------------------

    def _start_group(self, m: Message) -> None:
        self._running[m["group_id"]] = [m["rollouts"], m["rollouts"]]
        self._rollouts += m["rollouts"]

    def _rollout(self, m: Message) -> None:
        if (group := self._running.get(m["group_id"])) is not None:
            group[1] -= 1
            if group[1] == 0:
                self._group_gone(m)

    def _group_gone(self, m: Message) -> None:
        if (group := self._running.pop(m["group_id"], None)) is not None:
            self._rollouts -= group[0]

    # ---- workers -------------------------------------------------------------------------------

    def _start_worker(self, m: Message) -> None:
        self.out.activations.setdefault(m["worker_id"], []).append((m["t_s"], m["reason"]))

    def _joined(self, m: Message) -> None:
        self._up.add(m["worker_id"])
        _step_to(self.out.workers_up, self._now, len(self._up))

    def _left(self, m: Message) -> None:
        self._up.discard(m["worker_id"])
        self._not_received(m)
        _step_to(self.out.workers_up, self._now, len(self._up))

    # ---- snapshots -----------------------------------------------------------------------------

    def _publish(self, m: Message) -> None:
        plan = m["plan"]
        version = self.out.versions.setdefault(
            m["version"], Dissemination(m["version"], float(m["t_s"]), plan["topology"])
        )
        version.targets.update(plan["order"])
        version.size_bytes = max(version.size_bytes, plan["size_bytes"])
        version.planned_s = max(version.planned_s, plan["time_s"])
        version.bound_s = max(version.bound_s, plan["bound_s"])
        self._sent_to(plan["order"])

    def _fetch(self, m: Message) -> None:
        if self.out.settings.get("mode") == "pull":
            version = self.out.versions.setdefault(
                m["version"], Dissemination(m["version"], float(m["t_s"]), "pull")
            )
            version.targets.add(m["worker_id"])
            version.size_bytes = max(version.size_bytes, m["size_bytes"])
            version.bound_s = max(version.bound_s, m["bound"])
        self._sent_to([m["worker_id"]])

    def _sent_to(self, names: list[str]) -> None:
        self._inbound.update(names)
        _step_to(self.out.receiving, self._now, len(self._inbound))

    def _live(self, m: Message) -> None:
        version = self.out.versions.get(m["version"])
        if version is not None and m["worker_id"] in version.targets:
            version.targets.discard(m["worker_id"])
            version.arrivals_s.append(self._now - version.published_s)
        elif version is not None:
            version.caught_up += 1
        self._not_received(m)

    def _not_received(self, m: Message) -> None:
        self._inbound.discard(m["worker_id"])
        _step_to(self.out.receiving, self._now, len(self._inbound))


def _step_to(series: Steps, t_s: float, value: int) -> None:
    if series[-1][0] == t_s:
        series[-1] = (t_s, value)
    elif series[-1][1] != value:
        series.append((t_s, value))
