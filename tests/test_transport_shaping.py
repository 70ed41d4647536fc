"""Shaped links: the rate follows the trace, with a fake clock exactly, and on a real transfer."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.transport.shaping import CREDIT_S, ShapedLink, Shaper, link_for, shaper_for
from echo2.scenario.varying import link_shape
from echo2.sim.inputs import LinkShape, NicBucket
from tests.transport_kit import Desk, joined, serving

MBIT = 1e6
WINDOW_S = 5.0


class FakeTime:
    """A clock that only sleeping moves, late by `late_s` each time, as event loops are."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 100.0, late_s

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.late_s


def passed(shaper: Shaper, time_: FakeTime, piece: int, until_s: float) -> list[tuple[float, int]]:
    """(run time, bytes) of every piece that went through until a run time."""

    async def main() -> list[tuple[float, int]]:
        seen = []
        while (now := time_.now_s - 100.0) < until_s:
            await shaper.take(piece)
            seen.append((time_.now_s - 100.0, piece))
            assert time_.now_s - 100.0 >= now
        return seen

    return asyncio.run(main())


def integral(shape: LinkShape, level_bps: float, begin_s: float, end_s: float) -> float:
    """Bits that a trace lets through, from one change to the next."""
    bits = 0.0
    while begin_s < end_s:
        until_s = min(end_s, shape.next_change_s(begin_s))
        bits += level_bps * shape.at((begin_s + until_s) / 2) * (until_s - begin_s)
        begin_s = until_s
    return bits


def worst_window(shape: LinkShape, level_bps: float, seen: list[tuple[float, int]], until_s: float) -> float:
    """The largest relative difference to the trace over any window of 5 s, begun every 0.25 s."""
    worst, begin_s = 0.0, 0.0
    while begin_s + WINDOW_S <= until_s:
        bits = 8 * sum(n for t, n in seen if begin_s < t <= begin_s + WINDOW_S)
        worst = max(worst, abs(bits / integral(shape, level_bps, begin_s, begin_s + WINDOW_S) - 1))
        begin_s += 0.25
    return worst


@pytest.mark.parametrize("late_s", [0.0, 0.002])
def test_the_rate_follows_a_stepping_trace(late_s: float) -> None:
    """Over any 5 s what passes is within 5 % of the trace's integral, also when wake-ups come late."""
    fake = FakeTime(late_s)
    shape = LinkShape((0.0, 3.0, 4.5, 9.0), (1.0, 0.3, 1.7, 0.6), 12.0, offset_s=2.0)
    shaper = Shaper(20 * MBIT, shape, clock=fake.clock, sleep=fake.sleep)
    assert worst_window(shape, 20 * MBIT, passed(shaper, fake, 16384, 40.0), 40.0) < 0.05


def test_the_rate_follows_a_measured_trace() -> None:
    """A shipped trace of a home line, at a level of 50 Mbit/s, is followed within 5 % over any 5 s."""
    fake = FakeTime(0.001)
    trace = "home-brisbane-2017-shape"
    # its values hold for half an hour or more: begin 11 s before one ends
    shape = dataclasses.replace(link_shape(trace, 3, "worker-1"), offset_s=3600.0 - 11.0)
    assert shape.at(10.0) != shape.at(12.0)
    shaper = Shaper(50 * MBIT, shape, clock=fake.clock, sleep=fake.sleep)
    assert worst_window(shape, 50 * MBIT, passed(shaper, fake, 65536, 30.0), 30.0) < 0.05


def test_an_outage_holds_everything_back() -> None:
    """While the factor is 0 nothing passes, and what waited passes after it at the rate, not in a burst."""
    fake = FakeTime()
    shaper = Shaper(8 * MBIT, LinkShape((0.0, 1.0, 6.0), (1.0, 0.0, 1.0), 60.0), None, fake.clock, fake.sleep)
    times = [t for t, _ in passed(shaper, fake, 100_000, 8.0)]
    assert not [t for t in times if 1.01 < t < 6.0]
    assert len([t for t in times if 6.0 <= t <= 7.0]) in (10, 11)


def test_an_idle_link_saves_up_next_to_nothing() -> None:
    """After a minute without traffic a transfer gets ahead of the rate by the credit of 50 ms only."""
    fake = FakeTime()
    shaper = Shaper(8 * MBIT, clock=fake.clock, sleep=fake.sleep)
    fake.now_s += 60.0
    asyncio.run(shaper.take(1_000_000))
    assert fake.now_s - 160.0 == pytest.approx(1.0 - CREDIT_S)


def test_senders_share_in_turn() -> None:
    """Ten senders at once take as long together as one with all of it."""
    fake = FakeTime()
    shaper = Shaper(8 * MBIT, clock=fake.clock, sleep=fake.sleep)
    ends = [shaper.reserve(100_000) for _ in range(10)]
    assert ends[-1] == pytest.approx(1.0) and ends == sorted(ends)


def test_a_bucket_bursts_then_sustains_then_fills_again() -> None:
    """10 Mbit/s until 20 Mbit above the sustained 5 are used (4 s), then 5; idle time gives tokens back."""
    fake = FakeTime()
    bucket = NicBucket(10 * MBIT, 5 * MBIT, 20 * MBIT)
    shaper = Shaper(100 * MBIT, None, bucket, fake.clock, fake.sleep)
    seen = passed(shaper, fake, 12_500, 10.0)
    rates = [8 * sum(n for t, n in seen if a < t <= a + 1) / MBIT for a in range(10)]
    assert rates[1:3] == pytest.approx([10, 10], rel=0.02) and rates[5:] == pytest.approx([5] * 5, rel=0.02)
    fake.now_s += 2.0
    again = fake.now_s - 100.0
    # 2 s idle gave 10 Mbit back: 2 s of burst
    later = passed(shaper, fake, 12_500, again + 4.0)
    burst = 8 * sum(n for t, n in later if again < t <= again + 1.9) / MBIT / 1.9
    after = 8 * sum(n for t, n in later if again + 2.5 < t <= again + 3.5) / MBIT
    assert burst == pytest.approx(10, rel=0.05) and after == pytest.approx(5, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    factors=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6),
    pieces=st.lists(st.integers(1, 400_000), min_size=1, max_size=40),
    offset_s=st.floats(0, 20),
)
def test_never_more_than_the_trace_lets_through(
    factors: list[float], pieces: list[int], offset_s: float
) -> None:
    """However bytes are cut, the last passes when the integral of the rate has reached them, not before."""
    factors = [*factors, 1.0]
    shape = LinkShape(tuple(map(float, range(len(factors)))), tuple(factors), len(factors) + 1.0, offset_s)
    fake = FakeTime()
    shaper = Shaper(5 * MBIT, shape, None, fake.clock, fake.sleep)
    end_s = [shaper.reserve(n) for n in pieces][-1]
    allowed = integral(shape, 5 * MBIT, 0.0, end_s)
    # a modulo near a change may be off by 2 us (LinkShape.next_change_s), at 15 Mbit/s 30 bits
    assert 8 * sum(pieces) == pytest.approx(allowed, rel=1e-6, abs=30 * (end_s + 2))


def test_a_factory_begins_where_the_simulator_does() -> None:
    """Level times the simulator's own shape for the same seed and machine; the bucket caps sending only."""
    trace = "home-brisbane-2017-shape"
    shape = link_shape(trace, 7, "home-3")
    shaper = shaper_for(40, trace, 7, "home-3")
    for t_s in (0.0, 10.0, 5000.0):
        assert shaper.rate_bps(t_s) == pytest.approx(40 * MBIT * shape.at(t_s))
    link = link_for(100, 20, 0.03, None, 0, "w", instance="c5.large")
    assert link.down is not None and link.up is not None
    assert (link.down.rate_bps(0), link.up.rate_bps(0)) == (100 * MBIT, 20 * MBIT)
    with pytest.raises(UserError, match="no-such-trace"):
        shaper_for(40, "no-such-trace", 0, "w")
    for level in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match="rate"):
            Shaper(level)
    with pytest.raises(UserError, match="0 everywhere"):
        Shaper(1.0, LinkShape((0.0,), (0.0,), 1.0))


def test_a_real_transfer_keeps_the_rate(tmp_path: object) -> None:
    """Chunks over loopback through a trace at 40 Mbit/s: within 5 % of the trace over 5 real seconds."""

    async def main() -> tuple[float, float]:
        import pathlib

        big = pathlib.Path(str(tmp_path)) / "big"
        big.write_bytes(bytes(60_000_000))
        desk = Desk()
        desk.tampered["0" * 64] = big
        shape = LinkShape((0.0, 1.0, 2.0), (1.0, 0.5, 1.5), 3.0)
        async with serving(desk) as server:
            shaper = Shaper(40 * MBIT, shape)
            async with joined(server.url, link=ShapedLink(down=shaper)) as client:
                # begins after the credit of an idle link is used up, so that it is the rate that is seen
                async with client.chunk("0" * 64) as pieces:
                    got, began_s, first_s = 0, 0.0, 0.0
                    async for piece in pieces:
                        now = time.monotonic()
                        if not began_s:
                            began_s, first_s = now, shaper._now()
                            continue
                        got += len(piece)
                        if now - began_s >= WINDOW_S:
                            break
                return 8 * got, integral(shape, 40 * MBIT, first_s, first_s + now - began_s)

    bits, expected = asyncio.run(main())
    assert bits == pytest.approx(expected, rel=0.05)


def test_every_request_pays_the_round_trip_and_its_bytes() -> None:
    """With 50 ms and 1 Mbit/s up, an upload of about 50 kB takes its share of a second and the round trip."""

    async def main() -> float:
        from tests.transport_kit import upload

        async with serving(Desk()) as server:
            link = ShapedLink(up=Shaper(1 * MBIT), rtt_s=0.05)
            async with joined(server.url, link=link) as client:
                body = upload(8, 500)
                size = len(body.model_dump_json())
                began = time.monotonic()
                await client.rollouts(body)
                return (time.monotonic() - began) / (0.05 + 8 * size / MBIT)

    assert 0.8 < asyncio.run(main()) < 1.5
