"""Workers of a live run: started and stopped as the scheduler decides, and what becomes of them told to it.

Called by the live world for decisions, by the hub when workers come, go and report, and by `processes` when
a local one ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from echo2.config import Config
from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.links import LEARNER
from echo2.runtime.driver import hub as h
from echo2.runtime.driver.life import Life
from echo2.runtime.driver.links import LinkFacts, reaches
from echo2.runtime.driver.processes import LocalProcesses
from echo2.runtime.driver.snapshots import Snapshots
from echo2.runtime.transport import messages as m

STOP_S = 30.0
REASON_CHARS = 500


class Workers:
    """The workers on offer. `processes` is set before the first decision.

    `relay_host`: where others reach the relays of local workers. `why_left` has the causes of the losses so
    far by worker id, the latest last.
    """

    processes: LocalProcesses
    relay_host = "127.0.0.1"

    def __init__(
        self,
        life: Life,
        config: Config,
        offers: Mapping[str, f.WorkerOffer],
        snapshots: Snapshots,
        say: Callable[[str], None],
    ) -> None:
        self.why_left: dict[str, str] = {}
        self._life, self._config, self._offers = life, config, offers
        self._snapshots, self._say = snapshots, say
        self._pools = {pool.name: pool for pool in config.pool}
        self._up_since_s: dict[str, float] = {}
        self._links = LinkFacts(offers)

    # ---- what the scheduler decides --------------------------------------------------------------

    def offer_local(self) -> None:
        """Offer those that the learner starts itself; others are offered when they come."""
        for offer in self._offers.values():
            if self._pools[offer.pool].local:
                self._life.tell(f.WorkerOffered(self._life.now(), offer))

    def start(self, decision: d.StartWorker) -> None:
        """Begin a start: by order to a process that is there, else by a process of its own."""
        seat = self._life.hub.seats[decision.worker_id]
        seat.incarnation += 1
        seat.state = h.STARTING
        self._life.records.meters[seat.worker_id].start(self._life.now())
        if seat.present and not (seat.local and not self.processes.stays(seat.worker_id)):
            self._send_start(seat)
        elif seat.local:
            # One that runs without a seat says hello soon; one that leaves is waited for.
            try:
                self.processes.start(seat.worker_id, self._pools[seat.pool], self._options(seat.worker_id))
            except OSError as error:
                self._left(seat, f"its process cannot be started: {error.strerror}")
        else:
            self._left(seat, "it is not there")

    def stop(self, decision: d.StopWorker) -> None:
        """Order a worker to stop, a local one also to leave; ended by force after `STOP_S`."""
        hub, seat = self._life.hub, self._life.hub.seats[decision.worker_id]
        if seat.state not in (h.STARTING, h.UP):
            return
        seat.state = h.STOPPING
        if not seat.present:
            if seat.local:
                self.processes.kill(seat.worker_id)
            self._left(seat, "stopped")
            return
        hub.post(seat.worker_id, m.Stop(reason=decision.reason[:REASON_CHARS]))
        if seat.local:
            hub.post(seat.worker_id, m.Exit(reason=decision.reason[:REASON_CHARS]))
            self.processes.leave(seat.worker_id)
        self._life.spawn(self._stop_deadline(seat, seat.incarnation))

    def _send_start(self, seat: h.Seat) -> None:
        train, rollout = self._config.train, self._config.rollout
        start = m.Start(
            incarnation=seat.incarnation,
            version=self._life.scheduler.ledger.published,
            slots=self._offers[seat.worker_id].slots,
            context_tokens=train.max_prompt_tokens + rollout.max_tokens,
            swap=train.swap,
        )
        self._life.hub.post(seat.worker_id, start)

    def _options(self, worker_id: str) -> list[str]:
        """What the command line of a local worker says beyond where and who."""
        pool, offer = self._pools[self._offers[worker_id].pool], self._offers[worker_id]
        options: list[str] = []
        if pool.engine == "simulated":
            rollout = self._config.rollout
            tokens = min(rollout.max_tokens, max(1, round(rollout.tokens or rollout.max_tokens / 2)))
            options += ["--simulated", f"{offer.rollouts_per_s * tokens:.6g}:{tokens}"]
        options += ["--relay-host", self.relay_host] if pool.relay else ["--no-relay"]
        if pool.relay and self._config.train.relay_mbps:
            options += ["--relay-mbps", f"{self._config.train.relay_mbps:.6g}"]
        if pool.shape_links:
            options += ["--uplink-mbps", f"{offer.uplink_bps / 1e6:.6g}"]
            options += ["--downlink-mbps", f"{offer.downlink_bps / 1e6:.6g}"]
            options += ["--link", pool.link_shape] if pool.link_shape else []
        return options

    async def _stop_deadline(self, seat: h.Seat, incarnation: int) -> None:
        await asyncio.sleep(STOP_S)
        if seat.incarnation == incarnation and seat.state == h.STOPPING:
            if seat.local:
                self.processes.kill(seat.worker_id)
            self._life.hub.release(seat, f"it has not stopped within {STOP_S:g} s")

    # ---- what happens to them (hub.Happenings) ---------------------------------------------------

    def arrived(self, seat: h.Seat) -> None:
        """A process has taken a seat. What it says of its relay is part of its offer."""
        if seat.state == h.STARTING:
            if self._relays(seat) != self._offers[seat.worker_id].can_relay:
                self._offer(seat)
            self._send_start(seat)
        elif not seat.local and seat.relay_url and self._pools[seat.pool].relay:
            self._life.spawn(self._offer_reached(seat, seat.lease))
        elif not seat.local:
            self._offer(seat)

    def _relays(self, seat: h.Seat) -> bool:
        """Whether a process passes snapshots on, by its pool and its own word."""
        return self._pools[seat.pool].relay and bool(seat.relay_url)

    def _offer(self, seat: h.Seat) -> None:
        offer = replace(self._offers[seat.worker_id], can_relay=self._relays(seat))
        self._life.tell(f.WorkerOffered(self._life.now(), offer))

    async def _offer_reached(self, seat: h.Seat, lease: str) -> None:
        """Offer a remote worker; as a leaf if its relay is not reached from here."""
        reached = await reaches(seat.relay_url)
        if seat.lease != lease:
            return
        if not reached:
            self._say(f"worker {seat.worker_id}: {seat.relay_url} is not reached; it passes nothing on")
            seat.relay_url = ""
        self._offer(seat)

    def gone(self, seat: h.Seat, cause: str) -> None:
        """The process that held a seat is gone."""
        if seat.local:
            self._left(seat, cause)
            return
        self._life.tell(f.OfferWithdrawn(self._life.now(), seat.worker_id, cause))
        # A machine that goes is no failed start: when it comes back it is used at once.
        self._left(seat, cause, "preempted")

    def exited(self, worker_id: str, cause: str) -> None:
        """A local process ended by itself."""
        seat = self._life.hub.seats[worker_id]
        if seat.present:
            self._life.hub.release(seat, cause)
        else:
            self._left(seat, cause)

    def reported(self, seat: h.Seat, report: m.Report) -> None:
        """What a worker reports becomes facts."""
        tell, now, name = self._life.tell, self._life.now(), seat.worker_id
        match report:
            case m.Up():
                self._came_up(seat, report)
            case m.Live():
                self._is_live(seat, report, now)
            case m.Failed():
                tell(f.SnapshotFailed(now, name, seat.incarnation, report.version, LEARNER, report.cause))
            case m.SourceFailed():
                source, cause = report.source_id, report.cause
                tell(f.RelayFailed(now, name, report.version, source, cause))
            case m.Taken():
                self._snapshots.charge(name, report.sources)
            case m.GroupFailed():
                tell(f.GroupFailed(now, name, report.group_id, report.cause))
            case m.Rate():
                tell(f.RateMeasured(now, name, report.rollouts_per_s))
            case m.Link():
                if (rates := self._links.learnt(name, report)) is not None:
                    tell(f.LinkMeasured(now, name, *rates))
            case m.Down():
                self._left(seat, report.cause)

    def _came_up(self, seat: h.Seat, report: m.Up) -> None:
        if seat.state != h.STARTING:
            return
        seat.state = h.UP
        now = self._up_since_s[seat.worker_id] = self._life.progress_s = self._life.now()
        try:
            proven = self._snapshots.proven(report.version, report.weights)
        except UserError:
            proven = False
        holds = report.version if proven else -1
        self._life.tell(f.WorkerJoined(now, seat.worker_id, seat.incarnation, holds))

    def _is_live(self, seat: h.Seat, report: m.Live, now: float) -> None:
        records, name = self._life.records, seat.worker_id
        records.pauses_s.append(report.pause_s)
        records.transfers_s.append(report.transfer_s)
        records.metrics.live(report.version, now, name, self._up_since_s.get(name, now))
        self._life.progress_s = now
        self._life.tell(f.SnapshotLive(now, name, seat.incarnation, report.version))

    def _left(self, seat: h.Seat, cause: str, kind: str = "") -> None:
        """The start that was under way, or up, is over; it is paid for no more.

        `kind` is what the scheduler is told where that is not the cause itself.
        """
        if seat.state == h.STANDBY:
            return
        if seat.state == h.STARTING and seat.local and self.processes.returning(seat.worker_id):
            return  # it is the process before that has gone, and the new one comes now
        stopped = seat.state == h.STOPPING
        seat.state = h.STANDBY
        now = self._life.now()
        self._life.records.meters[seat.worker_id].stop(now)
        if not stopped:
            self._life.records.preemptions += 1
            self._lost(seat, cause)
        told = "stopped" if stopped else kind or cause
        self._life.tell(f.WorkerLeft(now, seat.worker_id, seat.incarnation, told))

    def _lost(self, seat: h.Seat, cause: str) -> None:
        """Say that a worker is lost, and why: its own log is on another screen, or in a file."""
        if self._life.leaving:
            return
        self.why_left.pop(seat.worker_id, None)
        self.why_left[seat.worker_id] = cause
        self._say(f"worker {seat.worker_id} is lost: {cause}")
