"""The way into vLLM's workers without an installed entry point: imported by a worker, it registers.

vLLM imports its worker extension class before it creates the weight-transfer backend.
"""

from __future__ import annotations

from echo2.runtime.rollout.vllm_plugin import register

register()


class WorkerExtension:
    """Adds nothing to the worker: only its import matters."""
