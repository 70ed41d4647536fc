"""Bad relays in the simulated world: what their links do, and when those they feed complain.

Owned by `echo2.sim.world`. A relay that corrupts sends as much as ever, but nothing that is of use; one that
stalls sends nothing; one that lies sends a fraction of what its offer says. A receiver finds out:

- wrong bytes as soon as it has a whole chunk, whose digest does not fit;
- silence, or a rate far below the promised one, after `WINDOW_S`, or after the time that `CHUNKS` of its
  chunks take by the plan where that is longer: the window of the live gatherer (`transport.pace`).

All that a relay feeds at that time complain in the order of the plan, as the workers of a live run do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import simpy

from echo2.policy import facts as f
from echo2.policy.broadcast import BroadcastPlan
from echo2.sim.inputs import RelayFault, SimWorker
from echo2.sim.network import Network

WINDOW_S = 3.0
CHUNKS = 2.0
CAUSES = {"corrupt": "wrong-bytes", "stall": "slow", "lie": "slow"}
Tell = Callable[[f.Fact], None]


class Faults:
    """The bad relays of one run."""

    def __init__(
        self,
        env: simpy.Environment,
        faults: tuple[RelayFault, ...],
        workers: tuple[SimWorker, ...],
        network: Network,
        tell: Tell,
    ) -> None:
        self._env, self._network, self._tell = env, network, tell
        self._uplink_bps = {worker.offer.worker_id: worker.offer.uplink_bps for worker in workers}
        self._bad: dict[str, RelayFault] = {}
        self._plans: dict[int, tuple[BroadcastPlan, str]] = {}
        self._any = bool(faults)
        for fault in faults:
            timer = env.timeout(max(0.0, fault.t_s - env.now), fault)
            timer.callbacks.append(self._goes_bad)

    def sent(self, version: int, plan: BroadcastPlan, source: str) -> None:
        """A transfer begins."""
        if self._any:
            self._plans[version] = plan, source
            for fault in self._bad.values():
                self._watch(fault, version, plan, source)

    def _goes_bad(self, event: simpy.Event) -> None:
        fault = cast(RelayFault, event.value)
        self._bad[fault.worker_id] = fault
        self._network.throttle(fault.worker_id, fault.factor if fault.kind == "lie" else 0.0)
        for version, (plan, source) in self._plans.items():
            self._watch(fault, version, plan, source)

    def _watch(self, fault: RelayFault, version: int, plan: BroadcastPlan, source: str) -> None:
        if fault.worker_id in plan.order or fault.worker_id == source:
            delay_s = max(WINDOW_S, CHUNKS * _chunk_s(plan, fault.worker_id))
            if fault.kind == "corrupt":
                each_bits = 8.0 * plan.size_bytes / max(1, plan.chunks)
                delay_s = each_bits * max(1, plan.fanout) / self._uplink_bps[fault.worker_id]
            timer = self._env.timeout(delay_s, (fault, version))
            timer.callbacks.append(self._found_out)

    def _found_out(self, event: simpy.Event) -> None:
        fault, version = cast(tuple[RelayFault, int], event.value)
        relay, now = fault.worker_id, self._env.now
        for name in self._network.fed_by(relay, version):
            self._tell(f.RelayFailed(now, name, version, relay, CAUSES[fault.kind]))


def _chunk_s(plan: BroadcastPlan, relay: str) -> float:
    """Seconds between two chunks of a relay (or of the one source of a fetch), as the plan has it."""
    share = plan.shares[plan.order.index(relay)] if plan.shares and relay in plan.order else 1.0
    return plan.time_s / max(1.0, share * plan.chunks)
