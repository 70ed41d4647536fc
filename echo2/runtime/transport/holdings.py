"""Asks a relay which chunks of a payload it has. Used by `gathering` for payloads pulled from any holder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Broken
from echo2.runtime.transport.lane import NOT_YET, OK
from echo2.runtime.transport.line import Line
from echo2.runtime.transport.shelf import payload_id, unpacked

if TYPE_CHECKING:
    from echo2.runtime.transport.gather import Gatherer


async def holdings_of(
    source: m.Source, owner: Gatherer, version: int, digests: Iterable[str], chunks: int
) -> set[int]:
    """The chunks of this very payload that a relay has; none where it fetches another one, or none yet.

    Raises Broken for a relay that cannot be asked.
    """
    line = Line(source.url, owner.key, owner.worker_id, owner.link)
    try:
        async with asyncio.timeout(owner.settings.pace.silent_s):
            status, body = await line.get(f"/v1/have/{version}")
        if status == NOT_YET:
            return set()
        if status != OK:
            raise Broken(f"answer {status}")
        holdings = m.Holdings.model_validate_json(body)
    except (TimeoutError, ValueError) as error:
        raise Broken(str(error).split("\n")[0] or "no answer in time") from None
    finally:
        line.close()
    return unpacked(holdings.have, chunks) if holdings.payload == payload_id(digests) else set()
