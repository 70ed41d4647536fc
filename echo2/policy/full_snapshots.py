"""How often a full snapshot is written where workers are sent deltas.

Called by the planner. The scheduler's `VersionLedger` then knows at which versions there is one.
"""

from __future__ import annotations

import math

WRITE_BYTES_PER_S = 1e9
"""What encoding, hashing and writing a full snapshot moves on the learner's host (the codec's goal)."""
MOST = 100


def full_every(full_bytes: float, delta_bytes: float, joins_per_publication: float, join_bps: float) -> int:
    """n: a full snapshot with every n-th publication, the others as deltas alone. Ours.

    Seconds per publication, of the learner's host and of joiners, which are worth about the same:

        K(n) = F / (n W) + a (n - 1)/2 D / r

    A full of F bytes is written at W every n publications; `a` workers join per publication and take, on top
    of the newest full, a chain of (n - 1)/2 deltas of D bytes on average, at r = `join_bps` / 8 bytes/s. The
    least is at n = sqrt(2 F r / (W a D)). The longest chain is never more than a full snapshot, nor longer
    than `MOST`. 1 where deltas save nothing.
    """
    if delta_bytes >= full_bytes:
        return 1
    most = min(MOST, 1 + math.floor(full_bytes / delta_bytes))
    if joins_per_publication <= 0:
        return most

    def seconds(n: int) -> float:
        chain_s = (n - 1) / 2 * delta_bytes * 8.0 / join_bps
        return full_bytes / (n * WRITE_BYTES_PER_S) + joins_per_publication * chain_s

    return min(range(1, most + 1), key=seconds)
