"""A model's weights and its optimiser's state as whole tensors by name, wherever their shards lie.

Called by the checkpoint and by whoever publishes a version. For a sharded model every function here is a
collective operation: all ranks call it, and the result is on rank 0 (elsewhere empty).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from echo2.runtime.learning.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

State = dict[str, dict[str, Tensor]]


def weight_names(model: PreTrainedModel) -> list[str]:
    """The tensors of a snapshot in the model's order, tied parameters once."""
    once = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return [name for name in model.state_dict() if name in once or name not in every]


def whole_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights on CPU. May share memory with a model on CPU, so use them before the next step."""
    held = model.state_dict()
    return {name: full for name in weight_names(model) if (full := _whole(held[name], model)) is not None}


def set_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy whole weights into the model; each rank gives all of them."""
    held = model.state_dict()
    for name, tensor in weights.items():
        held[name].copy_(_like(tensor, held[name]))


def whole_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> State:
    """What the optimiser holds by parameter name; a parameter that had no gradient yet is absent."""
    found: State = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if (full := _whole(value, model)) is not None:
                found.setdefault(name, {})[key] = full
    return found


def set_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Replace what the optimiser holds; each rank gives all of it."""
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        if name in state:
            # a count of steps is a scalar: kept whole, and where Adam keeps it
            optimizer.state[parameter] = {
                key: _like(value, parameter) if value.ndim else value.clone()
                for key, value in state[name].items()
            }


def _whole(tensor: Tensor, model: PreTrainedModel) -> Tensor | None:
    """The whole tensor on CPU on rank 0; None elsewhere, so that one rank's memory holds it all."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu() if Ranks.of(model).rank == 0 else None


def _like(whole: Tensor, tensor: Tensor) -> Tensor:
    """A copy of a whole tensor, placed as another is."""
    if isinstance(tensor, DTensor):
        placed: Tensor = distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements)
        return placed
    return whole.to(tensor.device, copy=True)
