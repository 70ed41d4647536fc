"""Makes our weight-transfer backend known to vLLM, in every process of an engine.

An installed echo2 announces `register` under the entry point group `vllm.general_plugins`, which vLLM loads
in each of its processes. A source checkout has no entry points: there the engine names `WorkerExtension`
as vLLM's worker extension class, and importing it registers. Imports vLLM only when called by vLLM.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from echo2.runtime import vector_maths

BACKEND = "echo2"
GROUP = "vllm.general_plugins"
EXTENSION = "echo2.runtime.rollout.vllm_extension.WorkerExtension"


def register() -> None:
    """Register the backend with vLLM's factory. May be called again: plugins are loaded in many places."""
    vector_maths.settle()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "echo2.runtime.rollout.vllm_backend", "SnapshotBackend"
        )


def announced() -> bool:
    """Whether an installed package announces the entry point."""
    return any(point.name == BACKEND for point in entry_points(group=GROUP))
