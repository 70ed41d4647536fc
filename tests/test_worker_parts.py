"""The worker's parts by themselves: what it measures, what it holds back, which engine it makes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.worker import engines, environment
from echo2.runtime.worker.build import LinkSettings, shaped
from echo2.runtime.worker.measure import RateMeter, link_of
from echo2.runtime.worker.outbox import Outbox, size_of


class Clock:
    """Time that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def rollout(group_id: int, index: int, tokens: int = 5) -> m.WireRollout:
    return m.WireRollout(
        group_id=group_id,
        index=index,
        token_ids=(1,) * tokens,
        logprobs=(-0.5,) * tokens,
        segments=(m.WireSegment(start=0, version=0),),
        finish_reason="stop",
    )


def steady(meter: RateMeter, clock: Clock, per_s: float, rollouts: int) -> list[m.Rate]:
    """One rollout ends every 1/per_s seconds and another begins at once."""
    told = []
    for _ in range(rollouts):
        clock.now_s += 1 / per_s
        rate = meter.finished(100)
        meter.began(1)
        told += [rate] if rate else []
    return told


def test_the_rate_of_a_full_worker_is_reported_once_and_again_when_it_changes() -> None:
    """mu is ends over full time; a change of under 10 % is not reported, a larger one is."""
    clock = Clock()
    meter = RateMeter(8, clock)
    meter.began(8)
    (first,) = steady(meter, clock, 2.0, 200)
    assert first.rollouts_per_s == pytest.approx(2.0) and first.tokens_per_s == pytest.approx(200.0)
    assert first.window_s >= 10
    assert steady(meter, clock, 2.1, 100) == []
    *mixed, last = steady(meter, clock, 1.0, 100)
    assert len(mixed) <= 1 and last.rollouts_per_s == pytest.approx(1.0)


def test_time_with_free_slots_does_not_count() -> None:
    """An idle minute between two full spans leaves the rate as it is; a worker never full has none."""
    clock = Clock()
    meter = RateMeter(8, clock)
    meter.began(8)
    assert steady(meter, clock, 4.0, 30) == []
    meter.left(3)
    clock.now_s += 60
    meter.began(3)
    (rate,) = steady(meter, clock, 4.0, 30)
    assert rate.rollouts_per_s == pytest.approx(4.0)
    half = RateMeter(8, clock)
    half.began(4)
    assert steady(half, clock, 4.0, 200) == []


def test_rollouts_that_end_together_all_count() -> None:
    """An engine that ends whole groups at once is measured at its full rate."""
    clock = Clock()
    meter = RateMeter(8, clock)
    meter.began(8)
    told = []
    for _ in range(40):
        clock.now_s += 1.0
        for _ in range(4):
            clock.now_s += 0.001
            told += [rate for rate in [meter.finished(100)] if rate]
        meter.began(4)
    assert told[0].rollouts_per_s == pytest.approx(4.0, rel=0.01)


def test_the_first_wave_does_not_count() -> None:
    """All slots begin at once, so nothing ends for long and then much at once: neither is the rate."""
    clock = Clock()
    meter = RateMeter(4, clock)
    meter.began(4)
    clock.now_s += 1000
    (rate,) = steady(meter, clock, 2.0, 40)
    assert rate.rollouts_per_s == pytest.approx(2.0)


@pytest.mark.parametrize(("size", "seconds"), [(100, 1.0), (0, 1.0), (1 << 20, 0.0)])
def test_a_link_is_only_measured_by_what_can_tell(size: int, seconds: float) -> None:
    """Small transfers and cached ones say nothing of a link; a real one gives bits per second."""
    assert link_of(size, seconds) is None
    measured = link_of(1 << 20, 2.0)
    assert measured is not None and measured.downlink_bps == 4 * (1 << 20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(1, 30)), max_size=40, unique=True),
    st.integers(300, 4000),
)
def test_batches_carry_every_rollout_once_in_order(made: list[tuple[int, int, int]], limit: int) -> None:
    """Whatever comes in goes out once, in order, one incarnation a batch, never over the limit of bytes."""

    async def scenario() -> None:
        outbox = Outbox(limit_bytes=limit, batch_bytes=2000)
        out: list[tuple[int, int, int]] = []

        async def fill() -> None:
            for number, (incarnation, index, tokens) in enumerate(made):
                await outbox.put(incarnation, rollout(number, index, tokens))
                assert outbox.bytes <= limit or len(outbox) == 1

        filling = asyncio.create_task(fill())
        while not filling.done() or len(outbox):
            if not len(outbox):
                await asyncio.sleep(0)
                continue
            batch = await outbox.batch(3)
            assert 1 <= len(batch.rollouts) <= 3
            assert len(batch.rollouts) == 1 or sum(map(size_of, batch.rollouts)) <= 2000
            assert batch == await outbox.batch(3)
            out += [(batch.incarnation, r.index, len(r.token_ids)) for r in batch.rollouts]
            outbox.settle(batch.incarnation, verdicts(batch))
            await asyncio.sleep(0)
        await filling
        await outbox.emptied()
        assert out == made and outbox.bytes == 0

    asyncio.run(scenario())


def verdicts(batch: m.Upload) -> tuple[m.Verdict, ...]:
    return tuple(m.Verdict(group_id=r.group_id, index=r.index, outcome="accepted") for r in batch.rollouts)


def test_the_estimated_size_is_not_below_the_real_one() -> None:
    """The bound in bytes holds for the JSON that is sent, with long ids and log-probs."""
    long = m.WireRollout(
        group_id=10**9,
        index=1000,
        token_ids=(151_935,) * 500,
        logprobs=(-12.345678901234567,) * 500,
        segments=(m.WireSegment(start=0, version=123456),),
        finish_reason="length",
    )
    assert size_of(long) >= len(long.model_dump_json())


def test_an_unknown_engine_is_answered_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo names the engine meant; one that is not installed names the install line."""
    with pytest.raises(UserError, match=r"'vlm' is not known; nearest: vllm.*--engine"):
        engines.check_engine("vlm")
    monkeypatch.setattr("echo2.runtime.rollout.vllm_engine.find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"pip install 'echo2\[vllm\]'"):
        engines.check_engine("vllm")
    monkeypatch.setattr(engines, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"pip install 'echo2\[runtime\]'"):
        engines.check_engine("transformers")


def test_the_environment_is_for_the_cpu_only_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has set stays; thread limits and CPU settings stay away from a GPU machine."""
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    environment.prepare(2, gpu=True)
    assert "OMP_WAIT_POLICY" not in os.environ and "OMP_NUM_THREADS" not in os.environ
    environment.prepare(2, gpu=False)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE" and os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_half_a_link_is_refused() -> None:
    """A shaped link needs both rates."""
    with pytest.raises(UserError, match="--uplink-mbps 0"):
        shaped(LinkSettings(down_mbps=10))
    assert shaped(LinkSettings()).down is None and shaped(LinkSettings(10, 5)).up is not None


def test_a_work_dir_serves_one_worker(tmp_path: Path) -> None:
    """Two workers in one directory would overwrite each other's snapshots."""
    from echo2.runtime.worker.build import _directory

    taken = pytest.raises(UserError, match="another worker uses it")
    with _directory(tmp_path / "new"), taken, _directory(tmp_path / "new"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another directory"), _directory(tmp_path / "file"):
        pass
    with _directory(None) as made:
        assert made.is_dir()
    assert not made.exists()
