"""`simulate(world, seed) -> SimResult`: run a simulated world to its end and sum it up."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.sim import log
from echo2.sim.bounds import upper_bound
from echo2.sim.inputs import WorldInputs
from echo2.sim.metrics import percentiles, staleness_summary
from echo2.sim.timeline import Timeline
from echo2.sim.world import World

PATIENCE = 200.0


@dataclass
class SimResult:
    """A finished simulation. `summary()` is what `simulate --json` prints."""

    world: World
    elapsed_s: float
    complete: bool

    def summary(self) -> dict[str, Any]:
        """Headline numbers with their bounds; seconds, USD, rollouts."""
        return summarise(self.world, self.elapsed_s, self.complete)

    def write(self, directory: Path) -> None:
        """Write `log.jsonl`, `summary.json`, `trace.json`, `broadcasts.jsonl`, each whole or not at all."""
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / "log.jsonl", log.lines(self.world.inputs.settings, self.world.entries))
        _write(directory / "summary.json", [json.dumps(self.summary(), indent=2)])
        _write(directory / "trace.json", [self.world.timeline.chrome_trace()])
        rows = self.world.metrics.dissemination_rows()
        _write(directory / "broadcasts.jsonl", (json.dumps(row) for row in rows))


def simulate(
    inputs: WorldInputs, seed: int = 0, keep_log: bool = False, limit_s: float | None = None
) -> SimResult:
    """Simulate a run. `keep_log` keeps facts, decisions and the timeline so that it can be written.

    `limit_s` of simulated time is the deadline (default: 200 times what the steps alone would take, plus
    a day); a run that has not finished then is reported as incomplete, with what it waits for.
    """
    settings = inputs.settings
    if not inputs.workers:
        raise UserError("the pool is empty: add at least one [[pool]] with count >= 1")
    world = World(inputs, seed, keep_log, Timeline(keep_log))
    deadline = limit_s or PATIENCE * settings.total_steps * settings.train_s + 86_400.0
    began = time.perf_counter()
    complete = world.run(deadline)
    return SimResult(world, time.perf_counter() - began, complete)


def summarise(world: World, elapsed_s: float, complete: bool) -> dict[str, Any]:
    """The summary of a run."""
    metrics, settings = world.metrics, world.inputs.settings
    steps, wall_s = len(metrics.train_s), max(world.wall_s, 1e-12)
    busy_s = sum(metrics.train_s)
    workers_usd = sum(machine.meter.usd for machine in world.machines.values())
    learner_usd = wall_s * settings.learner_usd_per_h / 3600.0
    bound, term = upper_bound(world)
    dispatched = max(1, metrics.dispatched_rollouts)
    usd = {"learner": learner_usd, "workers": workers_usd, "egress": metrics.egress_usd}
    tails = list(metrics.dissemination_tails_s().values())
    return {
        "steps": steps,
        "complete": complete,
        "waiting_for": "" if complete else world.scheduler.waiting_for(),
        "wall_s": wall_s,
        "steps_per_s": steps / wall_s,
        "upper_bound_steps_per_s": bound,
        "upper_bound_term": term,
        "learner_utilisation": busy_s / wall_s,
        "bubble": 1.0 - busy_s / wall_s,
        "bubble_by_cause": {k: v / wall_s for k, v in world.scheduler.bubble_s.items()},
        "step_s": percentiles(_step_times(metrics.step_end_s)),
        "train_s_mean": busy_s / max(1, steps),
        "cost_usd": sum(usd.values()),
        "cost_split_usd": usd,
        "step_cost_usd": sum(usd.values()) / max(1, steps),
        "staleness": staleness_summary(metrics.staleness),
        "dropped_share": metrics.dropped_rollouts / dispatched,
        "requeued_rollouts": metrics.requeued_rollouts,
        "rollouts": {
            "dispatched": metrics.dispatched_rollouts,
            "trained": metrics.trained_rollouts,
            "dropped": metrics.dropped_rollouts,
            "in_flight": world.scheduler.gate.running + world.scheduler.gate.buffered,
        },
        "tokens": {
            "trained_mean": metrics.trained_tokens / max(1, metrics.trained_rollouts),
            "dispatched_mean": metrics.dispatched_tokens / dispatched,
        },
        "bcast_tail_s": percentiles(tails),
        "dissemination": metrics.dissemination_summary(),
        "published": len(metrics.published_s),
        "workers": _workers(world),
        "worker_utilisation": _worker_utilisation(world),
        "preemptions": metrics.preemptions,
        "events": {
            "facts": world.facts,
            "decisions": world.decisions,
            "network": world.network.events,
        },
        "elapsed_s": elapsed_s,
    }


def _step_times(ends_s: list[float]) -> list[float]:
    return [b - a for a, b in zip([0.0, *ends_s], ends_s)]


def _workers(world: World) -> list[dict[str, Any]]:
    rows = []
    for machine in world.machines.values():
        if machine.meter.paid_s <= 0:
            continue
        offer = machine.spec.offer
        rows.append(
            {
                "worker_id": machine.name,
                "pool": offer.pool,
                "gpu": offer.gpu,
                "site": offer.site,
                "price_usd_per_h": offer.price_usd_per_h,
                "paid_s": machine.meter.paid_s,
                "busy_share": machine.engine.busy_s / machine.meter.paid_s,
                "rollouts": machine.rollouts,
                "usd": machine.meter.usd,
                "egress_usd": machine.egress_usd,
            }
        )
    return rows


def _worker_utilisation(world: World) -> float:
    paid = sum(machine.meter.paid_s for machine in world.machines.values())
    busy = sum(machine.engine.busy_s for machine in world.machines.values())
    return busy / paid if paid else 0.0


def _write(path: Path, lines: Any) -> None:
    """Write lines to a temporary neighbour and rename it: the file is whole or absent."""
    part = path.with_suffix(path.suffix + ".part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in lines)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = f"{path}: cannot write ({error.strerror}); free some space or choose another --out"
        raise UserError(reason) from error
