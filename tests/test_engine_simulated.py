"""The simulated engine keeps to its profile and to the engine contract."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from engine_kit import collect, request

from echo2.errors import UserError
from echo2.policy.generation import DecodeModel, TokenLengths, drain_times
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.engine import EngineError, SwapMode
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout
from echo2.runtime.rollout.sharing import Sequence, SharedWorker
from echo2.runtime.rollout.simulated import SimulatedEngine, SimulatedSettings

PROFILE = DecodeModel((1.0, 8.0), (0.01, 0.02), (1e-5, 2e-5))
NOWHERE = Path("weights are not read")


def engine(**values: object) -> SimulatedEngine:
    usual = {"time_scale": 200.0, "limits": EngineLimits(97, 4096), "max_running": 4}
    return SimulatedEngine(
        SimulatedSettings(PROFILE, TokenLengths.constant(100), **{**usual, **values})  # type: ignore[arg-type]
    )


def test_a_batch_drains_as_the_policys_model_says() -> None:
    """Sequences of mixed length, more than fit at once, end when `drain_times` says, to rounding."""
    lengths = [300, 100, 200, 400]
    worker = SharedWorker(PROFILE, max_running=8)
    worker.waiting.extend(Sequence(request(0, prompt=(1,) * 50), i, n) for i, n in enumerate(lengths))
    ends = []
    worker.admit(0)
    while (at := worker.next_end_s()) is not None:
        ends += [at] * len(worker.advance(at, 0, admit=True))
    mixed = TokenLengths(
        lo=_array([100, 200, 300, 400]), hi=_array([100, 200, 300, 400]), mass=_array([0.25] * 4)
    )
    assert ends == pytest.approx(list(drain_times(PROFILE, mixed, 50, 4, 8)), rel=1e-9)


def test_time_passed_in_pieces_or_at_once_is_the_same() -> None:
    """How often the event loop looks does not change what has ended, nor when (linear context aside)."""
    flat = DecodeModel((1.0, 8.0), (0.01, 0.02), (0.0, 0.0))

    def ended(times: list[float]) -> list[int]:
        worker = SharedWorker(flat, max_running=2)
        worker.waiting.extend(Sequence(request(0), i, n) for i, n in enumerate([30, 80, 20, 60, 10]))
        return [s.index for t in times for s in worker.advance(t, 0, admit=True)]

    assert ended([i / 37 for i in range(1, 100)]) == ended([99 / 37]) != []


def test_lengths_and_tokens_follow_from_the_seed() -> None:
    """The same request gives the same rollouts on another engine; another seed does not."""
    spread = TokenLengths(lo=_array([1.0]), hi=_array([200.0]), mass=_array([1.0]))

    async def run(seed: int) -> list[GeneratedRollout]:
        one = SimulatedEngine(
            SimulatedSettings(PROFILE, spread, time_scale=500.0, limits=EngineLimits(97, 999))
        )
        await one.start()
        rollouts = await collect(one, request(3, max_tokens=150, seed=seed))
        await one.stop()
        return rollouts

    first, again, other = (asyncio.run(run(seed)) for seed in (1, 1, 2))
    assert first == again != other
    for rollout in first:
        assert set(rollout.logprobs) == {-math.log(97)}
        assert rollout.finish_reason == ("length" if len(rollout.token_ids) == 150 else "stop")


@pytest.mark.parametrize(
    ("mode", "reason", "segments"),
    [("keep", "stop", 2), ("wait", "stop", 1), ("abort", "abort", 1)],
)
def test_a_swap_does_to_running_rollouts_what_its_mode_says(mode: str, reason: str, segments: int) -> None:
    """KEEP gives two segments, WAIT lets them end first, ABORT cuts them; the waiting get the new version."""

    async def run() -> tuple[list[GeneratedRollout], int]:
        one = engine(time_scale=10.0)
        await one.start()
        task = asyncio.create_task(collect(one, request(1, rollouts=6, max_tokens=500)))
        await asyncio.sleep(0.05)
        await one.update_weights(5, NOWHERE, mode)  # type: ignore[arg-type]
        rollouts = await task
        await one.stop()
        return rollouts, one.version

    rollouts, version = asyncio.run(run())
    assert version == 5
    assert [len(r.segments) for r in rollouts] == [segments] * 4 + [1, 1]
    assert [r.finish_reason for r in rollouts] == [reason] * 4 + ["stop", "stop"]
    assert all(r.segments == (Segment(0, 5),) for r in rollouts[4:])


def test_cancelled_places_go_to_others() -> None:
    """A cancelled group's stream ends with what it had, and its places are filled at once."""

    async def run() -> tuple[int, int]:
        one = engine(max_running=3, time_scale=100.0)
        await one.start()
        first = asyncio.create_task(collect(one, request(1, rollouts=3, max_tokens=4000)))
        second = asyncio.create_task(collect(one, request(2, rollouts=3, max_tokens=10)))
        await asyncio.sleep(0.002)
        await one.cancel(1)
        counts = len(await first), len(await second)
        await one.stop()
        return counts

    assert asyncio.run(run()) == (0, 3)


def test_a_fault_in_the_loop_is_told_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """When what lets time pass fails, streams and drains raise its error instead of waiting for ever."""

    def broken(*_given: object) -> None:
        raise ZeroDivisionError("a profile of nothing")

    async def run() -> None:
        made = engine(time_scale=2.0)
        await made.start()
        reading = asyncio.create_task(collect(made, request(1, rollouts=2)))
        await asyncio.sleep(0.02)
        swapping = asyncio.create_task(made.update_weights(1, NOWHERE, SwapMode.WAIT))
        await asyncio.sleep(0.02)
        monkeypatch.setattr(SharedWorker, "advance", broken)
        for waiting in (reading, swapping):
            with pytest.raises(EngineError, match=r"failed while generating.*a profile of nothing"):
                await asyncio.wait_for(waiting, 10)
        await made.stop()

    asyncio.run(run())


def test_stopping_ends_streams_with_an_error() -> None:
    """A group that runs when the engine stops fails loudly, and so does one asked for afterwards."""

    async def run() -> None:
        one = engine(time_scale=1.0)
        with pytest.raises(EngineError, match="not started"):
            await collect(one, request(0))
        await one.start()
        running = asyncio.create_task(collect(one, request(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await one.stop()
        for wanted in (running, collect(one, request(2))):
            with pytest.raises(EngineError, match="stopped"):
                await wanted

    asyncio.run(run())


@pytest.mark.parametrize("values", [{"max_running": 0}, {"time_scale": 0.0}, {"swap_s": -1.0}])
def test_settings_out_of_range_are_refused(values: dict[str, float]) -> None:
    """Counts, scales and durations are checked when set."""
    with pytest.raises(UserError, match=next(iter(values))):
        engine(**values)


def _array(values: list[float]) -> object:
    import numpy as np

    return np.array(values, dtype=np.float64)
