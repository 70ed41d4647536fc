"""A model sharded over the processes of `torchrun` with FSDP2.

Called by the driver's learner process before it makes its `Learner`; all ranks then call `Learner.step`
with the same rollouts. Tested with two gloo processes on CPU; not run on GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from echo2.errors import UserError
from echo2.runtime.learning.scorer import PLAIN_HEAD, plain_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def shard(model: PreTrainedModel, mesh: DeviceMesh | None = None) -> PreTrainedModel:
    """Shard a model in place, block by block and then the rest, and return it. (FSDP2, `fully_shard`)

    Every rank must hold the same weights. The blocks are the modules of the class names in the model's
    `_no_split_modules`; embeddings and LM head stay in one unit, so that tied ones stay tied. Parameters
    stay float32. Raises UserError when no process group exists or the model names no blocks.
    """
    if not dist.is_initialized():
        raise UserError("sharding needs a process group; start the learner with torchrun")
    mesh = mesh or init_device_mesh(model.device.type, (dist.get_world_size(),))
    names = set(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise UserError(
            f"{type(model).__name__} names no blocks to shard (_no_split_modules is empty); "
            "train it on one device"
        )
    setattr(model, PLAIN_HEAD, plain_head(model))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
