"""The streams of running groups: engines deliver finished rollouts, `generate` callers read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from echo2.errors import UserError
from echo2.runtime.rollout.engine import EngineError
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest

Item = GeneratedRollout | EngineError | None


class GroupStreams:
    """One queue for each running group. Of one event loop; not for threads."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[GroupRequest, asyncio.Queue[Item]]] = {}

    def running(self, request: GroupRequest) -> bool:
        """Whether this very request is still wanted. A later one may have taken over its id."""
        entry = self._open.get(request.group_id)
        return entry is not None and entry[0] is request

    def open(self, request: GroupRequest) -> None:
        """Begin a group. Raises UserError when its id is running already."""
        if request.group_id in self._open:
            raise UserError(
                f"group {request.group_id} is running already; give each running group its own id"
            )
        self._open[request.group_id] = (request, asyncio.Queue())

    def deliver(self, request: GroupRequest, rollout: GeneratedRollout) -> None:
        """Hand over a finished rollout. One of a group that is gone is dropped."""
        if self.running(request):
            self._open[request.group_id][1].put_nowait(rollout)

    def end(self, group_id: int, error: EngineError | None = None) -> None:
        """End a group's stream after what was delivered, with `error` if given."""
        entry = self._open.pop(group_id, None)
        if entry is not None:
            entry[1].put_nowait(error)

    def end_all(self, error: EngineError) -> None:
        """Make every running stream raise `error`."""
        for group_id in list(self._open):
            self.end(group_id, error)

    async def read(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """The rollouts of an opened group, as they come, until all are there or the group has ended."""
        queue = self._open[request.group_id][1]
        try:
            for _ in range(request.rollouts):
                item = await queue.get()
                if item is None:
                    return
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            if self.running(request):
                del self._open[request.group_id]
