"""Orders among the processes of torchrun: who may call, what travels, and that nothing of it runs."""

from __future__ import annotations

import math
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.runtime.data.rollout import Rollout, Segment, Span
from echo2.runtime.driver.orders import KEY_BYTES, STRANGERS, Order, call, callers_by_rank, order_from

KEY = secrets.token_bytes(KEY_BYTES)


def a_rollout(logprobs: tuple[float, ...], reward: float) -> Rollout:
    return Rollout(
        "3:1", 3, 1, 7, 0, "w-0", (1, 2), tuple(range(len(logprobs))), logprobs,
        (Segment(0, 4), Segment(1, 5)), "stop", reward, (Span(1, 2),),
    )  # fmt: skip


@given(st.lists(st.floats(-1e30, 0.0), min_size=2, max_size=20), st.floats(allow_infinity=False))
def test_a_step_arrives_bit_by_bit(logprobs: list[float], reward: float) -> None:
    """Every process trains on the very same numbers, for what is ordered is what arrives."""
    first, other = Pipe()
    sent = a_rollout(tuple(logprobs), reward)
    first.send_bytes(Order(name="step", rollouts=[sent]).text())
    (came,) = order_from(other).rollouts
    assert repr(came) == repr(sent)
    assert came == sent or math.isnan(reward)


class Trap:
    """What runs code where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], object], tuple[Path]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("what", ["pickle", "another order", "a path for a number"])
def test_what_is_no_order_is_refused(what: str, tmp_path: Path) -> None:
    """Nothing that comes is unpickled, and what is no order is an error and nothing else."""
    data = {
        "pickle": pickle.dumps(Trap(tmp_path / "ran")),
        "another order": b'{"name":"exec","path":"/bin/sh"}',
        "a path for a number": b'{"name":"save","path":["a"]}',
    }[what]
    first, other = Pipe()
    first.send_bytes(data)
    with pytest.raises(ValueError, match="Order"):
        order_from(other)
    assert not (tmp_path / "ran").exists()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_strangers_are_not_taken_in_and_hold_nobody_up() -> None:
    """Callers that say nothing, the wrong thing, or a rank that is none do not keep the true ones out."""
    rank = (1).to_bytes(4, "big")
    wrong_key, bad_ranks = secrets.token_bytes(KEY_BYTES), [KEY + r.to_bytes(4, "big") for r in (0, 9)]
    says = [b"", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", wrong_key + rank, *bad_ranks]
    with listening() as server:
        address = server.getsockname()
        strangers = [socket.create_connection(address) for _ in range(STRANGERS + len(says))]
        for stranger, said in zip(strangers, says):
            stranger.sendall(said)
        strangers[-1].close()
        ours: list[Connection] = []
        calling = threading.Thread(target=lambda: ours.extend(call(address, r, KEY, 10) for r in (2, 1)))
        calling.start()
        began_s = time.monotonic()
        links = callers_by_rank(server, 3, KEY, 30)
        calling.join()
        assert time.monotonic() - began_s < 25  # not the deadline
    assert sorted(links) == [1, 2]
    for link, end in ((links[2], ours[0]), (links[1], ours[1])):
        link.send_bytes(Order(name="weights").text())
        assert order_from(end).name == "weights"
    for stranger in strangers:
        stranger.close()


def test_who_does_not_come_is_not_waited_for() -> None:
    """At the deadline those are given who came, a stranger that says nothing or not."""
    with listening() as server, socket.create_connection(server.getsockname()):
        ours = call(server.getsockname(), 1, KEY, 10)
        assert list(callers_by_rank(server, 3, KEY, 0.3)) == [1]
        ours.close()
