"""PyTorch's vector maths on CPU, made ready before threads share it.

Called wherever a process is about to run a model. The first sin, cos or exp of a process that runs on
several threads at once finds Intel's vector maths half set up: in about one process of four (measured with
torch 2.13 on two cores) one thread's share of the results is wrong by up to 2e-4. A model's first rotary
embedding is such a call, and vLLM keeps its result for as long as it lives.
"""

from __future__ import annotations


def settle() -> None:
    """Compute one value on the calling thread alone; later calls find everything set up."""
    import torch

    torch.zeros(1).cos()
