"""Twenty versions by deltas, from a learner's AdamW steps over HTTP into a running vLLM engine."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")

import torch
from engine_kit import collect, request, saved, tiny_model, worst_error
from safetensors.torch import load_file

from echo2.runtime.data.rollout import Segment
from echo2.runtime.learning.weights import whole_weights
from echo2.runtime.rollout.vllm_engine import VllmEngine, VllmSettings
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.receive import Received, SnapshotReceiver
from echo2.runtime.transport.snapshot import SnapshotStore
from tests.transport_kit import KEY, RUN, Desk, adamw_steps, joined, serving

TOLERANCE = 1e-4
"""That of the engine tests: engine and reference add up in different orders."""
VERSIONS = 20
FULL_EVERY = 8
DEADLINE_S = 240.0


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM not installed")
def test_twenty_versions_by_deltas_into_vllm(tmp_path: Path) -> None:
    """At each of 20 versions the worker, fed by deltas alone, has the learner's weights bit by bit, and
    vLLM's log-probs are those of a plain forward pass of the learner's model."""
    model = tiny_model(0)
    folder = saved(model, tmp_path / "model")
    store = SnapshotStore(
        tmp_path / "store", RUN, model_files_of(folder, tokenizer=False), KEY, keep=2 * VERSIONS
    )
    store.put(0, whole_weights(model))
    steps = adamw_steps(model, learning_rate=1e-4)

    async def run() -> list[Received]:
        got: list[Received] = []
        async with serving(Desk(store)) as server, joined(server.url) as client:
            receiver = SnapshotReceiver(client, tmp_path / "worker")
            got.append(await receiver.fetch(0))
            engine = VllmEngine(VllmSettings(got[0].path))
            try:
                await engine.start()
                for version in range(1, VERSIONS + 1):
                    next(steps)
                    store.put(version, whole_weights(model), full=version % FULL_EVERY == 0)
                    got.append(await receiver.fetch(version, parent=version - 1))
                    await engine.update_weights(version, got[-1].path)
                    await check(engine, version, got[-1])
            finally:
                await engine.stop()
        return got

    async def check(engine: VllmEngine, version: int, received: Received) -> None:
        found = load_file(received.path / "model.safetensors")
        for name, tensor in whole_weights(model).items():
            assert torch.equal(found[name].view(torch.int32), tensor.view(torch.int32)), (version, name)
        wanted = request(version, rollouts=2, max_tokens=12, seed=version)
        rollouts = await collect(engine, wanted)
        assert {r.segments for r in rollouts} == {(Segment(0, version),)}
        assert worst_error(model, wanted, rollouts) < TOLERANCE, version

    got = asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert [received.parent for received in got] == [-1, *range(VERSIONS)]
    full = store.manifest(0).full
    assert full is not None and max(received.bytes for received in got[1:]) < full.size
