"""What goes wrong at a worker is reported with its cause, and what can go on goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import torch
from worker_kit import TOKEN, Host, generate, run, start, working

from echo2.errors import UserError
from echo2.runtime.rollout.engine import Engine, EngineError, SwapMode, SwapReport, Weights
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout, GroupRequest
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client
from echo2.runtime.worker.agent import Agent, AgentLimits
from echo2.runtime.worker.engines import EngineOrder, SimulatedProfile, make_engine
from echo2.runtime.worker.session import LearnerGoneError


class Troubled:
    """A simulated engine that fails on demand. `stops` counts how often it was stopped."""

    def __init__(self, order: EngineOrder) -> None:
        self.inner = make_engine("simulated", order)
        self.trouble: Exception | None = None
        self.swap_trouble: Exception | None = None
        self.start_s = self.stop_s = 0.0
        self.stops = 0

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def limits(self) -> EngineLimits:
        return self.inner.limits

    async def start(self) -> None:
        await asyncio.sleep(self.start_s)
        await self.inner.start()

    async def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        async for rollout in self.inner.generate(request):
            if self.trouble is not None:
                raise self.trouble
            yield rollout

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        if self.swap_trouble is not None:
            raise self.swap_trouble
        return await self.inner.update_weights(version, weights, mode)

    async def cancel(self, group_id: int) -> None:
        await self.inner.cancel(group_id)

    async def stop(self) -> None:
        self.stops += 1
        await asyncio.sleep(self.stop_s)
        await self.inner.stop()


class Made(list[Troubled]):
    """An engine maker that keeps what it has made."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.values = values

    def __call__(self, order: EngineOrder) -> Engine:
        engine = Troubled(order)
        for name, value in self.values.items():
            setattr(engine, name, value)
        self.append(engine)
        return engine


def test_a_tampered_snapshot_is_refused_and_the_old_weights_go_on(tmp_path: Path) -> None:
    """Full file and delta with wrong bytes: Failed with the cause, generation goes on at the old version."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0), host.publish(1)
        bench = await host.up()
        bad = {c.digest for c in host.store.payload(1).chunks + host.store.payload(1, 0).chunks}
        for digest in bad:
            flipped = bytearray(host.store.chunk(digest).read_bytes())
            flipped[-1] ^= 1
            (tmp_path / digest).write_bytes(flipped)
        async with working(host, tmp_path):
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.flip = lambda digest: tmp_path / digest if digest in bad else None
            bench.order(m.Fetch(version=1))
            failed = await bench.report(m.Failed)
            assert failed.version == 1 and "wrong digest; nothing was applied" in failed.cause
            bench.order(generate(1))
            assert {r.segments[0].version for r in await bench.group(1, 4)} == {0}
            bench.flip = lambda _digest: None
            bench.order(m.Fetch(version=1))
            assert (await bench.report(m.Live)).version == 1
        await host.down()

    run(scenario())


def test_a_newer_fetch_takes_the_place_of_an_older(tmp_path: Path) -> None:
    """A superseded or aborted fetch ends quietly; only the newest goes live."""

    async def scenario() -> None:
        host = Host(tmp_path, {"w": torch.zeros(1 << 20)})
        for version in range(2):
            host.publish(version)
        bench = await host.up()
        async with working(host, tmp_path) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.order(m.Fetch(version=1), m.Abort(version=1))
            await bench.until(lambda: agent._acked == 3)
            await asyncio.sleep(0.2)
            assert not bench.reports_of(m.Live) and not bench.reports_of(m.Failed)
            host.publish(2, {"w": torch.randn(1 << 20)})  # no small delta, so that its link can be measured
            bench.order(m.Fetch(version=1), m.Fetch(version=2))
            assert (await bench.report(m.Live)).version == 2
            assert bench.reports_of(m.Link)[-1].downlink_bps > 0
            bench.order(m.Fetch(version=2), m.Fetch(version=1))
            assert (await bench.report(m.Live, 2)).pause_s == 0
            assert "only go up" in (await bench.report(m.Failed)).cause
        await host.down()

    run(scenario())


@pytest.mark.parametrize("trouble", [EngineError("out of memory"), ZeroDivisionError("a defect")])
def test_a_dead_engine_is_reported_once_and_can_be_started_again(trouble: Exception, tmp_path: Path) -> None:
    """All groups are lost with it: one Down with the cause, standby, and a new Start brings a new engine."""

    async def scenario() -> None:
        host, made = Host(tmp_path), Made()
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, make=made):
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            made[0].trouble = trouble
            bench.order(generate(1), generate(2), generate(3))
            assert str(trouble) in (await bench.report(m.Down)).cause
            assert made[0].stops == 1 and not bench.reports_of(m.GroupFailed)
            bench.order(start(0, incarnation=2))
            await bench.report(m.Up, 2)
            bench.order(generate(4))
            await bench.group(4, 4)
            assert len(bench.reports_of(m.Down)) == 1
        await host.down()

    run(scenario())


def test_a_swap_that_kills_the_engine_is_down_and_one_refused_is_failed(tmp_path: Path) -> None:
    """A refused update keeps the old weights; one that failed half-way ends the engine."""

    async def scenario() -> None:
        host, made = Host(tmp_path), Made()
        host.publish(0), host.publish(1)
        bench = await host.up()
        async with working(host, tmp_path, make=made):
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            made[0].swap_trouble = UserError("tensor w is misshapen")
            bench.order(m.Fetch(version=1))
            assert "misshapen" in (await bench.report(m.Failed)).cause
            made[0].swap_trouble = EngineError("half-way")
            bench.order(m.Fetch(version=1))
            assert "half-way" in (await bench.report(m.Down)).cause
        await host.down()

    run(scenario())


def test_a_start_that_fails_or_hangs_is_reported(tmp_path: Path) -> None:
    """A bad order, an overdue engine and a Stop in mid-start all end in Down, with the engine stopped."""

    async def scenario() -> None:
        host, made = Host(tmp_path), Made(start_s=0.5)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, make=made, start_s=0.2):
            await bench.joined()
            bench.order(m.Start(incarnation=1, version=0, slots=1, context_tokens=4096))
            assert "context_tokens" in (await bench.report(m.Down)).cause
            bench.order(start(0, incarnation=2))
            assert "did not start within 0.2 s" in (await bench.report(m.Down, 2)).cause
            bench.order(start(0, incarnation=3))
            await bench.until(lambda: len(made) == 2)
            bench.order(m.Stop())
            await bench.report(m.Down, 3)
            assert not bench.reports_of(m.Up)
        assert [engine.stops for engine in made] == [1, 1]
        await host.down()

    run(scenario())


def test_an_engine_that_does_not_stop_is_given_up(tmp_path: Path) -> None:
    """Stop has a deadline: after it the worker is in standby, whatever the engine does."""

    async def scenario() -> None:
        host, made = Host(tmp_path), Made(stop_s=60.0)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, make=made, stop_s=0.2):
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.order(m.Stop())
            await bench.report(m.Down)
        await host.down()

    run(scenario())


def test_a_group_cut_short_by_a_swap_is_given_back(tmp_path: Path) -> None:
    """In mode abort, running groups lose rollouts to a swap: GroupFailed, and the engine goes on."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0), host.publish(1)
        bench = await host.up()
        async with working(host, tmp_path, profile=SimulatedProfile(tokens_per_s=40, tokens=10)):
            await bench.joined()
            bench.order(start(0, swap="abort"))
            await bench.report(m.Up)
            bench.order(generate(1))
            await asyncio.sleep(0.3)  # it runs for 1 s: a swap before its first token would cut nothing
            bench.order(m.Fetch(version=1))
            assert "cut short" in (await bench.report(m.GroupFailed)).cause
            bench.order(generate(2))
            await bench.group(2, 4)
        await host.down()

    run(scenario())


def test_a_full_outbox_pauses_generation_and_drops_nothing(tmp_path: Path) -> None:
    """While the learner is away no more is generated than fits; when it is back, all of it arrives."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, outbox_bytes=2000) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            hold = asyncio.Event()
            take = bench.rollouts

            async def later(lease: str, upload: m.Upload) -> m.UploadReply:
                await hold.wait()
                return await take(lease, upload)

            bench.rollouts = later  # type: ignore[method-assign]
            bench.order(*(generate(group) for group in range(6)))
            await bench.until(lambda: len(agent._groups) == 5 and len(agent._outbox) == 4)
            await asyncio.sleep(0.3)
            assert agent._outbox.bytes <= 2000 and len(agent._groups) == 5
            hold.set()
            for group in range(6):
                await bench.group(group, 4)
        await host.down()

    run(scenario())


def test_rollouts_the_learner_does_not_want_are_let_go(tmp_path: Path) -> None:
    """Any verdict empties the outbox, with a log line; a refused upload costs only the bad rollout."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.verdict = lambda _rollout: "late"
            bench.order(generate(1))
            await bench.until(lambda: bench.uploads and not len(agent._outbox) and not len(agent._groups))
            bench.verdict = None
            take = bench.rollouts

            async def picky(lease: str, upload: m.Upload) -> m.UploadReply:
                if any(rollout.index == 2 for rollout in upload.rollouts):
                    from worker_kit import refusal

                    raise refusal(422)
                return await take(lease, upload)

            bench.rollouts = picky  # type: ignore[method-assign]
            bench.order(generate(2))
            await bench.until(lambda: len(host.rollouts) == 3 and not len(agent._outbox))
            assert {index for _, index in host.rollouts} == {0, 1, 3}
        await host.down()

    run(scenario())


def agent_for(url: str, token: str = TOKEN, give_up_s: float = 0.3) -> Agent:
    """An agent that only has to join."""
    hello = m.Hello(protocol=m.PROTOCOL, session="s" * 16, pool="p", engine="simulated")
    client = Client(url, token, give_up_s=give_up_s)
    return Agent(client, None, Made(), hello, AgentLimits(give_up_s=give_up_s))  # type: ignore[arg-type]


def test_a_learner_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """An unreachable URL ends the worker after its patience, with the URL in the message."""

    async def scenario() -> None:
        with pytest.raises(LearnerGoneError, match=r"127\.0\.0\.1:9/.*--give-up-after|--give-up-after.*:9/"):
            await agent_for("http://127.0.0.1:9").run()

    run(scenario())


def test_a_wrong_token_ends_the_worker_at_once(tmp_path: Path) -> None:
    """Nobody waits for a learner that says no."""

    async def scenario() -> None:
        host = Host(tmp_path)
        await host.up()
        with pytest.raises(UserError, match="wrong token"):
            await agent_for(host.url, "another-token-xyz", 60).run()
        await host.down()

    run(scenario())


def test_another_run_at_the_same_address_starts_from_nothing(tmp_path: Path) -> None:
    """Rollouts of one run are never sent to another, and its engine is stopped."""

    async def scenario() -> None:
        host, made = Host(tmp_path), Made()
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, make=made) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            await host.down()
            other = Host(tmp_path / "other")
            other.store.run_id = "run-2"
            other.publish(0)
            other.port = host.port
            await agent._outbox.put(1, m.WireRollout.model_validate(ROLLOUT))
            bench = await other.up()
            await bench.joined()
            await bench.until(lambda: made[0].stops)
            bench.order(start(0))
            await bench.report(m.Up)
            assert not bench.uploads and len(agent._outbox) == 0
        await other.down()

    run(scenario())


ROLLOUT = {
    "group_id": 1,
    "index": 0,
    "token_ids": (1,),
    "logprobs": (-0.5,),
    "segments": (m.WireSegment(start=0, version=0),),
    "finish_reason": "stop",
}
