"""A worker process with real vLLM: what it leaves behind, which is nothing."""

from __future__ import annotations

import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("psutil")

import psutil
from safetensors.torch import load_file
from worker_kit import TINY, Host, generate, run, start
from worker_process_kit import worker

from echo2.runtime.transport import messages as m


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM not installed")
def test_real_vllm_generates_swaps_and_leaves_no_process(tmp_path: Path) -> None:
    """A vLLM worker on a tiny model does its work in processes that are all gone 10 s after SIGTERM."""

    async def scenario() -> None:
        weights = load_file(TINY / "model.safetensors")
        host = Host(tmp_path, weights)
        host.publish(0, weights)
        host.publish(1, {name: tensor * 1.01 for name, tensor in weights.items()})
        bench = await host.up()
        bench.lease_s = 60
        async with worker("--join", host.url, "--engine", "vllm", "--threads", 1) as process:
            await bench.joined()
            bench.order(start(0))
            await bench.until(lambda: bench.reports_of(m.Up) or bench.reports_of(m.Down), 180)
            assert bench.reports_of(m.Up), bench.reports_in
            bench.order(generate(1), m.Fetch(version=1))
            assert len(await bench.group(1, 4)) == 4
            await bench.report(m.Live)
            bench.order(generate(2))
            assert {r.segments[0].version for r in await bench.group(2, 4)} == {1}
            children = psutil.Process(process.inner.pid).children(recursive=True)
            assert children
            bench.order(generate(3, rollouts=8, max_tokens=100))
            began_s = time.monotonic()
            os.kill(process.inner.pid, signal.SIGTERM)
            code, _ = await process.ended(10)
            assert code == 143 and time.monotonic() - began_s < 10
            psutil.wait_procs(children, timeout=began_s + 10 - time.monotonic())
            assert [child for child in children if alive(child)] == []
        await host.down()

    run(scenario(), 300)


def alive(process: Any) -> bool:
    """Whether it runs; what nobody has waited for yet does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
