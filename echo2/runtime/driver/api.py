"""The learner's side of the HTTP API: the hub for workers, the store for snapshots, the world for figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from echo2.runtime.driver import hub as h
from echo2.runtime.driver.world import LiveWorld
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.pages import Pages
from echo2.runtime.transport.snapshot import SnapshotStore


class LearnerApi:
    """Implements `transport.coordinator.Coordinator`."""

    def __init__(self, hub: h.Hub, world: LiveWorld, store: SnapshotStore) -> None:
        self._hub, self._world, self._store = hub, world, store
        self.hello, self.work, self.rollouts = hub.hello, hub.work, hub.rollouts
        self.reports, self.leave, self.check_lease = hub.reports, hub.leave, hub.check_lease

    def manifest(self, version: int) -> m.SignedManifest:
        """The signed manifest of a version, of the newest for -1."""
        return self._store.signed(version)

    async def pages(self, version: int, draft: str, number: int, wait_s: float) -> Pages:
        """The pages of a version that is being encoded."""
        return await self._store.draft(version, draft).pages(number, wait_s)

    def chunk(self, digest: str) -> Path:
        """The file of a chunk."""
        return self._store.chunk(digest)

    def health(self) -> dict[str, object]:
        """What the run is at."""
        scheduler = self._world.scheduler
        seats = self._hub.seats.values()
        return {
            "run": self._hub.run_id,
            "version": scheduler.ledger.version,
            "published": scheduler.ledger.published,
            "steps": self._world.settings.total_steps,
            "training": scheduler.training,
            "waiting_for": "" if scheduler.training else scheduler.waiting_for(),
            "workers_up": sum(seat.state == h.UP for seat in seats),
            "workers_there": sum(seat.present for seat in seats),
            "workers_on_offer": len(self._hub.seats),
        }

    def metrics(self) -> str:
        """Prometheus text (exposition format 0.0.4)."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        world, records = self._world, self._world.records
        scheduler, counts = world.scheduler, records.metrics
        gauges = {
            "echo2_version": (scheduler.ledger.version, "gauge", "Optimiser steps finished"),
            "echo2_published_version": (scheduler.ledger.published, "gauge", "Newest published version"),
            "echo2_workers_up": (
                sum(seat.state == h.UP for seat in self._hub.seats.values()), "gauge", "Workers that generate"
            ),
            "echo2_rollouts_running": (scheduler.gate.running, "gauge", "Rollouts being generated"),
            "echo2_rollouts_buffered": (scheduler.gate.buffered, "gauge", "Rollouts waiting to be trained"),
            "echo2_rollouts_finished_total": (records.finished_rollouts, "counter", "Rollouts accepted"),
            "echo2_rollouts_trained_total": (counts.trained_rollouts, "counter", "Rollouts trained"),
            "echo2_rollouts_dropped_total": (counts.dropped_rollouts, "counter", "Rollouts dropped"),
            "echo2_rollouts_refused_total": (world.desk.refused, "counter", "Rollouts refused at the door"),
            "echo2_ledger_writes_waiting": (world.queue.waiting, "gauge", "Writes not on disk yet"),
            "echo2_usd_total": (
                sum(records.usd(world.now()).values()) + records.carried_usd, "counter", "USD so far"
            ),
            "echo2_train_seconds_total": (sum(counts.train_s), "counter", "Seconds the learner trained"),
        }  # fmt: skip
        for name, (value, kind, about) in gauges.items():
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} {kind}"
            yield f"{name} {value:.10g}"
        yield "# HELP echo2_idle_seconds_total Seconds the learner waited, by cause"
        yield "# TYPE echo2_idle_seconds_total counter"
        for cause, seconds in scheduler.bubble_s.items():
            yield f'echo2_idle_seconds_total{{cause="{cause}"}} {seconds:.6f}'
