"""End to end with a real model: what a worker sends after a swap is what the learner's weights say."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")

import torch
from engine_kit import worst_error
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from worker_kit import TINY, Host, generate, run, start, working

from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.request import GeneratedRollout
from echo2.runtime.transport import messages as m
from echo2.runtime.worker.engines import make_engine
from echo2.runtime.worker.groups import request_of

TOLERANCE = 1e-4


def error(weights: dict[str, torch.Tensor], order: m.Generate, rollouts: list[m.WireRollout]) -> float:
    """Largest difference between the log-probs sent and those of a plain forward pass of `weights`."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    sent = [
        GeneratedRollout(
            r.group_id,
            r.index,
            r.token_ids,
            r.logprobs,
            tuple(Segment(s.start, s.version) for s in r.segments),
            r.finish_reason,
        )
        for r in rollouts
    ]
    return worst_error(model, request_of(order), sent)


def test_rollouts_before_and_after_a_swap_match_the_learners_weights(tmp_path: Path) -> None:
    """Log-probs equal the learner's on the version named, and only on that one, before and after a swap."""
    torch.set_num_threads(1)
    old = load_file(TINY / "model.safetensors")
    torch.manual_seed(0)
    new = {name: tensor + 0.1 * tensor.std() * torch.randn_like(tensor) for name, tensor in old.items()}

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0, old), host.publish(1, new)
        bench = await host.up()
        async with working(host, tmp_path, make=partial(make_engine, "transformers")):
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            first, second = (generate(group, max_tokens=16, temperature=0.8) for group in (1, 2))
            bench.order(first)
            before = await bench.group(1, 4)
            bench.order(m.Fetch(version=1))
            live = await bench.report(m.Live)
            assert live.transfer_s > 0 and live.check_s > 0 and live.pause_s > 0
            bench.order(second)
            after = await bench.group(2, 4)
        await host.down()
        assert {s.version for r in before for s in r.segments} == {0}
        assert {s.version for r in after for s in r.segments} == {1}
        assert error(old, first, before) < TOLERANCE < error(new, first, before)
        assert error(new, second, after) < TOLERANCE < error(old, second, after)

    run(scenario())
