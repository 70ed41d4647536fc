"""The hub: seats, leases, incarnations and numbered orders of the workers that dial in."""

from __future__ import annotations

import asyncio

import pytest
from driver_kit import Recorder, hello

from echo2.runtime.driver import hub as h
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.coordinator import Refusal, UnknownLease


def made(lease_s: float = 30.0) -> tuple[h.Hub, Recorder]:
    """Two seats of a remote pool, one of a local one."""
    told = Recorder()
    seats = [h.Seat("far-0", "far", False), h.Seat("far-1", "far", False), h.Seat("here-0", "here", True)]
    return h.Hub("run-1", seats, lease_s, told), told


def numbers(reply: m.WorkReply) -> list[int]:
    return [order.number for order in reply.orders]


async def asked(hub: h.Hub, lease: str, acked: int = 0, wait_s: float = 0.0) -> list[int]:
    return numbers(await hub.work(lease, m.WorkRequest(acked=acked, wait_s=wait_s)))


def test_a_silent_worker_loses_its_lease() -> None:
    """A worker not heard of for lease_s is gone, and its lease is known no more; one that asks keeps it."""
    hub, told = made()
    quiet, loud = hub.hello(hello("session-1"), "a").lease, hub.hello(hello("session-2"), "b").lease
    for seat in hub.seats.values():
        seat.seen_s -= 31.0
    assert hub.check_lease(loud) == "far-1"
    hub.expire()
    assert told.told[-1] == ("gone", "silent for 30 s")
    assert not hub.seats["far-0"].present and hub.seats["far-1"].present
    with pytest.raises(UnknownLease):
        hub.check_lease(quiet)


def test_orders_come_again_until_they_are_acknowledged() -> None:
    """A lost answer loses nothing: an order is sent with every reply until a request acknowledges it."""

    async def story() -> list[list[int]]:
        hub, _ = made()
        lease = hub.hello(hello(), "a").lease
        for group in range(3):
            hub.post("far-0", m.Cancel(group_id=group))
        found = [await asked(hub, lease), await asked(hub, lease), await asked(hub, lease, acked=2)]
        return [*found, await asked(hub, lease, acked=3)]

    assert asyncio.run(story()) == [[1, 2, 3], [1, 2, 3], [3], []]


def test_a_waiting_request_is_woken_by_an_order_and_by_the_loss_of_its_lease() -> None:
    """A long poll ends with the order that comes, and with UnknownLease when the seat is taken back."""

    async def story() -> None:
        hub, _ = made()
        lease = hub.hello(hello(), "a").lease
        waiting = asyncio.create_task(asked(hub, lease, wait_s=20.0))
        await asyncio.sleep(0)
        hub.post("far-0", m.Stop())
        assert await asyncio.wait_for(waiting, 2.0) == [1]
        waiting = asyncio.create_task(asked(hub, lease, acked=1, wait_s=20.0))
        await asyncio.sleep(0)
        hub.release(hub.seats["far-0"], "test")
        with pytest.raises(UnknownLease):
            await asyncio.wait_for(waiting, 2.0)

    asyncio.run(story())


def test_hello_of_the_same_session_gets_the_same_lease() -> None:
    """A hello whose answer was lost is answered alike; the worker has arrived once, its orders are kept."""
    hub, told = made()
    first = hub.hello(hello(), "a")
    hub.post("far-0", m.Stop())
    assert hub.hello(hello(), "a") == first
    assert told.told == [("arrived", "far-0")] and len(hub.seats["far-0"].orders) == 1


def test_a_new_process_takes_the_seat_of_its_name() -> None:
    """The old process is gone before the new one arrives; its lease, orders and numbers are not passed on."""
    hub, told = made()
    old = hub.hello(hello("session-1", "here", "here-0"), "a").lease
    hub.post("here-0", m.Stop())
    new = hub.hello(hello("session-2", "here", "here-0"), "a").lease
    assert [kind for kind, _ in told.told] == ["arrived", "gone", "arrived"]
    with pytest.raises(UnknownLease):
        hub.check_lease(old)
    hub.post("here-0", m.Exit())
    assert hub.check_lease(new) == "here-0"
    assert [order.number for order in hub.seats["here-0"].orders] == [1]


@pytest.mark.parametrize(
    ("greeting", "status", "words"),
    [
        (hello("session-9", "nowhere"), 404, "'nowhere' is not in the configuration; pools: far, here"),
        (hello("session-9", "here"), 409, "started by the learner itself"),
        (hello("session-9", "far", "far-7"), 404, "not part of this run"),
        (hello("session-9", "far", "here-0"), 404, "not part of this run"),
        (hello("session-9", "far"), 409, "all 2 workers of pool 'far' are there"),
    ],
)
def test_who_has_no_place_is_told_why(greeting: m.Hello, status: int, words: str) -> None:
    """An unknown or local pool, an unknown name, a full pool: refused with the reason."""
    hub, _ = made()
    hub.hello(hello("session-1"), "a")
    hub.hello(hello("session-2"), "b")
    with pytest.raises(Refusal, match=words) as refusal:
        hub.hello(greeting, "c")
    assert refusal.value.status == status


def test_reports_of_an_earlier_start_say_nothing() -> None:
    """Only reports of the seat's present incarnation are passed on."""
    hub, told = made()
    lease = hub.hello(hello(), "a").lease
    hub.seats["far-0"].incarnation = 5
    for incarnation in (4, 5, 6):
        hub.reports(lease, m.Reports(incarnation=incarnation, reports=(m.Down(cause="x"),)))
    assert told.told == [("arrived", "far-0"), ("reported", "down")]


def test_a_closed_run_sends_everyone_away() -> None:
    """After close each worker has an Exit order, however long the reason, and newcomers get 410."""
    hub, _ = made()
    hub.hello(hello(), "a")
    hub.close("x" * 5000)
    assert [order.order.kind for order in hub.seats["far-0"].orders] == ["exit"]
    with pytest.raises(Refusal, match="the run is over") as refusal:
        hub.hello(hello("session-2"), "b")
    assert refusal.value.status == 410


def test_a_worker_that_leaves_frees_its_seat() -> None:
    """Leaving is told with its cause, and the seat can be taken again."""
    hub, told = made()
    lease = hub.hello(hello(), "a").lease
    hub.leave(lease, m.Leave(cause="signal SIGINT"))
    assert told.told[-1] == ("gone", "signal SIGINT")
    assert hub.hello(hello("session-2"), "a").worker_id == "far-0"
