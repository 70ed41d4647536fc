"""The language models whose size the planner needs: parameters, layers, bytes of KV cache.

From the models' public configuration files. Called by the engine and learner look-ups and by the planner
(snapshot size).
"""

from __future__ import annotations

from dataclasses import dataclass

from echo2.traces.nearest import unknown

BF16_BYTES = 2


@dataclass(frozen=True)
class ModelInfo:
    """Size of a model. `kv_bytes_per_token` is for all layers in bf16, K and V, over all GPUs of a worker."""

    name: str
    parameters: float
    active_parameters: float
    layers: int
    kv_heads: int
    head_dim: int = 128

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache per token: 2 (K, V) x layers x kv_heads x head_dim x 2 bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BF16_BYTES

    @property
    def bf16_bytes(self) -> float:
        """Bytes of the weights in bf16: a full snapshot."""
        return self.parameters * BF16_BYTES

    @property
    def is_sparse(self) -> bool:
        """Mixture of experts: only some parameters work on a token."""
        return self.active_parameters < self.parameters


MODELS: tuple[ModelInfo, ...] = (
    ModelInfo("Qwen3-0.6B", 0.596e9, 0.596e9, 28, 8),
    ModelInfo("Qwen3-4B", 4.02e9, 4.02e9, 36, 8),
    ModelInfo("Qwen3-8B", 8.19e9, 8.19e9, 36, 8),
    ModelInfo("Qwen3-14B", 14.77e9, 14.77e9, 40, 8),
    ModelInfo("Qwen3-32B", 32.76e9, 32.76e9, 64, 8),
    ModelInfo("Qwen3-30B-A3B", 30.53e9, 3.35e9, 48, 4),
    ModelInfo("Llama-3.1-8B", 8.03e9, 8.03e9, 32, 8),
)
_BY_NAME = {m.name.lower(): m for m in MODELS}


def model_info(model: str) -> ModelInfo:
    """The size of `model`, with or without its owner and an `-Instruct...` ending. Unknown: UserError."""
    bare = model.strip().rsplit("/", 1)[-1].lower().split("-instruct")[0]
    found = _BY_NAME.get(bare)
    if found is None:
        raise unknown("model", model, (m.name for m in MODELS))
    return found
