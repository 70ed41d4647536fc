"""Who takes over the chunks of a relay that is gone, for fluid stripes: the policy's rule, in whole chunks.

Used by `echo2.sim.stripes` alone. A relay passes its chunks on in the source's order, those that it has taken
over last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan, chunk_relays, relays_without

FloatArray = npt.NDArray[np.float64]


class Deal:
    """Every relay's chunks, in the order in which it passes them on; kept from the first departure on."""

    def __init__(self, plan: BroadcastPlan) -> None:
        self._plan = plan
        self._chunks: dict[int, list[int]] = {}
        self._gone: set[int] = set()

    def take_out(self, position: int, out: float) -> tuple[float, FloatArray, float]:
        """A relay that has passed on the share `out` of its stripe is gone.

        Returns the share it has passed on in whole chunks, and as shares of the snapshot what the others
        (N,) take over and what the source sends to everybody itself.
        """
        plan = self._plan
        if not self._gone:
            for chunk, relay in enumerate(chunk_relays(plan)):
                self._chunks.setdefault(relay, []).append(chunk)
        self._gone.add(position)
        mine = self._chunks.pop(position, [])
        done = int(out * len(mine) + 1e-6)
        relays = relays_without(plan, {plan.order[i] for i in self._gone})
        counts = np.zeros(len(plan.order) + 1)
        for chunk in mine[done:]:
            self._chunks.setdefault(relays[chunk], []).append(chunk)
            counts[relays[chunk]] += 1
        dealt: FloatArray = counts / plan.chunks
        return done / max(1, len(mine)), dealt[:-1], float(dealt[-1])
