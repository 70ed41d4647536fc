"""What a live run is measured by: the same measures as a simulated one, plus what only training has.

Filled by the live world. One JSON line a step goes to `metrics.jsonl` and to TensorBoard (W&B where it is
asked for and installed); `summary` has the fields of a simulation's summary, so the two stand side by side.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.policy.facts import WorkerOffer
from echo2.policy.scheduler import Scheduler
from echo2.runtime.learning.metrics import StepMetrics
from echo2.sim.metrics import Meter, Metrics, percentiles, staleness_summary


class Records:
    """Counters of a run. Times are seconds since this life of the run began; `carried_usd` is from before."""

    def __init__(
        self,
        path: Path,
        boards: Path,
        offers: Mapping[str, WorkerOffer],
        learner_usd_per_h: float,
        wandb: str | None,
        version: int = 0,
    ) -> None:
        """A run that goes on at `version` forgets the rows above it: those steps are made anew."""
        self.metrics = Metrics()
        self.meters = {name: Meter(offer.price_usd_per_h) for name, offer in offers.items()}
        self.egress_usd = dict.fromkeys(offers, 0.0)
        self.rollouts = dict.fromkeys(offers, 0)
        self.finished_tokens = 0
        self.finished_rollouts = 0
        self.preemptions = 0
        self.carried_usd = _forget_above(path, version)
        self.first_step = 0
        self.began_s = 0.0
        self.pauses_s: list[float] = []
        self.transfers_s: list[float] = []
        self.rewards: list[float] = []
        self._offers = dict(offers)
        self._learner_usd_per_h = learner_usd_per_h
        self._path = path
        self._last_bubble = {"rollouts": 0.0, "publication": 0.0, "workers": 0.0}
        self._board = _tensorboard(boards, version)
        self._wandb = _wandb(wandb, path.parent) if wandb else None

    def usd(self, t_s: float) -> dict[str, float]:
        """USD of this life up to `t_s`."""
        workers = sum(
            meter.usd
            + ((t_s - meter.since_s) * meter.price_usd_per_h / 3600 if meter.since_s is not None else 0)
            for meter in self.meters.values()
        )
        egress = sum(self.egress_usd.values())
        return {"learner": t_s * self._learner_usd_per_h / 3600, "workers": workers, "egress": egress}

    def finished(self, worker_id: str, tokens: int) -> None:
        """A rollout was accepted."""
        self.rollouts[worker_id] += 1
        self.finished_rollouts += 1
        self.finished_tokens += tokens

    def step(
        self,
        t_s: float,
        step: StepMetrics,
        train_s: float,
        lengths: tuple[int, ...],
        scheduler: Scheduler,
        up: int,
    ) -> dict[str, Any]:
        """Record a step; returns its row."""
        metrics = self.metrics
        metrics.train_s.append(train_s)
        metrics.step_end_s.append(t_s)
        for lag, count in step.staleness.items():
            metrics.staleness[lag] += count
        metrics.trained_tokens += sum(lengths)
        metrics.trained_rollouts += len(lengths)
        self.rewards.append(step.reward_mean)
        bubble = {cause: seconds - self._last_bubble[cause] for cause, seconds in scheduler.bubble_s.items()}
        self._last_bubble = dict(scheduler.bubble_s)
        usd = sum(self.usd(t_s).values()) + self.carried_usd
        row = {
            "t_s": t_s,
            **step.as_dict(),
            "tokens_per_s": step.tokens_per_s,
            "train_s": train_s,
            "wait_s": bubble,
            "trained_tokens_mean": sum(lengths) / max(1, len(lengths)),
            "finished_tokens_mean": self.finished_tokens / max(1, self.finished_rollouts),
            "dropped": metrics.dropped_rollouts,
            "requeued": metrics.requeued_rollouts,
            "workers_up": up,
            "usd": usd,
        }
        self._write(row)
        return row

    def summary(self, t_s: float, scheduler: Scheduler, complete: bool, reason: str) -> dict[str, Any]:
        """The summary up to `t_s`: the fields of a simulation's, with rewards and pauses beside them."""
        metrics = self.metrics
        steps, wall_s = len(metrics.train_s), max(t_s - self.began_s, 1e-9)
        busy_s = sum(metrics.train_s)
        usd = self.usd(t_s)
        dispatched = max(1, metrics.dispatched_rollouts)
        ends = metrics.step_end_s
        return {
            "steps": steps,
            "version": scheduler.ledger.version,
            "complete": complete,
            "end": reason,
            "waiting_for": "" if complete else scheduler.waiting_for(),
            "wall_s": wall_s,
            "steps_per_s": steps / wall_s,
            "learner_utilisation": busy_s / wall_s,
            "bubble": 1.0 - busy_s / wall_s,
            "bubble_by_cause": {cause: s / wall_s for cause, s in scheduler.bubble_s.items()},
            "steady": self._steady(),
            "step_s": percentiles([b - a for a, b in zip([self.began_s, *ends], ends)]),
            "train_s_mean": busy_s / max(1, steps),
            "cost_usd": sum(usd.values()),
            "cost_split_usd": usd,
            "step_cost_usd": sum(usd.values()) / max(1, steps),
            "cost_usd_all_lives": sum(usd.values()) + self.carried_usd,
            "staleness": staleness_summary(metrics.staleness),
            "dropped_share": metrics.dropped_rollouts / dispatched,
            "requeued_rollouts": metrics.requeued_rollouts,
            "rollouts": {
                "dispatched": metrics.dispatched_rollouts,
                "finished": self.finished_rollouts,
                "trained": metrics.trained_rollouts,
                "dropped": metrics.dropped_rollouts,
            },
            "tokens": {
                "trained_mean": metrics.trained_tokens / max(1, metrics.trained_rollouts),
                "dispatched_mean": self.finished_tokens / max(1, self.finished_rollouts),
            },
            "bcast_tail_s": percentiles(list(metrics.dissemination_tails_s().values())),
            "published": len(metrics.published_s),
            "dissemination": metrics.dissemination_summary(),
            "swap_pause_s": percentiles(self.pauses_s),
            "transfer_s": percentiles(self.transfers_s),
            "reward": {"first": _mean(self.rewards[:5]), "last": _mean(self.rewards[-5:])},
            "workers": self._workers(),
            "preemptions": self.preemptions,
        }

    def _steady(self) -> dict[str, float]:
        """Utilisation and steps/s without the start: from the end of the first tenth of the steps on."""
        ends, train_s = self.metrics.step_end_s, self.metrics.train_s
        skip = max(1, len(ends) // 10)
        if len(ends) <= skip:
            return {"learner_utilisation": 0.0, "steps_per_s": 0.0, "train_s_mean": 0.0}
        wall_s, busy_s = max(1e-9, ends[-1] - ends[skip - 1]), sum(train_s[skip:])
        steps = len(ends) - skip
        return {
            "learner_utilisation": busy_s / wall_s,
            "steps_per_s": steps / wall_s,
            "train_s_mean": busy_s / steps,
        }

    def close(self) -> None:
        """Flush what is buffered."""
        with contextlib.suppress(OSError):  # its disk is full: the rows are in metrics.jsonl
            if self._board is not None:
                self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _workers(self) -> list[dict[str, Any]]:
        return [
            {
                "worker_id": name,
                "pool": offer.pool,
                "gpu": offer.gpu,
                "price_usd_per_h": self.meters[name].price_usd_per_h,
                "paid_s": self.meters[name].paid_s,
                "rollouts": self.rollouts[name],
                "usd": self.meters[name].usd,
                "egress_usd": self.egress_usd[name],
            }
            for name, offer in self._offers.items()
            if self.meters[name].paid_s > 0
        ]

    def _write(self, row: dict[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row, allow_nan=False) + "\n")
            flat = dict(_flat(row))
            if self._board is not None:
                for name, value in flat.items():
                    self._board.add_scalar(name, value, row["version"])
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot write ({error.strerror}); free some space and go on with --resume"
            ) from error
        if self._wandb is not None:
            self._wandb.log(flat, step=row["version"])


def _flat(row: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append((f"{prefix}{name}", float(value)))
    return found


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _forget_above(path: Path, version: int) -> float:
    """Drop the rows above a version, and one that was cut off. Returns the USD spent up to the last row."""
    if not path.is_file():
        return 0.0
    kept, usd = [], 0.0
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            # What a lost step has cost is spent all the same.
            usd = max(usd, float(row["usd"]))
            if row["version"] <= version:
                kept.append(line + "\n")
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text("".join(kept), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write ({error.strerror}); free some space") from error
    return usd


def _tensorboard(folder: Path, version: int) -> Any:
    """A TensorBoard writer, or None where the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=version + 1 if version else None)


def _wandb(project: str, folder: Path) -> Any:
    try:
        import wandb  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            f"train.wandb = {project!r}: it is not installed; pip install wandb, or leave the key out"
        ) from None
    return wandb.init(project=project, dir=str(folder))
