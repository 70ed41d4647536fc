"""The worker carries out orders exactly once, whatever the network and the learner do meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from worker_kit import CONTEXT, SLOW, Host, LosesAnswers, generate, run, start, working

from echo2.runtime.rollout.engine import Engine
from echo2.runtime.transport import messages as m
from echo2.runtime.worker.engines import EngineOrder, make_engine


def test_a_worker_starts_generates_swaps_and_stops(tmp_path: Path) -> None:
    """Start, Generate, Fetch, Stop and Exit are answered as the protocol says, with verified weights."""

    async def scenario() -> None:
        host = Host(tmp_path)
        first, second = host.publish(0), host.publish(1)
        bench = await host.up()
        async with working(host, tmp_path):
            await bench.joined()
            bench.order(start(0))
            up = await bench.report(m.Up)
            assert (up.version, up.weights, up.context_tokens) == (0, first.weights, CONTEXT)
            bench.order(generate(1), m.Fetch(version=1))
            assert {r.segments[0].version for r in await bench.group(1, 4)} <= {0, 1}
            live = await bench.report(m.Live)
            assert live.version == 1 and second.weights != first.weights
            bench.order(generate(2))
            assert {r.segments for r in await bench.group(2, 4)} == {(m.WireSegment(start=0, version=1),)}
            bench.order(m.Stop(reason="price"))
            assert "price" in (await bench.report(m.Down)).cause
            bench.order(start(1, incarnation=2))
            await bench.report(m.Up, 2)
            assert [i for i, _ in bench.reports_in if i == 2]
            bench.order(m.Exit(reason="run over"))
            await bench.until(lambda: bench.left)
        await host.down()

    run(scenario())


def test_an_order_that_arrives_twice_is_carried_out_once(tmp_path: Path) -> None:
    """Orders not acknowledged are sent again and recognised by their number."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            (lease,) = bench.orders
            again = [m.Numbered(number=bench.sent[lease] + 1, order=generate(1))]
            bench.order(generate(1))
            await bench.group(1, 4)
            seen = bench.work_requests
            bench.orders[lease] += again * 2
            await bench.until(lambda: bench.work_requests > seen + 1)
            await asyncio.sleep(0.2)
            assert agent._acked == 2
            assert sum(len(u.rollouts) for u in bench.uploads) == 4
            assert len(bench.reports_of(m.Up)) == 1
        await host.down()

    run(scenario())


def test_lost_answers_lose_nothing(tmp_path: Path) -> None:
    """With every second answer lost, every rollout arrives, and no order is missed or repeated."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0), host.publish(1)
        loses: list[LosesAnswers] = []
        host.wrap = lambda app: loses.append(LosesAnswers(app)) or loses[0]
        bench = await host.up()
        async with working(host, tmp_path):
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            for group in range(6):
                bench.order(generate(group))
            bench.order(m.Fetch(version=1))
            for group in range(6):
                await bench.group(group, 4)
            assert (await bench.report(m.Live)).version == 1
        assert loses[0].lost > 5
        assert not bench.reports_of(m.GroupFailed)
        await host.down()

    run(scenario())


def test_a_restart_of_the_learner_loses_no_rollout(tmp_path: Path) -> None:
    """Rollouts made while the learner is away arrive when it is back, under their own incarnation."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, profile=SLOW) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.order(generate(1, rollouts=8), generate(2, rollouts=8))
            await bench.until(lambda: host.rollouts)
            before = dict(host.rollouts)
            await host.down()
            await bench.until(
                lambda: len(agent._outbox) + len(host.rollouts) >= 16 and not len(agent._groups)
            )
            bench = await host.up()
            await bench.joined()
            await bench.group(1, 8)
            await bench.group(2, 8)
            assert before.items() <= host.rollouts.items()
            assert {upload.incarnation for upload in bench.uploads} == {1}
            await asyncio.wait_for(agent._outbox.emptied(), 5)
            bench.order(start(0, incarnation=2))
            assert (await bench.report(m.Up)).version == 0
            assert bench.reports_in[0][0] == 2
            bench.order(generate(3))
            await bench.group(3, 4)
        await host.down()

    run(scenario())


@pytest.mark.parametrize(
    ("engine_version", "start_version", "made"),
    [(0, 0, 1), (0, 1, 1), (1, 0, 2)],
    ids=["same kept", "older updated", "newer made anew"],
)
def test_a_running_engine_is_kept_where_it_can_be(
    engine_version: int, start_version: int, made: int, tmp_path: Path
) -> None:
    """After a lost lease an engine of the same weights is kept, an older updated, a newer replaced."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0), host.publish(1)
        bench = await host.up()
        engines: list[EngineOrder] = []

        def make(order: EngineOrder) -> Engine:
            engines.append(order)
            return make_engine("simulated", order)

        async with working(host, tmp_path, make=make):
            await bench.joined()
            bench.order(start(engine_version))
            await bench.report(m.Up)
            bench.forget_leases()
            await bench.joined()
            bench.order(start(start_version, incarnation=2))
            up = await bench.report(m.Up, 2)
            assert (up.version, up.weights) == (start_version, host.store.manifest(start_version).weights)
            assert len(engines) == made
        await host.down()

    run(scenario())


def test_weights_of_a_resumed_run_replace_those_of_the_same_version(tmp_path: Path) -> None:
    """The same version number with other weights is another snapshot: the engine is started anew."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(3)
        bench = await host.up()
        async with working(host, tmp_path):
            await bench.joined()
            bench.order(start(3))
            old = await bench.report(m.Up)
            other = host.publish(3, {"w": host.weights["w"] - 1})
            bench.forget_leases()
            await bench.joined()
            bench.order(start(3, incarnation=2))
            new = await bench.report(m.Up, 2)
            assert new.weights == other.weights != old.weights
        await host.down()

    run(scenario())


def test_a_version_that_is_gone_is_replaced_by_the_newest(tmp_path: Path) -> None:
    """A start order for a snapshot no longer kept brings the worker up at the newest."""

    async def scenario() -> None:
        host = Host(tmp_path)
        for version in range(4):
            host.publish(version)
        bench = await host.up()
        async with working(host, tmp_path):
            await bench.joined()
            bench.order(start(0))
            assert (await bench.report(m.Up)).version == 3
        await host.down()

    run(scenario())


def test_cancelled_groups_are_forgotten(tmp_path: Path) -> None:
    """A cancelled group sends nothing more, and the others go on."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path, profile=SLOW) as agent:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.order(generate(1), generate(2), m.Cancel(group_id=1))
            await bench.group(2, 4)
            assert {g for g, _ in host.rollouts} == {2} and len(agent._groups) == 0
            assert not bench.reports_of(m.GroupFailed)
        await host.down()

    run(scenario())


def test_a_group_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    """A prompt beyond the context and a group in standby are answered with a cause; nothing else stops."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        async with working(host, tmp_path):
            await bench.joined()
            bench.order(generate(1))
            assert "does not run" in (await bench.report(m.GroupFailed)).cause
            bench.order(start(0))
            await bench.report(m.Up)
            bench.order(generate(2, max_tokens=100_000), generate(3))
            assert "exceeds the context" in (await bench.report(m.GroupFailed, 2)).cause
            await bench.group(3, 4)
        await host.down()

    run(scenario())
