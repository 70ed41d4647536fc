"""What our engines have in common: version and limits, streams of groups, one update at a time, one death.

`EngineFrame` is the base of every engine; `TaskEngine` of those that ask for each rollout by a task of its
own, because batching happens behind what they ask (vllm, openai). See `engine.Engine` for the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from echo2.runtime.rollout.engine import EngineError, SwapMode, check_next_version, swap_mode
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout, GroupRequest
from echo2.runtime.rollout.streams import GroupStreams


class EngineFrame:
    """Alive between `_come_alive` and the first `_fail`, whose error everybody gets from then on."""

    def __init__(self, first_version: int, limits: EngineLimits, swap: SwapMode) -> None:
        self._version, self._limits, self._swap_mode = first_version, limits, swap
        self._streams = GroupStreams()
        self._updating = asyncio.Lock()
        self._dead: EngineError | None = EngineError("engine not started; call start() first")

    @property
    def version(self) -> int:
        """The version of the weights that generate now."""
        return self._version

    @property
    def limits(self) -> EngineLimits:
        """What fits the model."""
        return self._limits

    def _come_alive(self) -> None:
        self._dead = None

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _fail(self, error: EngineError) -> None:
        """Nothing goes on from here: every stream raises `error`."""
        if self._dead is None:
            self._dead = error
        self._streams.end_all(error)

    def _admit(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """The stream of a group that may begin. Raises UserError or EngineError."""
        self._check_alive()
        self._limits.check(request)
        self._streams.open(request)
        return self._streams.read(request)

    @asynccontextmanager
    async def _update(self, version: int, mode: SwapMode | None) -> AsyncIterator[SwapMode]:
        """One update at a time, of an engine alive and to a newer version; how running rollouts fare."""
        async with self._updating:
            self._check_alive()
            check_next_version(version, self._version)
            yield swap_mode(mode, self._swap_mode)


class TaskEngine(EngineFrame, ABC):
    """A task for each rollout; `_open` is cleared while a swap is under way, and none begins then."""

    _slots: AbstractAsyncContextManager[object] = contextlib.nullcontext()
    """What a rollout holds while it runs."""

    def __init__(self, first_version: int, limits: EngineLimits, swap: SwapMode) -> None:
        super().__init__(first_version, limits, swap)
        self._open = asyncio.Event()
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}

    async def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Each rollout of the group as it ends."""
        stream = self._admit(request)
        tasks = self._begin(request)
        self._tasks[request.group_id] = tasks
        try:
            async for rollout in stream:
                yield rollout
        finally:
            await stream.aclose()
            await _cancelled(tasks)
            if self._tasks.get(request.group_id) is tasks:
                del self._tasks[request.group_id]

    async def cancel(self, group_id: int) -> None:
        """End a group's stream, and its rollouts where they run."""
        self._streams.end(group_id)
        await _cancelled(self._tasks.pop(group_id, []))

    @abstractmethod
    async def _generated(self, request: GroupRequest, index: int) -> GeneratedRollout:
        """One rollout from its first token to its end. Raises EngineError."""

    def _come_alive(self) -> None:
        super()._come_alive()
        self._open.set()

    def _begin(self, request: GroupRequest) -> list[asyncio.Task[None]]:
        """The tasks of a group."""
        return [asyncio.create_task(self._rollout(request, index)) for index in range(request.rollouts)]

    async def _rollout(self, request: GroupRequest, index: int, after: Awaitable[None] | None = None) -> None:
        """Deliver one rollout, begun anew when a swap aborts it before its first token."""
        try:
            if after is not None:
                await asyncio.shield(after)
            while True:
                async with self._slots:
                    await self._open.wait()
                    self._check_alive()
                    rollout = await self._generated(request, index)
                if rollout.token_ids or rollout.finish_reason != "abort":
                    break
            self._streams.deliver(request, rollout)
        except EngineError as error:
            self._fail(error)
        except Exception as error:
            self._fail(EngineError(f"the engine failed while generating: {error!r}"))

    @contextmanager
    def _swapping(self, version: int) -> Iterator[None]:
        """Nothing in here may fail: weights changed in part would answer for neither version."""
        self._open.clear()
        try:
            yield
        except BaseException as error:
            what = error if isinstance(error, EngineError) else repr(error)
            dead = EngineError(f"the swap to version {version} failed half-way: {what}")
            self._fail(dead)
            raise dead from error
        finally:
            self._open.set()

    async def _end_tasks(self) -> None:
        """End every group, at the engine's stop."""
        self._fail(EngineError("the engine was stopped"))
        for tasks in list(self._tasks.values()):
            await _cancelled(tasks)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
