"""One chunk from one source: asked for, resumed, asked for again, until it is whole or the source has failed.

Used by `gathering`, which says what is fetched from whom and what a failure means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Broken, Refused, WrongLength
from echo2.runtime.transport.lane import NOT_YET, OK, Cause, Lane, Port
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.retry import Patience

TRIES = 3
"""How often a relay is dialled, and how often the learner may send wrong bytes."""
AGAIN_S = 0.1

Fail = Callable[[Lane, Cause, str], None]


@dataclass(slots=True)
class Part:
    """A chunk of which `filled` bytes are there, from `sources`."""

    data: bytearray
    filled: int = 0
    sources: set[str] = field(default_factory=set)


class Fetching:
    """What all fetches of a payload share. `learner`: its URL; `fail` hears of relays that are gone."""

    def __init__(self, version: int, learner: str, wait_s: float, give_up_s: float, fail: Fail) -> None:
        self._version, self._learner, self._wait_s, self._fail = version, learner, wait_s, fail
        self.patience = Patience(f"fetching snapshot {version} from {learner}", give_up_s)

    async def filled(self, lane: Lane, port: Port, place: int, chunk: m.Chunk, part: Part) -> bool:
        """Fill the part from the source; False when the source has failed.

        Raises SnapshotError for a chunk that the learner has not, or not in this size, and Unreachable.
        """
        broken = 0
        while part.filled < chunk.size:
            had = part.filled
            try:
                status = await self._asked(lane, port, place, chunk, part)
            except Broken as trouble:
                broken = 1 if part.filled > had else broken + 1
                if not lane.is_learner and broken >= TRIES:
                    self._fail(lane, "gone", str(trouble))
                    return False
                if lane.is_learner and broken >= TRIES and isinstance(trouble, WrongLength):
                    raise self._wrong_length(chunk, str(trouble)) from trouble
                await self._again(lane, part.filled > had, str(trouble))
                continue
            if status == NOT_YET:
                await asyncio.sleep(AGAIN_S)
            elif status != OK and lane.is_learner:
                raise self._wrong_length(chunk, f"answer {status} at {had}")
            elif status != OK:
                self._fail(lane, "gone", f"answer {status}")
                return False
        return True

    def _wrong_length(self, chunk: m.Chunk, why: str) -> SnapshotError:
        return SnapshotError(
            f"chunk {chunk.digest} of snapshot {self._version} from {self._learner} is not {chunk.size} "
            f"bytes long ({why}); nothing was applied"
        )

    def wrong(self, chunk: m.Chunk) -> SnapshotError:
        """The learner itself has sent wrong bytes, several times."""
        return SnapshotError(
            f"chunk {chunk.digest} of snapshot {self._version} from {self._learner} has the wrong digest; "
            "nothing was applied"
        )

    async def _asked(self, lane: Lane, port: Port, place: int, chunk: m.Chunk, part: Part) -> int:
        had = part.filled
        if not lane.out:
            lane.pace.asked()
        lane.out += 1
        try:
            return await port.chunk(chunk.digest, part.data, had, self._wait_s, place)
        except Refused as refusal:
            raise SnapshotError(f"snapshot {self._version} is no longer served: {refusal}") from refusal
        finally:
            lane.out -= 1
            part.filled = max(had, port.filled)
            if part.filled > had:
                part.sources.add(lane.source.worker_id)

    async def _again(self, lane: Lane, progress: bool, reason: str) -> None:
        if not lane.is_learner:
            await asyncio.sleep(AGAIN_S)
            return
        if progress:
            self.patience.progress()
        await self.patience.failed(reason)
