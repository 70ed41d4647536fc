"""A worker's machine in the simulated world: what it is, whether it runs, and what it has cost."""

from __future__ import annotations

from dataclasses import replace

import simpy

from echo2.policy.facts import WorkerOffer
from echo2.sim.inputs import SimWorker
from echo2.sim.metrics import Meter
from echo2.sim.worker import WorkerProcess

NOTHING = -1


class Machine:
    """State of one machine.

    `held_for` is the version whose arrival its engine is stopped for (stall). Chunks are addressed by
    content, so what has arrived of a version is kept when its transfer ends early.
    """

    def __init__(self, spec: SimWorker, engine: WorkerProcess) -> None:
        self.spec = spec
        self.engine = engine
        self.meter = Meter(spec.offer.price_usd_per_h)
        self.incarnation = 0
        self.offered = False
        self.up = False
        self.up_since_s = 0.0
        self.starting: simpy.Event | None = None
        self.held_for = NOTHING
        self.link_factor = 1.0
        self.source = ""
        self._version = NOTHING
        self._had = 0.0
        self._got = 0.0
        self.egress_usd = 0.0
        self.rollouts = 0

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.spec.offer.worker_id

    @property
    def offer(self) -> WorkerOffer:
        """Its offer as it is now: the price of the day, and the link as last measured."""
        offer, factor = self.spec.offer, self.link_factor
        return replace(
            offer,
            price_usd_per_h=self.meter.price_usd_per_h,
            uplink_bps=offer.uplink_bps * factor,
            downlink_bps=offer.downlink_bps * factor,
        )

    def expects(self, version: int) -> bool:
        """Whether the last transfer to it that began was of `version`."""
        return self.up and version == self._version

    def missing(self, version: int) -> float:
        """Share of a version's payload that has not arrived yet."""
        return max(1e-6, 1.0 - self._got) if version == self._version else 1.0

    def receives(self, version: int, source: str) -> None:
        """A transfer of what is missing of `version` begins."""
        self._had = 1.0 - self.missing(version)
        self._version, self._got, self.source = version, self._had, source

    def received(self, version: int, share: float) -> None:
        """`share` of what the transfer carries has arrived, and it ends."""
        if version == self._version:
            self._got = self._had + (1.0 - self._had) * share

    def hold(self, version: int) -> None:
        """Stop decoding while `version` arrives."""
        self.held_for = version
        self.engine.hold()

    def release(self) -> None:
        """Go on decoding."""
        if self.held_for != NOTHING:
            self.held_for = NOTHING
            self.engine.release()

    def down(self, t_s: float) -> None:
        """The machine is gone with everything on it; nothing more is paid."""
        self.up = False
        self.starting = None
        self.held_for = NOTHING
        self._version = NOTHING
        self.meter.stop(t_s)
        self.engine.clear()
