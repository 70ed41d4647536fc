"""Our weight-transfer backend, run by vLLM inside each of its workers.

The engine has verified the snapshot and paused generation before it calls; here it is read from local disk
and put into the model. A failure leaves the worker unusable, and the engine then declares itself dead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from echo2.runtime.rollout.vllm_process import end_with_owner
from echo2.runtime.rollout.weights import files_of, read_manifest

# Its warnings name layers without weights of their own, at every swap; what must be there we check ourselves.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


@dataclass
class SnapshotInit(WeightTransferInitInfo):
    """Nothing to set up: the files are local."""


@dataclass
class SnapshotUpdate(WeightTransferUpdateInfo):
    """A local safetensors file or directory, and the checksum of the manifest that was verified."""

    path: str
    checksum: str


class SnapshotBackend(WeightTransferEngine[SnapshotInit, SnapshotUpdate]):
    """Loads a whole snapshot from local safetensors files."""

    init_info_cls = SnapshotInit
    update_info_cls = SnapshotUpdate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        end_with_owner()

    def init_transfer_engine(self, init_info: SnapshotInit) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Nothing yet: the model is untouched until the snapshot has been found to be the verified one."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one snapshot. Overridden, for the base class synchronises an accelerator, which CPU lacks."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            import torch

            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SnapshotUpdate) -> None:
        """Load through vLLM's layerwise reload, so that packed and fused layers are rebuilt in place."""
        path = Path(update_info.path)
        if read_manifest(path).checksum != update_info.checksum:
            raise ValueError(f"the snapshot at {path.name} changed after it was verified")
        model: Any = self.model
        initialize_layerwise_reload(model)
        model.load_weights(_tensors(path))
        finalize_layerwise_reload(model, self.model_config)  # type: ignore[no-untyped-call]
        if getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            retie(model)

    def finish_weight_update(self) -> None:
        """Nothing left: `receive_weights` has done it all."""

    def shutdown(self) -> None:
        """Nothing is held."""


def retie(model: Any) -> None:
    """Make the LM head use the embedding just loaded.

    The snapshot of a tied model has no LM head, and the reload then puts the head's old tensor back (on CPU
    packed for its kernels, hence processed again here). Without this the outputs change, and are wrong.
    """
    modules = list(model.modules())
    heads = [m for m in modules if isinstance(m, ParallelLMHead)]
    embeddings = [
        m for m in modules if isinstance(m, VocabParallelEmbedding) and not isinstance(m, ParallelLMHead)
    ]
    if len(embeddings) != 1 or len(heads) > 1:
        raise ValueError(
            f"cannot tell what to tie in {type(model).__name__}: {len(heads)} LM heads, "
            f"{len(embeddings)} embeddings"
        )
    for head in heads:
        head.weight = embeddings[0].weight
        head.quant_method.process_weights_after_loading(head)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Tensor by tensor, so that a worker never holds two whole copies."""
    from safetensors import safe_open

    for file in files_of(path):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                yield name, opened.get_tensor(name)
