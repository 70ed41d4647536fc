"""Follows one log line by line and fills the digest. Called by `digest`.

The idle causes follow the scheduler's own rule (`Scheduler.waiting_for`), so their sums equal the summary's;
a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from echo2.report.course import WorkerCourse
from echo2.report.digest import BatchAge, Dissemination, LogDigest, Message, Steps
from echo2.sim.log import DECISIONS, END


class Reader:
    """Reads one life of a run into a digest, after what is there already."""

    def __init__(self, out: LogDigest) -> None:
        self.out = out
        self._offset = self._now = out.end_s
        self._busy_since: float | None = None
        self._started = self._finished = False
        self._running: dict[int, tuple[str, list[int]]] = {}
        self._rollouts = 0
        self._up: set[str] = set()
        self._inbound: set[str] = set()
        self._handlers: dict[str, Callable[[Message], None]] = {
            "Settings": self._settings,
            "RunStarted": self._run_started,
            "WorkerOffered": self._offered,
            "WorkerJoined": self._joined,
            "WorkerLeft": self._left,
            "PriceChanged": self._price,
            "RateMeasured": self._rate,
            "LinkMeasured": self._link,
            "RolloutFinished": self._rollout,
            "StepFinished": self._step,
            "SnapshotLive": self._live,
            "SnapshotFailed": self._failed,
            "AbortTransfer": self._aborted,
            "StartGroup": self._start_group,
            "CancelGroup": self._group_gone,
            "DropGroup": self._group_gone,
            "TrainStep": self._train,
            "PublishSnapshot": self._publish,
            "FetchSnapshot": self._fetch,
            "Reroute": self._reroute,
            "StartWorker": self._start_worker,
            "StopWorker": self._stop_worker,
            "FinishRun": self._finish,
        }
        out.lives_s.append(self._offset)

    def take(self, message: Message) -> None:
        """One line of the log."""
        kind = message["kind"]
        if not math.isfinite(message.get("t_s", 0.0)):
            raise ValueError(f"t_s = {message['t_s']}, must be a finite number of seconds")
        if kind in DECISIONS:
            self.out.decisions.add(message, self._offset)
        elif kind not in ("Settings", END):
            self._pass_time(float(message["t_s"]) + self._offset)
        if (handler := self._handlers.get(kind)) is not None:
            handler(message)

    def close(self) -> None:
        """The log ends: what is under way ends with it."""
        for worker in self.out.workers.values():
            worker.running.follow(self._now)
            worker.running.value = 0.0
            worker.close(self.out.end_s)
        self.out.running.follow(self._now)
        self.out.running.value = 0.0
        _step_to(self.out.workers_up, self._now, 0)
        _step_to(self.out.receiving, self._now, 0)

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

    def _worker(self, m: Message) -> WorkerCourse:
        name = m["worker_id"]
        return self.out.workers.setdefault(name, WorkerCourse(name))

    # ---- the run -------------------------------------------------------------------------------

    def _settings(self, m: Message) -> None:
        self.out.settings = m

    def _run_started(self, m: Message) -> None:
        self._started = True

    def _finish(self, m: Message) -> None:
        self._finished = True

    def _train(self, m: Message) -> None:
        self._busy_since = float(m["t_s"]) + self._offset
        lags = m["staleness"]
        mean = sum(lags) / max(1, len(lags))
        age = BatchAge(self._busy_since, int(m["version"]), min(lags, default=0), mean, max(lags, default=0))
        self.out.ages.append(age)

    def _step(self, m: Message) -> None:
        begun = self._now if self._busy_since is None else self._busy_since
        self.out.train.append((begun, self._now - begun, int(m["version"])))
        self._busy_since = None

    # ---- rollouts ------------------------------------------------------------------------------

    def _start_group(self, m: Message) -> None:
        self._running[m["group_id"]] = m["worker_id"], [m["rollouts"], m["rollouts"]]
        self._rollouts += m["rollouts"]
        self._generating(m["worker_id"], m["rollouts"])

    def _rollout(self, m: Message) -> None:
        if (group := self._running.get(m["group_id"])) is not None:
            group[1][1] -= 1
            self._generating(group[0], -1)
            if group[1][1] == 0:
                self._group_gone(m)

    def _group_gone(self, m: Message) -> None:
        if (group := self._running.pop(m["group_id"], None)) is not None:
            self._rollouts -= group[1][0]
            self._generating(group[0], -group[1][1])

    def _generating(self, worker_id: str, change: int) -> None:
        if change:
            self.out.running.step(self._now, change)
            self._worker({"worker_id": worker_id}).running.step(self._now, change)

    # ---- workers -------------------------------------------------------------------------------

    def _offered(self, m: Message) -> None:
        self._worker(m["offer"]).offered(self._now, m["offer"])

    def _price(self, m: Message) -> None:
        self._worker(m).priced(self._now, float(m["price_usd_per_h"]))

    def _rate(self, m: Message) -> None:
        self._worker(m).measured_rollouts_per_s = float(m["rollouts_per_s"])

    def _link(self, m: Message) -> None:
        self._worker(m).linked(float(m["uplink_bps"]), float(m["downlink_bps"]))

    def _start_worker(self, m: Message) -> None:
        self._worker(m).story.append((self._now, "started", str(m["reason"])))

    def _stop_worker(self, m: Message) -> None:
        self._worker(m).story.append((self._now, "stopped", str(m["reason"])))

    def _joined(self, m: Message) -> None:
        self._up.add(m["worker_id"])
        self._worker(m).joined(self._now)
        _step_to(self.out.workers_up, self._now, len(self._up))

    def _left(self, m: Message) -> None:
        self._up.discard(m["worker_id"])
        worker, cause = self._worker(m), str(m["cause"])
        worker.left(self._now, cause)
        if cause != "stopped":
            worker.story.append((self._now, "left", cause))
        self._not_received(m, "the worker left")
        _step_to(self.out.workers_up, self._now, len(self._up))

    # ---- snapshots -----------------------------------------------------------------------------

    def _publish(self, m: Message) -> None:
        plan = m["plan"]
        version = self._version(m, str(plan["topology"]))
        version.reason = version.reason or str(m["reason"])
        version.targets.update(plan["order"])
        version.size_bytes = max(version.size_bytes, plan["size_bytes"])
        version.planned_s = max(version.planned_s, plan["time_s"])
        version.bound_s = max(version.bound_s, plan["bound_s"])
        version.egress_usd += float(plan.get("egress_usd", 0.0))
        self._sent_to(plan["order"], m["version"])

    def _fetch(self, m: Message) -> None:
        if self.out.settings.get("mode") == "pull":
            version = self._version(m, "pull")
            version.targets.add(m["worker_id"])
            version.size_bytes = max(version.size_bytes, m["size_bytes"])
            version.bound_s = max(version.bound_s, m["bound"])
        self._sent_to([m["worker_id"]], m["version"])

    def _reroute(self, m: Message) -> None:
        if (version := self.out.versions.get(m["version"])) is not None:
            version.reroutes += 1

    def _version(self, m: Message, topology: str) -> Dissemination:
        number = int(m["version"])
        fresh = Dissemination(number, float(m["t_s"]) + self._offset, topology)
        return self.out.versions.setdefault(number, fresh)

    def _sent_to(self, names: list[str], version: int) -> None:
        self._inbound.update(names)
        for name in names:
            self._worker({"worker_id": name}).sent(self._now, version)
        _step_to(self.out.receiving, self._now, len(self._inbound))

    def _live(self, m: Message) -> None:
        version = self.out.versions.get(m["version"])
        if version is not None and m["worker_id"] in version.targets:
            version.targets.discard(m["worker_id"])
            version.arrivals_s.append(self._now - version.published_s)
        elif version is not None:
            version.caught_up += 1
        self._not_received(m, "live")

    def _failed(self, m: Message) -> None:
        self._not_received(m, f"failed: {m['cause']}")

    def _aborted(self, m: Message) -> None:
        self._not_received(m, f"given up: {m['reason']}")

    def _not_received(self, m: Message, outcome: str) -> None:
        self._inbound.discard(m["worker_id"])
        self._worker(m).received(self._now, outcome)
        _step_to(self.out.receiving, self._now, len(self._inbound))


def _step_to(series: Steps, t_s: float, value: int) -> None:
    if series[-1][0] == t_s:
        series[-1] = (t_s, value)
    elif series[-1][1] != value:
        series.append((t_s, value))
