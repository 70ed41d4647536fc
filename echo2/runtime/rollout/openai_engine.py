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
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.rollout.engine import EngineError, SwapMode, SwapReport, Weights
from echo2.runtime.rollout.frame import TaskEngine
from echo2.runtime.rollout.model_dir import read_limits
from echo2.runtime.rollout.openai_endpoint import MODELS, Deadlines, Endpoint, EndpointError, Routes
from echo2.runtime.rollout.openai_probe import check_logprobs
from echo2.runtime.rollout.openai_sequence import Sequence
from echo2.runtime.rollout.openai_shelf import Shelf
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout, GroupRequest, SamplingSettings
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


class OpenaiEngine(TaskEngine):
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
        super().__init__(first_version, read_limits(model, context_tokens), swap)
        self._settings, self._model = endpoint, model
        self._own_context = not context_tokens
        self._routes = Routes() if endpoint.routes is None else Routes.read(endpoint.routes)
        self._endpoint = Endpoint(endpoint.url, endpoint.key, endpoint.deadlines)
        self._served = endpoint.served_model
        self._exact = False
        self._shelf = Shelf(endpoint.weights_dir, endpoint.seen_as)
        self._manifest = Manifest({})
        self._slots = asyncio.Semaphore(max_running)
        self._sequences: dict[int, Sequence] = {}

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
        self._come_alive()

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        """Verify and copy while generation goes on, then pause, load, resume."""
        async with self._update(version, mode) as how:
            began = time.monotonic()
            staged = stage(weights, self._manifest)
            path = await asyncio.to_thread(staged.__enter__)
            try:
                copied = await asyncio.to_thread(self._shelf.put, version, path)
            finally:
                staged.__exit__(None, None, None)
            checked = time.monotonic()
            self._check_alive()
            with self._swapping(version):
                await self._swap(version, copied, how)
            return SwapReport(version, checked - began, time.monotonic() - checked)

    async def stop(self) -> None:
        """Close all connections. The endpoint goes on, with the weights it has."""
        await self._end_tasks()
        await self._endpoint.close()

    # ---- weights ---------------------------------------------------------------------------------

    async def _load(self, version: int, weights: Path, mode: SwapMode) -> None:
        await self._swap(version, await asyncio.to_thread(self._shelf.put, version, weights), mode)

    async def _swap(self, version: int, copied: Path, mode: SwapMode) -> None:
        values = {
            "mode": mode.value,
            "clear": str(mode is not SwapMode.KEEP).lower(),
            "version": str(version),
            "path": self._shelf.seen(copied),
            "checksum": self._manifest.checksum,
        }
        await self._endpoint.post(self._routes.pause, values)
        for call in self._routes.update:
            await self._endpoint.post(call, values)
        for sequence in self._sequences.values():
            sequence.swapped(version)
        self._version = version
        await self._endpoint.post(self._routes.resume, values)
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

    def _begin(self, request: GroupRequest) -> list[asyncio.Task[None]]:
        held = asyncio.create_task(self._check_held())
        after = [asyncio.create_task(self._rollout(request, i, held)) for i in range(request.rollouts)]
        return [held, *after]

    async def _generated(self, request: GroupRequest, index: int) -> GeneratedRollout:
        sequence = Sequence(request, index, self._version)
        if self._exact:
            sequence.whole(await self._endpoint.tokens(sequence.tokens_body(self._served)))
        else:
            await self._streamed(sequence)
        rollout = sequence.rollout()
        if not rollout.token_ids and self._open.is_set() and self._version == sequence.began:
            raise EndpointError(
                f"{self._endpoint.url} ended a rollout without a token and without a swap; see its log"
            )
        return rollout

    async def _streamed(self, sequence: Sequence) -> None:
        """Fill a sequence by a streamed completion; a swap in between finds it."""
        self._sequences[id(sequence)] = sequence
        try:
            async with aclosing(self._endpoint.completion(sequence.completion_body(self._served))) as pieces:
                async for piece in pieces:
                    sequence.add(piece)
        finally:
            del self._sequences[id(sequence)]
