"""What is done to a model before it is trained: checks, dropout, the optimiser.

Called by the learner when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from echo2.errors import UserError
from echo2.runtime.learning.settings import LearnerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_dtype(model: PreTrainedModel) -> None:
    """Raise UserError unless every trained parameter is float32."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise UserError(
                f"parameter {name} is {parameter.dtype}; the learner keeps float32 weights, since small "
                "updates vanish in less: load the model with dtype=torch.float32"
            )


def switch_off_dropout(model: PreTrainedModel) -> None:
    """Set every dropout rate to 0, layers and attention."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def adamw(model: PreTrainedModel, settings: LearnerSettings) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) over the trained parameters; weight decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.adam_epsilon,
    )
