"""The transformers engine: batched generation on any Hugging Face causal LM, on CPU or one GPU.

For a laptop and for tests; vLLM is the fast one. One task owns the batch and the model. Between two
decode steps it takes in new groups, drops cancelled ones and swaps weights; steps run in one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from echo2.errors import UserError
from echo2.runtime import vector_maths
from echo2.runtime.rollout.engine import EngineError, SwapMode, SwapReport, Weights
from echo2.runtime.rollout.frame import EngineFrame
from echo2.runtime.rollout.model_dir import read_limits
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest
from echo2.runtime.rollout.weights import Manifest, load, read_manifest, stage

if TYPE_CHECKING:
    from torch import Tensor

    from echo2.runtime.rollout.decode_batch import DecodeBatch, Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransformersSettings:
    """Settings of the transformers engine.

    `max_running` sequences at a time, the others wait. `context_tokens` 0: the model's own. `dtype` is
    float32, bfloat16 or float16; `device` a torch device. `first_version` is that of the model directory.
    """

    model: Path
    first_version: int = 0
    max_running: int = 64
    context_tokens: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    swap: SwapMode = SwapMode.KEEP

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise UserError(f"engine max_running is {self.max_running}; it must be at least 1")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise UserError(f"engine dtype is {self.dtype!r}; use float32, bfloat16 or float16")


@dataclass(slots=True)
class _Swap:
    version: int
    tensors: dict[str, Tensor]
    mode: SwapMode
    done: asyncio.Future[None]


class TransformersEngine(EngineFrame):
    """`Engine` on transformers. See `echo2.runtime.rollout.engine.Engine` for the contract."""

    def __init__(self, settings: TransformersSettings) -> None:
        limits = read_limits(settings.model, settings.context_tokens)
        super().__init__(settings.first_version, limits, settings.swap)
        self._settings = settings
        self._waiting: deque[Row] = deque()
        self._swap: _Swap | None = None
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="echo2-decode")
        self._model: Any = None
        self._manifest = Manifest({})
        self._batch: DecodeBatch | None = None

    async def start(self) -> None:
        """Load the model. Raises UserError for a missing library or an unusable model directory."""
        self._manifest = read_manifest(self._settings.model)
        await self._in_thread(self._load)
        self._come_alive()
        self._loop = asyncio.create_task(self._run(), name="echo2-transformers-engine")

    async def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Each rollout of the group as it ends."""
        from echo2.runtime.rollout.decode_batch import Row

        stream = self._admit(request)
        self._waiting.extend(Row.of(request, index) for index in range(request.rollouts))
        self._wake.set()
        try:
            async for rollout in stream:
                yield rollout
        finally:
            await stream.aclose()
            self._wake.set()

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        """Verify while generation goes on, then swap between two decode steps."""
        async with self._update(version, mode) as how:
            began = time.monotonic()
            tensors = await asyncio.to_thread(self._verified, weights)
            checked = time.monotonic()
            self._check_alive()
            done = asyncio.get_running_loop().create_future()
            self._swap = _Swap(version, tensors, how, done)
            self._wake.set()
            await done
            return SwapReport(version, checked - began, time.monotonic() - checked)

    async def cancel(self, group_id: int) -> None:
        """End a group's stream; its rows leave before the next step."""
        self._streams.end(group_id)
        self._wake.set()

    async def stop(self) -> None:
        """End the loop after the step that runs, and free the model."""
        self._fail(EngineError("the engine was stopped"))
        if self._loop is not None:
            await asyncio.gather(self._loop, return_exceptions=True)
        self._thread.shutdown(wait=True)
        self._model = self._batch = None

    def _load(self) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ImportError as error:
            raise UserError(
                f"engine 'transformers' needs {error.name}, which is not installed; "
                "run: pip install 'echo2[runtime]'"
            ) from error
        from echo2.runtime.rollout.decode_batch import DecodeBatch

        vector_maths.settle()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call] # the worker's output is its log
        model: Any = AutoModelForCausalLM.from_pretrained(
            self._settings.model, dtype=getattr(torch, self._settings.dtype), local_files_only=True
        )
        model = model.to(self._settings.device).eval().requires_grad_(False)
        own = model.state_dict()
        for name, (_, shape) in self._manifest.tensors.items():
            if name not in own or tuple(own[name].shape) != shape:
                raise UserError(
                    f"tensor {name} of model {self._settings.model.name!r} is renamed or reshaped when "
                    "transformers loads it, so it cannot be swapped; use the vllm engine for this model"
                )
        self._model, self._batch = model, DecodeBatch(model)

    def _verified(self, weights: Weights) -> dict[str, Tensor]:
        with stage(weights, self._manifest) as path:
            return {name: tensor.to(self._settings.device) for name, tensor in load(path).items()}

    def _apply(self, tensors: dict[str, Tensor]) -> None:
        """Copy in place: tied tensors stay tied."""
        import torch

        own = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)

    async def _run(self) -> None:
        try:
            while self._dead is None:
                self._wake.clear()
                await self._turn()
                if not (self._rows or self._waiting or self._swap):
                    await self._wake.wait()
        except Exception as error:
            self._fail(EngineError(f"the engine failed while generating: {error!r}"))

    async def _turn(self) -> None:
        """Drop what was cancelled, swap if it is time, take in what fits, make one token for every row."""
        assert self._batch is not None
        wanted = [i for i, row in enumerate(self._rows) if self._streams.running(row.request)]
        await self._in_thread(self._batch.keep, wanted)
        self._waiting = deque(row for row in self._waiting if self._streams.running(row.request))
        if self._swap is not None and (self._swap.mode is not SwapMode.WAIT or not self._rows):
            await self._carry_out(self._swap)
        old = bool(self._rows)
        if self._swap is None:
            free = min(self._settings.max_running - len(self._rows), len(self._waiting))
            new = [self._waiting.popleft() for _ in range(free)]
        else:
            new = []
        if old or new:
            for row, rollout in await self._in_thread(self._decode, self._batch, new, self._version):
                self._streams.deliver(row.request, rollout)

    @staticmethod
    def _decode(batch: DecodeBatch, new: list[Row], version: int) -> list[tuple[Row, GeneratedRollout]]:
        """One decode step of the running rows, then the prefill of the new ones."""
        if batch.rows:
            batch.step(version)
        if new:
            batch.admit(new, version)
        return batch.take_finished()

    async def _carry_out(self, swap: _Swap) -> None:
        assert self._batch is not None
        if swap.mode is SwapMode.ABORT:
            for row in self._rows:
                self._streams.deliver(row.request, row.finished("abort"))
            await self._in_thread(self._batch.keep, [])
        await self._in_thread(self._apply, swap.tensors)
        self._version, self._swap = swap.version, None
        if not swap.done.done():
            swap.done.set_result(None)

    @property
    def _rows(self) -> list[Row]:
        return self._batch.rows if self._batch is not None else []

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _fail(self, error: EngineError) -> None:
        """A pending update raises `error` too."""
        super()._fail(error)
        if self._swap is not None and not self._swap.done.done():
            self._swap.done.set_exception(error)
        self._swap = None
        self._wake.set()
