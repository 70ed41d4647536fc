"""The engine contract, on real engines and a real (tiny) model: transformers, and vLLM where installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from engine_kit import (
    CONTEXT,
    LoopThread,
    collect,
    reference_logprobs,
    request,
    saved,
    tiny_model,
    worst_error,
)

from echo2.errors import UserError
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.engine import Engine, EngineError, SwapReport, WeightUpdateError
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest
from echo2.runtime.rollout.transformers_engine import TransformersEngine, TransformersSettings
from echo2.runtime.rollout.vllm_engine import VllmEngine, VllmSettings

TOLERANCE = 1e-4
LONG = 700
ENGINES = [
    "transformers",
    pytest.param("vllm", marks=pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM not installed")),
]


class Bench:
    """One started engine and the model whose weights it should be running."""

    def __init__(self, engine: Engine, model: Any) -> None:
        self.engine, self.model = engine, model
        self.loop = LoopThread()
        self.groups = 0
        self.loop.run(engine.start())

    def request(self, **values: Any) -> GroupRequest:
        """A request with an id of its own."""
        self.groups += 1
        return request(self.groups, **values)

    def collect(self, wanted: GroupRequest) -> list[GeneratedRollout]:
        """All its rollouts, by index."""
        return self.loop.run(collect(self.engine, wanted))

    def swap(self, model: Any, mode: Any = None) -> SwapReport:
        """Hand the engine the weights of `model` as the next version."""
        report = self.loop.run(self.engine.update_weights(self.engine.version + 1, state(model), mode))
        self.model = model
        return report

    def swap_in_flight(self, model: Any, mode: Any) -> tuple[GroupRequest, list[GeneratedRollout]]:
        """A long group with a swap while it runs (a short group begun later has ended)."""
        long, short = self.request(rollouts=2, max_tokens=LONG), self.request(max_tokens=10)

        async def run() -> list[GeneratedRollout]:
            running = asyncio.create_task(collect(self.engine, long))
            await collect(self.engine, short)
            assert not running.done()
            await self.engine.update_weights(self.engine.version + 1, state(model), mode)
            return await running

        rollouts = self.loop.run(run())
        self.model = model
        return long, rollouts


def state(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


@pytest.fixture(scope="module", params=ENGINES)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One engine of each kind for the whole module: vLLM takes long to start."""
    model = tiny_model(0)
    path = saved(model, tmp_path_factory.mktemp("model"))
    if request.param == "vllm":
        made = Bench(VllmEngine(VllmSettings(path, first_version=3)), model)
    else:
        made = Bench(TransformersEngine(TransformersSettings(path, first_version=3)), model)
    yield made
    made.loop.run(made.engine.stop())


SAMPLINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 10, "top_p": 0.8},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["T1", "T0.7", "topk-topp"])
def test_behaviour_logprobs_are_those_of_the_sampling_distribution(
    bench: Bench, sampling: dict[str, Any]
) -> None:
    """Before and after a swap, recorded log-probs equal a plain forward pass of the weights in force."""
    for seed in (None, bench.groups + 100):
        if seed is not None:
            bench.swap(tiny_model(seed))
        wanted = bench.request(rollouts=4, max_tokens=24, **sampling)
        rollouts = bench.collect(wanted)
        assert [r.index for r in rollouts] == [0, 1, 2, 3]
        assert all(len(r.token_ids) == len(r.logprobs) == 24 for r in rollouts)
        assert {r.segments for r in rollouts} == {(Segment(0, bench.engine.version),)}
        if "top_p" in sampling:
            nucleus_matches(bench.model, wanted, rollouts)
        else:
            assert worst_error(bench.model, wanted, rollouts) < TOLERANCE


def nucleus_matches(model: Any, wanted: GroupRequest, rollouts: list[GeneratedRollout]) -> None:
    """Against an independent top-k then top-p: sort, cut after the mass p, renormalise."""
    setting = wanted.sampling.distribution
    for rollout in rollouts:
        ids = torch.tensor([[*wanted.prompt_ids, *rollout.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(wanted.prompt_ids) - 1 : -1].double()
        for row, token, logprob in zip(logits, rollout.token_ids, rollout.logprobs, strict=True):
            p = (row / setting.temperature).softmax(-1)
            order = p.argsort(descending=True).tolist()[: setting.top_k]
            kept, mass, whole = [], 0.0, float(p[order].sum())
            for candidate in order:
                if mass >= setting.top_p * whole - 1e-6:
                    break
                kept.append(candidate)
                mass += float(p[candidate])
            assert token in kept
            assert abs(logprob - float(torch.log(p[token] / mass))) < TOLERANCE


def test_greedy_is_top_k_one(bench: Bench) -> None:
    """With top-k 1 the likeliest token is taken every time, with log-prob 0."""
    wanted = bench.request(rollouts=2, top_k=1)
    for rollout in bench.collect(wanted):
        ids = torch.tensor([[*wanted.prompt_ids, *rollout.token_ids]])
        best = bench.model(input_ids=ids).logits[0, len(wanted.prompt_ids) - 1 : -1].argmax(-1)
        assert rollout.token_ids == tuple(best.tolist()) and max(map(abs, rollout.logprobs)) < 1e-6


def test_a_new_embedding_reaches_the_tied_head(bench: Bench) -> None:
    """Only the shared embedding changes: the head that was packed from the old one must follow."""
    before = bench.model
    changed = tiny_model(0)
    changed.load_state_dict(state(before))
    with torch.no_grad():
        changed.model.embed_tokens.weight.copy_(tiny_model(77).model.embed_tokens.weight)
    bench.swap(changed)
    wanted = bench.request(max_tokens=24)
    assert worst_error(changed, wanted, bench.collect(wanted)) < TOLERANCE
    half = tiny_model(0, tied=False)
    half.load_state_dict(state(changed) | {"lm_head.weight": before.lm_head.weight})
    assert worst_error(half, wanted, bench.collect(wanted)) > 0.1


def test_weights_may_come_as_a_file(bench: Bench, tmp_path: Path) -> None:
    """A safetensors directory swaps like tensors do."""
    model = tiny_model(55)
    path = saved(model, tmp_path / "snapshot")
    version = bench.engine.version + 1
    report = bench.loop.run(bench.engine.update_weights(version, path))
    bench.model = model
    assert report.version == bench.engine.version == version
    wanted = bench.request()
    assert worst_error(model, wanted, bench.collect(wanted)) < TOLERANCE


def test_a_rollout_across_a_swap_keeps_its_kv_cache_and_its_record(bench: Bench) -> None:
    """Mode keep: two segments; exact before the swap; after it the record matches neither version."""
    old, new, version = bench.model, tiny_model(8), bench.engine.version
    wanted, rollouts = bench.swap_in_flight(new, "keep")
    for rollout in rollouts:
        (_, first), (at, second) = [(s.start, s.version) for s in rollout.segments]
        assert (first, second) == (version, version + 1) and 0 < at < LONG == len(rollout.token_ids)
        recorded = torch.tensor(rollout.logprobs)
        by_old, by_new = (reference_logprobs(m, wanted, rollout) for m in (old, new))
        assert float((recorded - by_old)[:at].abs().max()) < TOLERANCE
        assert float((recorded - by_old)[at:].abs().mean()) > 0.05
        assert float((recorded - by_new)[at : at + 20].abs().mean()) > 0.05


def test_wait_lets_running_rollouts_end_on_the_old_weights(bench: Bench) -> None:
    """Mode wait: one segment, of the old version, complete and exact."""
    old, version = bench.model, bench.engine.version
    wanted, rollouts = bench.swap_in_flight(tiny_model(9), "wait")
    assert {(r.segments, len(r.token_ids)) for r in rollouts} == {((Segment(0, version),), LONG)}
    assert worst_error(old, wanted, rollouts) < TOLERANCE
    again = bench.request()
    assert worst_error(bench.model, again, bench.collect(again)) < TOLERANCE


def test_abort_ends_running_rollouts_with_what_they_have(bench: Bench) -> None:
    """Mode abort: a shorter rollout of the old version, exact, with finish reason abort."""
    old, version = bench.model, bench.engine.version
    wanted, rollouts = bench.swap_in_flight(tiny_model(10), "abort")
    for rollout in rollouts:
        assert rollout.finish_reason == "abort" and 0 < len(rollout.token_ids) < LONG
        assert rollout.segments == (Segment(0, version),)
    assert worst_error(old, wanted, rollouts) < TOLERANCE


def test_seeds_repeat_whatever_runs_beside(bench: Bench) -> None:
    """The same group gives the same tokens alone and among others; its rollouts differ from each other."""
    wanted = bench.request(rollouts=4, seed=42)
    alone = bench.collect(wanted)
    other = bench.request(rollouts=5, max_tokens=40, prompt=(9, 9, 9))

    async def together() -> list[GeneratedRollout]:
        beside = asyncio.create_task(collect(bench.engine, other))
        rollouts = await collect(bench.engine, wanted)
        await beside
        return rollouts

    assert [r.token_ids for r in bench.loop.run(together())] == [r.token_ids for r in alone]
    assert len({r.token_ids for r in alone}) == 4


def test_a_stop_token_ends_a_rollout(bench: Bench) -> None:
    """The stop token is kept as the last token, and the reason is stop."""
    wanted = bench.request(rollouts=4, seed=1)
    stop = bench.collect(wanted)[0].token_ids[3]
    rollouts = bench.collect(bench.request(rollouts=8, max_tokens=60, stop_token_ids=(stop,)))
    assert "stop" in {r.finish_reason for r in rollouts}
    for rollout in rollouts:
        assert stop not in rollout.token_ids[:-1]
        assert (rollout.token_ids[-1] == stop) == (rollout.finish_reason == "stop")


@pytest.mark.parametrize("fault", ["missing", "shape", "nan", "version", "mode", "no file"])
def test_a_bad_update_is_refused_and_changes_nothing(bench: Bench, fault: str, tmp_path: Path) -> None:
    """After a refusal the version stands and a probe gets the very same answer."""
    wanted, version = bench.request(rollouts=2, seed=5), bench.engine.version
    before = bench.collect(wanted)
    weights: Any = {name: tensor.clone() for name, tensor in state(tiny_model(66)).items()}
    del weights["lm_head.weight"]
    name, mode, offered = "model.layers.1.mlp.up_proj.weight", None, version + 1
    if fault == "missing":
        del weights[name]
    elif fault == "shape":
        weights[name] = weights[name][:-1]
    elif fault == "nan":
        weights[name][3, 3] = torch.nan
    elif fault == "version":
        offered = version
    elif fault == "mode":
        mode = "drain"
    else:
        weights = tmp_path / "gone.safetensors"
    with pytest.raises(WeightUpdateError):
        bench.loop.run(bench.engine.update_weights(offered, weights, mode))  # type: ignore[arg-type]
    assert bench.engine.version == version
    after = bench.collect(wanted)
    assert [(r.token_ids, r.segments) for r in after] == [(r.token_ids, r.segments) for r in before]
    assert worst_error(bench.model, wanted, after) < TOLERANCE


def test_rollouts_stream_as_each_ends(bench: Bench) -> None:
    """A short rollout is handed over while longer ones of its group still run."""
    probe = bench.request(rollouts=6, max_tokens=80, seed=3)
    full = bench.collect(probe)
    stop = full[0].token_ids[2]

    async def first() -> tuple[GeneratedRollout, list[GeneratedRollout]]:
        wanted = bench.request(rollouts=6, max_tokens=80, seed=3, stop_token_ids=(stop,))
        stream = bench.engine.generate(wanted)
        early = await anext(stream)
        return early, [r async for r in stream]

    early, later = bench.loop.run(first())
    assert len(later) == 5
    assert len(early.token_ids) <= min(len(r.token_ids) for r in later)


def test_a_cancelled_group_ends_and_others_go_on(bench: Bench) -> None:
    """Cancelling one of two groups ends its stream early; the other is complete, and the id is free again."""
    gone, stays = bench.request(max_tokens=LONG), bench.request(rollouts=4, max_tokens=60)

    async def run() -> tuple[list[GeneratedRollout], list[GeneratedRollout]]:
        tasks = [asyncio.create_task(collect(bench.engine, wanted)) for wanted in (gone, stays)]
        await asyncio.sleep(0.05)
        await bench.engine.cancel(gone.group_id)
        return await tasks[0], await tasks[1]

    cancelled, complete = bench.loop.run(run())
    assert cancelled == [] and len(complete) == 4
    assert worst_error(bench.model, stays, complete) < TOLERANCE
    assert len(bench.collect(request(gone.group_id))) == 3


def test_what_does_not_fit_is_refused(bench: Bench) -> None:
    """A prompt beyond the context, an unknown token and an id in use are user errors; the engine lives on."""
    for bad, says in (
        (bench.request(prompt=(1,) * CONTEXT), f"exceeds the context of {CONTEXT}"),
        (bench.request(prompt=(1, 97)), "token id 97"),
    ):
        with pytest.raises(UserError, match=says):
            bench.collect(bad)
    twice = bench.request(max_tokens=200)

    async def run() -> list[GeneratedRollout]:
        task = asyncio.create_task(collect(bench.engine, twice))
        await asyncio.sleep(0.02)
        with pytest.raises(UserError, match="is running already"):
            await collect(bench.engine, twice)
        return await task

    assert len(bench.loop.run(run())) == 3


def test_stopping_ends_everything(bench: Bench) -> None:
    """Last: running streams raise EngineError, no process of the engine is left, and stop may be repeated."""
    processes = list(getattr(bench.engine, "_processes", []))
    assert len(processes) >= (2 if isinstance(bench.engine, VllmEngine) else 0)

    async def run() -> None:
        running = asyncio.create_task(collect(bench.engine, bench.request(max_tokens=LONG)))
        await asyncio.sleep(0.05)
        await bench.engine.stop()
        await bench.engine.stop()
        for wanted in (running, collect(bench.engine, bench.request())):
            with pytest.raises(EngineError, match="stopped"):
                await wanted
        with pytest.raises(EngineError, match="stopped"):
            await bench.engine.update_weights(10**6, state(bench.model))

    bench.loop.run(run())
    assert not [p for p in processes if p.is_running()]
