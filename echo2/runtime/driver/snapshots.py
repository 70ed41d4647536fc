"""Snapshots of a live run: written in a thread of their own, fetched by workers, paid for by the byte.

Called by the live world, and by `workers` where a start brings a download with it. Every worker fetches from
the learner itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from echo2.policy import decisions as d
from echo2.policy.facts import WorkerOffer
from echo2.policy.settings import SchedulerSettings
from echo2.runtime.driver.life import Life
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.snapshot import SnapshotStore


class Snapshots:
    """Those being written, and the orders to fetch that wait for them."""

    def __init__(
        self,
        life: Life,
        store: SnapshotStore,
        settings: SchedulerSettings,
        offers: Mapping[str, WorkerOffer],
    ) -> None:
        self._life, self._store, self._settings, self._offers = life, store, settings, offers
        self._writing: dict[int, asyncio.Future[m.Manifest]] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="echo2-snapshot")

    def close(self) -> None:
        """End the thread; one that is at work still is not waited for."""
        self._writer.shutdown(wait=False, cancel_futures=True)

    # ---- writing ---------------------------------------------------------------------------------

    async def take(self, version: int, weights: Mapping[str, Any]) -> None:
        """Begin to write a version, after those before it: no more than one copy of the weights waits."""
        for earlier, writing in list(self._writing.items()):
            await asyncio.shield(writing)
            self._writing.pop(earlier, None)
        self._writing[version] = self._write(version, weights)

    def proven(self, version: int, weights: str) -> bool:
        """Whether weights of this identity are the stored ones of `version`. Raises UserError if not kept."""
        return self._store.manifest(version).weights == weights

    def _write(self, version: int, weights: Mapping[str, Any]) -> asyncio.Future[m.Manifest]:
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._writer, self._store.put, version, weights)
        # Whoever waits for it raises its error; when the run ends first, nobody does.
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return writing

    # ---- fetching --------------------------------------------------------------------------------

    def publish(self, decision: d.PublishSnapshot) -> None:
        """Order all workers of the plan to fetch."""
        self._life.spawn(self._order_fetches(decision.version, decision.plan.order))

    def fetch(self, decision: d.FetchSnapshot) -> None:
        """Order one worker to fetch."""
        self._life.spawn(self._order_fetches(decision.version, (decision.worker_id,)))

    def abort(self, decision: d.AbortTransfer) -> None:
        """Order a worker to give up a fetch."""
        self._life.hub.post(decision.worker_id, m.Abort(version=decision.version))

    def charge(self, worker_id: str) -> None:
        """Charge a worker's download: a whole snapshot at the egress price from the learner's site.

        Charged when ordered; pieces that the worker has on its disk already are not known here (ours).
        """
        links = self._settings.links
        home, site = links.index(links.learner_site), links.index(self._offers[worker_id].site)
        usd = float(links.egress[home, site]) * self._settings.snapshot_bytes / 1e9
        self._life.records.egress_usd[worker_id] += usd

    async def _order_fetches(self, version: int, workers: tuple[str, ...]) -> None:
        self._life.records.metrics.published(version, self._life.now())
        if (writing := self._writing.get(version)) is not None:
            await asyncio.shield(writing)
        for name in workers:
            self._life.hub.post(name, m.Fetch(version=version))
            self.charge(name)
