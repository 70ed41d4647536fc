"""The engine protocol: what a rollout worker may ask of any inference engine.

The worker owns one engine. It starts it, streams groups through it, hands it new weights while it
generates, and stops it. Engines decide nothing about versions or staleness.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from echo2.errors import UserError
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout, GroupRequest

if TYPE_CHECKING:
    from torch import Tensor

Weights = Path | Mapping[str, "Tensor"]
"""A safetensors file, a directory of them, or tensors by their checkpoint name."""


class EngineError(Exception):
    """The engine cannot go on (stopped, died, or an update failed half-way): start a new one."""


class WeightUpdateError(UserError):
    """An update was refused before anything was changed: the old weights go on answering."""


class SwapMode(StrEnum):
    """What happens to running rollouts while weights are swapped.

    KEEP: frozen for the swap, then continued on the new weights and the old KV cache (two segments).
    WAIT: finished on the old weights first; nothing new starts until then.
    ABORT: ended with the tokens they have and finish reason "abort"; those without any start anew.
    """

    KEEP = "keep"
    WAIT = "wait"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SwapReport:
    """A finished update: `check_s` of verifying while generation went on, `pause_s` without tokens.

    In mode WAIT `pause_s` includes the drain, during which running rollouts do make tokens.
    """

    version: int
    check_s: float
    pause_s: float


class Engine(Protocol):
    """An inference engine. All methods are called from one event loop."""

    @property
    def version(self) -> int:
        """The version of the weights that generate now."""
        ...

    @property
    def limits(self) -> EngineLimits:
        """What fits the model. Known once started."""
        ...

    async def start(self) -> None:
        """Load the model. Raises UserError for a missing library or a bad model directory."""
        ...

    def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Each rollout of the group as it ends, in no fixed order.

        Ends early when the group is cancelled. Closing the generator cancels the group. Raises UserError
        for a request that does not fit, EngineError when the engine stops or dies meanwhile.
        """
        ...

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        """Swap to `weights`, whole or not at all, while generating. Returning is the acknowledgement.

        `mode` overrides the engine's own. Prefix caches of the old weights are never used afterwards.
        Raises WeightUpdateError (nothing changed) or EngineError (the engine is dead).
        """
        ...

    async def cancel(self, group_id: int) -> None:
        """Stop a running group: its stream ends. Unknown or finished groups are ignored."""
        ...

    async def stop(self) -> None:
        """Release everything, child processes too. Running streams raise EngineError. May be repeated."""
        ...


def check_next_version(version: int, current: int) -> None:
    """Versions only go up. Raises WeightUpdateError otherwise."""
    if version <= current:
        raise WeightUpdateError(
            f"weights of version {version} refused: the engine is at version {current} and versions only go "
            "up; start the engine anew to go back"
        )


def swap_mode(mode: SwapMode | str | None, default: SwapMode) -> SwapMode:
    """`mode`, or the engine's own. Raises WeightUpdateError for a name that is none."""
    try:
        return SwapMode(mode or default)
    except ValueError:
        raise WeightUpdateError(f"swap mode is {mode!r}; use keep, wait or abort") from None
