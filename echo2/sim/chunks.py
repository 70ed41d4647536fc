"""The network that moves every chunk: the cross-check of the fluid one, with the same interface.

Chosen by `echo2.sim.world` for `transport = "chunk"`. Lanes (see `chunk_transfer`) that have a chunk to send
share the links (`lanes`) anew at each chunk's end, at trace breakpoints and when a token bucket runs dry.
Plans of more than 200,000 chunk-sends are cut into fewer, larger chunks.
"""

from __future__ import annotations

from echo2.policy.broadcast import BroadcastPlan
from echo2.sim.chunk_transfer import ChunkTransfer
from echo2.sim.lanes import share_lanes
from echo2.sim.network import Network
from echo2.sim.transfers import Transfer


class ChunkNetwork(Network):
    """`Network` with store-and-forward chunks in place of fluid."""

    def _kind(self, plan: BroadcastPlan) -> type[Transfer]:
        return ChunkTransfer

    def _share(self) -> None:
        share_lanes([t for t in self._transfers if isinstance(t, ChunkTransfer)], self._access)
