"""What workers report of their links, and what of it the scheduler is told. Called by `workers`.

A rate seen in a transfer is the link's own only if the link was the limit. Of a downlink nobody can tell, so
it only ever raises what is known; an uplink is known while data for several others waited in it (see
`transport.uplink`), and then lowers what was promised, too. Ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from echo2.policy.facts import WorkerOffer
from echo2.runtime.transport import messages as m

REACH_S = 3.0
CHANGE = 0.1
"""A rate that differs less from what is known is not told again."""


class LinkFacts:
    """What is known of every worker's access link: first what its offer says, then what has been seen."""

    def __init__(self, offers: Mapping[str, WorkerOffer]) -> None:
        self._known = {name: (offer.uplink_bps, offer.downlink_bps) for name, offer in offers.items()}

    def learnt(self, worker_id: str, report: m.Link) -> tuple[float, float] | None:
        """(uplink, downlink) in bit/s, 0 for what is as it was; None when a report says nothing new."""
        up, down = self._known[worker_id]
        new_up = report.uplink_bps if report.uplink_limited or report.uplink_bps > up else 0.0
        new_up = new_up if abs(new_up - up) > CHANGE * up else 0.0
        new_down = report.downlink_bps if report.downlink_bps > (1 + CHANGE) * down else 0.0
        self._known[worker_id] = new_up or up, new_down or down
        return (new_up, new_down) if new_up or new_down else None


async def reaches(url: str, within_s: float = REACH_S) -> bool:
    """Whether something listens at a relay's address."""
    parts = urlsplit(url)
    with suppress(OSError, TimeoutError, ValueError, UnicodeError):
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        writer.close()
        return True
    return False
