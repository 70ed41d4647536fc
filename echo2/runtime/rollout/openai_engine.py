"""The openai engine: any OpenAI-style endpoint that can reload weights, such as a remote vLLM server.

One worker may so be a whole group of machines. The endpoint must be this worker's alone: weights and versions
are the worker's to set. A rollout is one request: vLLM's tokens route, which labels every token with its
version, where the endpoint has it (`--enable-scale-out`), else a streamed completion, for only a stream shows
which tokens were there before a swap. The endpoint is not trusted to log the right log-probs: a probe at the
start decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.rollout.engine import (
    EngineError,
    SwapMode,
    SwapReport,
    Weights,
    check_next_version,
    swap_mode,
)
from echo2.runtime.rollout.model_dir import read_limits
from echo2.runtime.rollout.openai_endpoint import MODELS, Deadlines, Endpoint, EndpointError, Routes
from echo2.runtime.rollout.openai_probe import check_logprobs
from echo2.runtime.rollout.openai_sequence import Sequence
from echo2.runtime.rollout.openai_shelf import Shelf
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout, GroupRequest, SamplingSettings
from echo2.runtime.rollout.streams import GroupStreams
from echo2.runtime.rollout.weights import Manifest, read_manifest, stage


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where the endpoint is and how it gets weights.

    Snapshots are put into `weights_dir`, which the endpoint sees as `seen_as` ("": under the same path).
    `served_model` "": the only one it serves. `routes` None: vLLM's.
    """

    url: str
    weights_dir: Path
    seen_as: str = ""
    served_model: str = ""
    key: str = field(default="", repr=False)
    routes: Path | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)


class OpenaiEngine:
    """`Engine` on an endpoint. See `echo2.runtime.rollout.engine.Engine` for the contract.

    On a streaming endpoint the boundary of a segment is where the stream stood when the swap was done: tokens
    delayed for longer than the swap count as the new version's; the first token never does, so that the
    oldest version, which staleness counts from, is never too new.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        model: Path,
        first_version: int = 0,
        max_running: int = 256,
        context_tokens: int = 0,
        swap: SwapMode = SwapMode.KEEP,
    ) -> None:
        self._settings, self._model, self._swap_mode = endpoint, model, swap
        self._version = first_version
        self._limits = read_limits(model, context_tokens)
        self._own_context = not context_tokens
        self._routes = Routes() if endpoint.routes is None else Routes.read(endpoint.routes)
        self._endpoint = Endpoint(endpoint.url, endpoint.key, endpoint.deadlines)
        self._served = endpoint.served_model
        self._exact = False
        self._shelf = Shelf(endpoint.weights_dir, endpoint.seen_as)
        self._manifest = Manifest({})
        self._streams = GroupStreams()
        self._slots = asyncio.Semaphore(max_running)
        self._updating = asyncio.Lock()
        self._open = asyncio.Event()  # cleared while a swap is under way
        self._dead: EngineError | None = EngineError("engine not started; call start() first")
        self._sequences: dict[int, Sequence] = {}
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}

    @property
    def version(self) -> int:
        """The version of the weights that generate now."""
        return self._version

    @property
    def limits(self) -> EngineLimits:
        """What fits the model."""
        return self._limits

    async def start(self) -> None:
        """Give the endpoint the model directory's weights, then check what it says about them. UserError."""
        self._manifest = read_manifest(self._model)
        self._shelf.make()
        try:
            await self._find_model()
            # whatever weights it holds, and paused or not: the same swap as any other, with nothing to keep
            await self._load(self._version, self._model, SwapMode.ABORT)
            await check_logprobs(self._endpoint, self._served, self._limits.vocab_size)
            probe = GroupRequest(0, (1,), 1, SamplingSettings(max_tokens=1))
            self._exact = await self._endpoint.has_tokens_route(
                Sequence(probe, 0, self._version).tokens_body(self._served)
            )
            if (held := await self._held()) != str(self._version):
                raise EndpointError(
                    f"{self._endpoint.url} says it holds version {held!r} after it was given "
                    f"{self._version}; another worker may drive it: one worker an endpoint"
                )
        except EngineError as error:
            raise UserError(str(error)) from error
        self._dead = None
        self._open.set()

    async def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Each rollout of the group as it ends."""
        self._check_alive()
        self._limits.check(request)
        self._streams.open(request)
        held = asyncio.create_task(self._check_held())
        tasks = [asyncio.create_task(self._rollout(request, i, held)) for i in range(request.rollouts)]
        self._tasks[request.group_id] = tasks
        stream = self._streams.read(request)
        try:
            async for rollout in stream:
                yield rollout
        finally:
            await stream.aclose()
            await _cancelled([held, *tasks])
            if self._tasks.get(request.group_id) is tasks:
                del self._tasks[request.group_id]

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        """Verify and copy while generation goes on, then pause, load, resume."""
        async with self._updating:
            self._check_alive()
            check_next_version(version, self._version)
            how = swap_mode(mode, self._swap_mode)
            began = time.monotonic()
            staged = stage(weights, self._manifest)
            path = await asyncio.to_thread(staged.__enter__)
            try:
                copied = await asyncio.to_thread(self._shelf.put, version, path)
            finally:
                staged.__exit__(None, None, None)
            checked = time.monotonic()
            self._check_alive()
            try:
                await self._swap(version, copied, how)
            except BaseException as error:
                dead = EngineError(f"the swap to version {version} failed half-way: {error}")
                self._fail(dead)
                raise dead from error
            return SwapReport(version, checked - began, time.monotonic() - checked)

    async def cancel(self, group_id: int) -> None:
        """End a group's stream; its connections are closed, and the endpoint stops its completions."""
        self._streams.end(group_id)
        await _cancelled(self._tasks.pop(group_id, []))

    async def stop(self) -> None:
        """Close all connections. The endpoint goes on, with the weights it has."""
        self._fail(EngineError("the engine was stopped"))
        for tasks in list(self._tasks.values()):
            await _cancelled(tasks)
        await self._endpoint.close()

    # ---- weights ---------------------------------------------------------------------------------

    async def _load(self, version: int, weights: Path, mode: SwapMode) -> None:
        await self._swap(version, await asyncio.to_thread(self._shelf.put, version, weights), mode)

    async def _swap(self, version: int, copied: Path, mode: SwapMode) -> None:
        """From here on nothing may fail: an endpoint changed in part would answer for neither version."""
        values = {
            "mode": mode.value,
            "clear": str(mode is not SwapMode.KEEP).lower(),
            "version": str(version),
            "path": self._shelf.seen(copied),
            "checksum": self._manifest.checksum,
        }
        self._open.clear()
        try:
            await self._endpoint.post(self._routes.pause, values)
            for call in self._routes.update:
                await self._endpoint.post(call, values)
            for sequence in self._sequences.values():
                sequence.swapped(version)
            self._version = version
            await self._endpoint.post(self._routes.resume, values)
        finally:
            self._open.set()
        await asyncio.to_thread(self._shelf.keep_only, copied)

    # ---- what the endpoint holds -----------------------------------------------------------------

    async def _find_model(self) -> None:
        """The served model's name, and a context no longer than its own."""
        models = (await self._endpoint.get(MODELS)).get("data") or [{}]
        names = [str(model.get("id", "")) for model in models]
        self._served = self._served or names[0]
        if self._served not in names or (len(names) > 1 and not self._settings.served_model):
            raise EndpointError(
                f"{self._endpoint.url} serves {', '.join(names)}; say which with --endpoint-model"
            )
        longest = models[names.index(self._served)].get("max_model_len") or self._limits.context_tokens
        if longest < self._limits.context_tokens:
            if not self._own_context:
                raise EndpointError(
                    f"{self._endpoint.url} takes {longest} tokens of context, "
                    f"{self._limits.context_tokens} are needed; start it with a larger --max-model-len"
                )
            self._limits = EngineLimits(self._limits.vocab_size, int(longest))

    async def _held(self) -> str:
        if not self._routes.version:
            return str(self._version)
        return str((await self._endpoint.get(self._routes.version)).get("weight_version"))

    async def _check_held(self) -> None:
        """Die unless the endpoint holds our weights: one that was restarted holds others."""
        try:
            if await self._held() == str(self._version):
                return
            async with self._updating:  # not while a swap is changing it
                if (held := await self._held()) == str(self._version):
                    return
        except EndpointError as error:
            self._fail(error)
        else:
            self._fail(
                EngineError(
                    f"{self._endpoint.url} holds weights of version {held!r} instead of {self._version}; it "
                    "was restarted, or another worker drives it: one worker an endpoint"
                )
            )

    # ---- rollouts --------------------------------------------------------------------------------

    async def _rollout(self, request: GroupRequest, index: int, held: asyncio.Task[None]) -> None:
        """One rollout, begun anew when a swap aborts it before its first token."""
        try:
            await asyncio.shield(held)
            while True:
                async with self._slots:
                    await self._open.wait()
                    self._check_alive()
                    sequence = await self._completed(request, index)
                if sequence.token_ids or sequence.finish_reason != "abort":
                    break
            self._streams.deliver(request, sequence.rollout())
        except EngineError as error:
            self._fail(error)
        except Exception as error:
            self._fail(EngineError(f"{self._endpoint.url} failed while generating: {error!r}"))

    async def _completed(self, request: GroupRequest, index: int) -> Sequence:
        """One rollout as it is asked for and received. Raises EndpointError."""
        sequence = Sequence(request, index, self._version)
        if self._exact:
            sequence.whole(await self._endpoint.tokens(sequence.tokens_body(self._served)))
            return sequence
        self._sequences[id(sequence)] = sequence
        try:
            async with aclosing(self._endpoint.completion(sequence.completion_body(self._served))) as pieces:
                async for piece in pieces:
                    sequence.add(piece)
        finally:
            del self._sequences[id(sequence)]
        return sequence

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _fail(self, error: EngineError) -> None:
        if self._dead is None:
            self._dead = error
        self._streams.end_all(error)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
