"""Link rates for transfers that move whole chunks: every lane that has a chunk to send is a flow.

Called by `chunks` for all transfers, and by `sharing` for trees that were mended in the fluid network. Lanes
share uplinks and downlinks max-min fairly. Only the source of stripes gives its uplink to the plan's earliest
chunk first, as `chunk_relays` assumes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from echo2.sim.access import AccessLinks
from echo2.sim.chunk_transfer import ChunkTransfer
from echo2.sim.fairness import max_min_rates

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def share_lanes(transfers: Sequence[ChunkTransfer], links: AccessLinks) -> FloatArray:
    """Set the rates of all lanes and the links' `outflow`; (nodes,) what comes into each node."""
    busy = [np.flatnonzero(t.busy) for t in transfers]
    senders = np.concatenate([t.sender[lanes] for t, lanes in zip(transfers, busy)])
    receivers = np.concatenate([t.receiver[lanes] for t, lanes in zip(transfers, busy)])
    caps = np.concatenate([t.cap_bps[lanes] for t, lanes in zip(transfers, busy)])
    caps = caps * links.factor[receivers]
    first = _earliest_first(transfers, busy, senders, receivers, caps, links)
    up = np.maximum(0.0, links.up - np.bincount(senders, first, len(links.up)))
    down = np.maximum(0.0, links.down - np.bincount(receivers, first, len(links.down)))
    rates = first + max_min_rates(senders, receivers, caps - first, up, down, np.ones(len(senders)))
    links.outflow[:] = np.bincount(senders, rates, len(links.outflow))
    start = 0
    for transfer, lanes in zip(transfers, busy):
        transfer.rate[:] = 0.0
        transfer.rate[lanes] = rates[start : start + len(lanes)]
        start += len(lanes)
    return np.asarray(np.bincount(receivers, rates, len(links.down)), dtype=np.float64)


def _earliest_first(
    transfers: Sequence[ChunkTransfer],
    busy: list[IntArray],
    senders: IntArray,
    receivers: IntArray,
    caps: FloatArray,
    links: AccessLinks,
) -> FloatArray:
    """(lanes,) what lanes from a source of stripes get before all others: earliest chunk first.

    Each gets at most its fair part of the receiver's downlink; against other transfers at the same source
    the lanes together get what they would under plain fairness.
    """
    first = np.zeros(len(senders))
    into = np.bincount(receivers, minlength=len(links.down))
    start = 0
    for transfer, lanes in zip(transfers, busy):
        end = start + len(lanes)
        mine = start + np.flatnonzero(senders[start:end] == transfer.source)
        if transfer.striped and len(mine):
            budget = float(links.up[transfer.source])
            if len(transfers) > 1:
                fair = max_min_rates(senders, receivers, caps, links.up, links.down, np.ones(len(senders)))
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
