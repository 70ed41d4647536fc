"""What torch and vLLM read from the environment when they are imported. Set before that, by the command."""

from __future__ import annotations

import os
from pathlib import Path

from echo2.runtime.rollout.vllm_process import ALWAYS, ON_CPU

GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""What the drivers of NVIDIA, AMD and WSL make."""


def has_gpu() -> bool:
    """Whether a GPU driver is loaded."""
    return any(Path(device).exists() for device in GPU_DEVICES)


def prepare(threads: int = 0, gpu: bool | None = None) -> None:
    """Set what is not set yet. `threads` > 0, asked for by the user, limits the CPU threads and does win."""
    wanted = dict(ALWAYS)
    if not (has_gpu() if gpu is None else gpu):
        wanted |= ON_CPU
        if threads:
            os.environ["OMP_NUM_THREADS"] = str(threads)
            wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else vLLM takes every core of the machine
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
