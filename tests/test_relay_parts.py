"""The small rules of relaying: what is known of pace and uplinks, routes, and the order of a busy link."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_kit import chain, stripes

from echo2.errors import UserError
from echo2.policy.broadcast.schedule import sources_of, striped, with_chunks
from echo2.policy.decisions import Reroute
from echo2.policy.facts import WorkerOffer
from echo2.runtime.driver.links import LinkFacts
from echo2.runtime.driver.routes import course_of, route_along, route_from
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.pace import Pace, PaceLimits
from echo2.runtime.transport.shaping import UNSHAPED, Shaper
from echo2.runtime.transport.shelf import Shelf, packed, unpacked
from echo2.runtime.transport.uplink import UplinkMeter
from echo2.runtime.worker.peers import RelaySettings, made_relay, own_address, relay_url


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@given(st.integers(0, 300), st.data())
def test_bitmaps_say_what_was_put_in(chunks: int, data: st.DataObject) -> None:
    """A bitmap gives back the chunks it was made of, and none beyond their number."""
    have = data.draw(st.sets(st.integers(0, max(0, chunks - 1)))) if chunks else set()
    assert unpacked(packed(have, chunks), chunks) == have
    assert unpacked("ff" * 40, chunks) == set(range(min(chunks, 320)))


# ---- pace ----------------------------------------------------------------------------------------------


def pace(clock: Clock, bps: float = 0.0) -> Pace:
    return Pace(bps, 1000, PaceLimits(silent_s=5.0, starving_s=60.0, window_s=3.0), clock)


def lasting(made: Pace, clock: Clock, seconds: float, n_bytes: int = 0, sending: bool = True,
            held_up: bool = False, others: tuple[float, ...] = ()) -> str:  # fmt: skip
    """Let time pass in quarter seconds in which so many bytes come in all; the first verdict, if any."""
    for _ in range(round(seconds * 4)):
        clock.s += 0.25
        if n_bytes:
            made.heard(round(n_bytes / seconds / 4))
        made.tick(True, sending, held_up)
        if verdict := made.verdict(sending, 2.0, others):
            return verdict
    return ""


def test_silence_in_a_chunk_is_judged_sooner_than_before_one() -> None:
    """Nothing for 5 s in a chunk is too slow; before one the source may wait as long as it was asked to."""
    clock = Clock()
    assert not lasting(pace(clock), clock, 4.75)
    assert "nothing came" in lasting(pace(clock), clock, 6.0)
    assert not lasting(pace(clock), clock, 6.75, sending=False)
    assert "nothing came" in lasting(pace(clock), clock, 8.0, sending=False)


def test_this_machines_own_link_is_nobodys_fault() -> None:
    """While what comes is held back here, however long, no source is called slow."""
    clock = Clock()
    assert not lasting(pace(clock, 1e6), clock, 100.0, held_up=True)


def test_a_process_that_stood_still_blames_nobody() -> None:
    """After 20 s without a tick no source is silent or slow; 5 s later, still without a byte, it is."""
    clock = Clock()
    made = pace(clock, 8e6)
    assert not lasting(made, clock, 3.0, 3_000_000, others=(1.0,))
    clock.s += 20.0
    made.tick(True, True, False)
    assert not made.verdict(True, 2.0, (1.0,))
    assert lasting(made, clock, 6.0, others=(1.0,))


def test_a_source_that_never_has_it_is_given_up() -> None:
    """A relay that only ever answers "not yet" is too slow after a minute, one that delivers is not."""
    clock = Clock()
    idle, busy = pace(clock), pace(clock)
    seen = ""
    for second in range(70):
        clock.s += 1.0
        for made in (idle, busy):
            made.heard(0)
            made.tick(True, False, False)
        if second % 30 == 0:
            busy.finished()
        seen = seen or idle.verdict(False, 2.0, ())
        assert not busy.verdict(False, 2.0, ())
    assert "no chunk came" in seen


def test_behind_is_measured_against_the_others() -> None:
    """Half the plan's rate is too slow while others keep to the plan, and fine while all are that slow."""
    clock = Clock()
    assert "Mbit/s" in lasting(pace(clock, 8e6), clock, 6.0, 6 * 400_000, others=(1.0, 0.9))
    assert not lasting(pace(clock, 8e6), clock, 6.0, 6 * 400_000, others=(0.5, 0.4))
    assert not lasting(pace(clock, 8e6), clock, 6.0, 6 * 400_000)
    assert "Mbit/s" in lasting(pace(clock, 8e6), clock, 6.0, 6 * 100_000)


def test_an_uplink_is_known_only_while_several_wait_for_it() -> None:
    """What one receiver alone was sent says nothing; with two at once the rate is that of the uplink."""
    clock = Clock()
    meter = UplinkMeter(clock)
    with meter.sending("a"):
        meter.sent(50_000_000)
        clock.s += 10
        assert meter.reading() == 0.0
        with meter.sending("b"):
            meter.sent(2_000_000)
            clock.s += 2
            with meter.sending("b"):
                assert meter.reading() == pytest.approx(8e6)
    assert meter.reading() == 0.0


def test_links_are_lowered_only_by_what_was_the_limit() -> None:
    """A slower transfer says nothing of a downlink; an uplink that was the limit is believed either way."""
    offer = WorkerOffer("w", "p", "g", "s", 1.0, 1.0, 1, 1.0, 1.0, 100e6, 200e6)
    facts = LinkFacts({"w": offer})
    assert facts.learnt("w", m.Link(downlink_bps=50e6)) is None
    assert facts.learnt("w", m.Link(downlink_bps=400e6)) == (0.0, 400e6)
    assert facts.learnt("w", m.Link(downlink_bps=300e6)) is None
    assert facts.learnt("w", m.Link(downlink_bps=0.0, uplink_bps=20e6)) is None
    assert facts.learnt("w", m.Link(downlink_bps=0.0, uplink_bps=20e6, uplink_limited=True)) == (20e6, 0.0)
    assert facts.learnt("w", m.Link(downlink_bps=0.0, uplink_bps=21e6, uplink_limited=True)) is None


# ---- routes --------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 40), st.booleans(), st.data())
def test_routes_say_what_the_policy_says(count: int, chunks: int, tree: bool, data: st.DataObject) -> None:
    """A route names, chunk by chunk, whom `sources_of` names, also where a reroute turns a tree into stripes;
    relays without an address count as gone."""
    names = [f"w{i}" for i in range(count)]
    plan = (chain if tree else stripes)(names, 1000)
    without = data.draw(st.sets(st.sampled_from(names)))
    leaves = data.draw(st.sets(st.sampled_from(names)))
    urls = {name: "" if name in leaves else f"http://{name}:1" for name in names}
    course = course_of(3, -1, plan, chunks)
    now, reroute = with_chunks(plan, chunks), None
    if without:
        shares = tuple(data.draw(st.floats(0.1, 1.0)) for _ in names) if data.draw(st.booleans()) else ()
        now = striped(now, shares) if shares else now
        reroute = Reroute(0.0, 3, tuple(names), tuple(without), "", 1.0, shares)
    for name in names:
        route = route_along(course, name, reroute, urls.__getitem__)
        named = [route.sources[turn].worker_id for turn in route.turns]
        wanted = sources_of(now, name, chunks, frozenset(without | leaves))
        assert named == list(wanted) if len(named) > 1 else set(named) == set(wanted)
        assert all(source.url or source.worker_id == m.LEARNER for source in route.sources)


def test_a_fetch_from_the_learner_needs_no_route() -> None:
    """A holder that is the learner, or that nobody reaches, gives no route."""
    assert route_from(m.LEARNER, (), lambda _: "http://h:1") is None
    assert route_from("w", ("x",), lambda _: "") is None
    shared = route_from(m.LEARNER, ("x", "y"), lambda name: "http://h:1" if name == "y" else "")
    assert shared is not None and [s.worker_id for s in shared.sources] == ["y"] and shared.turns == ()
    route = route_from("w", (), lambda _: "http://h:1")
    assert route is not None and (route.sources[0].url, route.turns) == ("http://h:1", (0,))


def test_a_route_whose_turns_have_no_source_is_refused() -> None:
    """A turn beyond the sources is malformed."""
    with pytest.raises(ValueError, match="turn names source 1 of 1"):
        m.Route(sources=(m.Source(worker_id="w", url="http://h:1"),), turns=(0, 1))


# ---- a busy link ---------------------------------------------------------------------------------------


def test_a_busy_link_serves_the_lowest_order_first() -> None:
    """Of those that wait for a shaped link the lowest order is next, and a cancelled one blocks nobody."""

    async def work() -> None:
        shaper, served = Shaper(8e6), list[float]()

        async def take(order: float) -> None:
            await shaper.take(100_000, order)
            served.append(order)

        tasks = [asyncio.create_task(take(order)) for order in (9.0, 5.0, 7.0, -1.0, 5.5)]
        await asyncio.sleep(0.01)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [9.0, -1.0, 5.0, 5.5]

    asyncio.run(work())


# ---- a worker's address --------------------------------------------------------------------------------


def test_a_worker_on_the_learners_machine_listens_to_itself_only() -> None:
    """Towards a learner on loopback the relay is bound to loopback, else to every address."""
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"
    near, host = made_relay(RelaySettings(), Shelf(), "t" * 20, "http://localhost:8000", UNSHAPED)
    assert near is not None and near.host == "127.0.0.1" and host in ("127.0.0.1", "::1")
    far, host = made_relay(
        RelaySettings(host="gpu7.example", mbps=5), Shelf(), "t" * 20, "http://h:1", UNSHAPED
    )
    assert far is not None and (far.host, host, len(far.caps)) == ("0.0.0.0", "gpu7.example", 1)
    assert made_relay(RelaySettings(on=False), Shelf(), "t" * 20, "http://h:1", UNSHAPED) == (None, "")


def test_a_host_that_is_none_is_named() -> None:
    """An advertised host with a blank in it is a user's error."""
    assert relay_url("fe80::1", 9) == "http://[fe80::1]:9"
    with pytest.raises(UserError, match="--relay-host is 'a b'"):
        relay_url("a b", 9)


def test_a_shelf_forgets_old_payloads(tmp_path: Path) -> None:
    """Only the last few payloads are remembered."""
    shelf = Shelf()
    for version in range(10):
        shelf.expect(version, ["0" * 64])
    assert shelf.holdings(0) is None and shelf.holdings(9) is not None
