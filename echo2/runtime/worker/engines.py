"""Which engine a worker runs, by its name. Called when the worker starts and at every `Start` order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.runtime.rollout.engine import Engine, SwapMode

if TYPE_CHECKING:
    from echo2.runtime.rollout.openai_engine import EndpointSettings

ENGINES = ("vllm", "transformers", "openai", "simulated")


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """What an engine is started with: the model directory, whose weights are `version`, and its limits.

    `slots` sequences at a time; `context_tokens` 0: the model's own.
    """

    model: Path
    version: int
    slots: int
    context_tokens: int = 0
    swap: SwapMode = SwapMode.KEEP


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """How the simulated engine behaves: its rate in tokens/s whatever runs, and the length of a rollout."""

    tokens_per_s: float = 2000.0
    tokens: int = 64


EngineMaker = Callable[[EngineOrder], Engine]


def check_engine(kind: str) -> None:
    """Raise UserError for an unknown engine, with the nearest name, or for one that is not installed."""
    if kind not in ENGINES:
        from echo2.traces.nearest import unknown

        raise unknown("engine", kind, ENGINES, "choose one with --engine")
    if kind == "vllm":
        from echo2.runtime.rollout.vllm_engine import require_vllm

        require_vllm()
    if kind == "transformers":
        missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
        if missing:
            raise UserError(
                f"engine 'transformers' needs {missing[0]}, which is not installed; "
                "run: pip install 'echo2[runtime]'"
            )


def make_engine(
    kind: str,
    order: EngineOrder,
    profile: SimulatedProfile | None = None,
    endpoint: EndpointSettings | None = None,
) -> Engine:
    """An engine, not started yet. Raises UserError as `check_engine` does, or for a bad model directory."""
    check_engine(kind)
    if kind == "openai":
        return _openai(order, endpoint)
    if kind == "vllm":
        from echo2.runtime.rollout.vllm_engine import VllmEngine, VllmSettings

        return VllmEngine(
            VllmSettings(order.model, order.version, order.slots, order.context_tokens, swap=order.swap)
        )
    if kind == "transformers":
        return _transformers(order)
    return _simulated(order, profile or SimulatedProfile())


def _openai(order: EngineOrder, endpoint: EndpointSettings | None) -> Engine:
    from echo2.runtime.rollout.openai_engine import OpenaiEngine

    if endpoint is None:
        raise UserError("engine 'openai' drives an endpoint; give --endpoint and --endpoint-weights")
    return OpenaiEngine(
        endpoint, order.model, order.version, order.slots, order.context_tokens, swap=order.swap
    )


def _transformers(order: EngineOrder) -> Engine:
    import torch

    from echo2.runtime.rollout.transformers_engine import TransformersEngine, TransformersSettings
    from echo2.runtime.rollout.weights import read_manifest

    return TransformersEngine(
        TransformersSettings(
            order.model,
            order.version,
            order.slots,
            order.context_tokens,
            dtype=read_manifest(order.model).main_dtype,
            device="cuda" if torch.cuda.is_available() else "cpu",
            swap=order.swap,
        )
    )


def _simulated(order: EngineOrder, profile: SimulatedProfile) -> Engine:
    from echo2.policy.generation import DecodeModel, TokenLengths
    from echo2.runtime.rollout.model_dir import read_limits
    from echo2.runtime.rollout.simulated import SimulatedEngine, SimulatedSettings

    return SimulatedEngine(
        SimulatedSettings(
            DecodeModel.constant_rate(profile.tokens_per_s, order.slots),
            TokenLengths.constant(profile.tokens),
            order.slots,
            first_version=order.version,
            limits=read_limits(order.model, order.context_tokens),
            swap=order.swap,
        )
    )
