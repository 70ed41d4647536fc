"""The processes of one learner: how they share micro-batches and agree on numbers.

Called by the learner and the checkpoint. Every rank is given the same rollouts and makes the same batch; it
then trains on its share. With one process all of it is the identity and no process group is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from echo2.runtime.learning.batch import MicroBatch


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process is `rank` of `size`; numbers are exchanged from `device`, as the backend wants it."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of(cls, model: nn.Module) -> Ranks:
        """All processes of the group for a sharded model, this one alone for any other."""
        if isinstance(model, FSDPModule):
            device = next(model.parameters()).device
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls()

    def share(self, micros: list[MicroBatch]) -> list[MicroBatch]:
        """Every size-th micro-batch; as many for each rank, since each pass is a collective operation.

        A rank that would have one less repeats its neighbour's with nothing that counts.
        """
        mine = micros[self.rank :: self.size]
        if len(mine) < -(-len(micros) // self.size):
            mine.append(replace(micros[-1], mask=torch.zeros_like(micros[-1].mask)))
        return mine

    def suspects(self, names: Sequence[str]) -> list[str]:
        """The names given by all ranks together, in order of rank."""
        if self.size == 1:
            return list(names)
        count = torch.tensor(len(names), device=self.device)
        dist.all_reduce(count)
        if not count.item():
            return []
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, list(names))
        return list(dict.fromkeys(name for part in found for name in part))

    def total(self, values: list[float]) -> list[float]:
        """Element-wise sum over the ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def highest(self, value: float) -> float:
        """The largest over the ranks."""
        return self._reduce([value], dist.ReduceOp.MAX)[0]

    def _reduce(self, values: list[float], operation: Any) -> list[float]:
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        return [float(value) for value in tensor]


def whole(tensor: Tensor) -> float:
    """The value of a scalar that may be spread over the ranks."""
    gather = getattr(tensor, "full_tensor", None)
    return float(tensor if gather is None else gather())
