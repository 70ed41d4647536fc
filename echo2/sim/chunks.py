"""The network that moves every chunk: the cross-check of the fluid one, with the same interface.

Chosen by `echo2.sim.world` for `transport = "chunk"`. Lanes (see `chunk_transfer`) that have a chunk to send
share uplinks and downlinks max-min fairly, anew at each chunk's end, at trace breakpoints and when a token
bucket runs dry. Only the source of stripes gives its uplink to the plan's earliest chunk first, as
`chunk_relays` assumes. Plans of more than 200,000 chunk-sends are cut into fewer, larger chunks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan
from echo2.sim.chunk_transfer import ChunkTransfer
from echo2.sim.fairness import max_min_rates
from echo2.sim.network import Network
from echo2.sim.transfers import Transfer

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class ChunkNetwork(Network):
    """`Network` with store-and-forward chunks in place of fluid."""

    def _kind(self, plan: BroadcastPlan) -> type[Transfer]:
        return ChunkTransfer

    def _share(self) -> None:
        transfers = [t for t in self._transfers if isinstance(t, ChunkTransfer)]
        links = self._access
        busy = [np.flatnonzero(t.busy) for t in transfers]
        senders = np.concatenate([t.sender[lanes] for t, lanes in zip(transfers, busy)])
        receivers = np.concatenate([t.receiver[lanes] for t, lanes in zip(transfers, busy)])
        caps = np.concatenate([t.cap_bps[lanes] for t, lanes in zip(transfers, busy)])
        caps = caps * links.factor[receivers]
        first = self._earliest_first(transfers, busy, senders, receivers, caps)
        up = np.maximum(0.0, links.up - np.bincount(senders, first, len(links.up)))
        down = np.maximum(0.0, links.down - np.bincount(receivers, first, len(links.down)))
        rest = max_min_rates(senders, receivers, caps - first, up, down, np.ones(len(senders)))
        rates = first + rest
        links.outflow[:] = np.bincount(senders, rates, len(links.outflow))
        start = 0
        for transfer, lanes in zip(transfers, busy):
            transfer.rate[:] = 0.0
            transfer.rate[lanes] = rates[start : start + len(lanes)]
            start += len(lanes)

    def _earliest_first(
        self,
        transfers: list[ChunkTransfer],
        busy: list[IntArray],
        senders: IntArray,
        receivers: IntArray,
        caps: FloatArray,
    ) -> FloatArray:
        """(lanes,) what lanes from a source of stripes get before all others: earliest chunk first.

        Each gets at most its fair part of the receiver's downlink; against other transfers at the same
        source the lanes together get what they would under plain fairness.
        """
        links = self._access
        first = np.zeros(len(senders))
        into = np.bincount(receivers, minlength=len(links.down))
        start = 0
        for transfer, lanes in zip(transfers, busy):
            end = start + len(lanes)
            mine = start + np.flatnonzero(senders[start:end] == transfer.source)
            if transfer.striped and len(mine):
                budget = float(links.up[transfer.source])
                if len(transfers) > 1:
                    fair = max_min_rates(
                        senders, receivers, caps, links.up, links.down, np.ones(len(senders))
                    )
                    budget = float(fair[mine].sum())
                for lane in mine[np.argsort(transfer.first[lanes][mine - start], kind="stable")].tolist():
                    node = receivers[lane]
                    fair_part = float(links.down[node]) / into[node]
                    first[lane] = min(budget, fair_part, float(caps[lane]))
                    budget -= first[lane]
                    if budget <= 0:
                        break
            start = end
        return first
