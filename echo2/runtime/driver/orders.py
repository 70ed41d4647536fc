"""What the first process of `torchrun` orders the others to do, and the connection that it travels over.

Used by `torchrun` and `follower`. Orders travel as JSON and are checked when they come: nothing is unpickled.
Only who shows the key that the first process has made for this start is taken in; anybody else is shown the
door, and holds nobody up.
"""

from __future__ import annotations

import hmac
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Literal

from pydantic import BaseModel, ConfigDict

from echo2.runtime.data.rollout import Rollout

KEY_BYTES = 32
STRANGERS = 32
"""Callers that have not shown the key yet; more, and the first of them are hung up on."""
_RANK_BYTES = 4

OrderName = Literal["step", "weights", "save", "load", "end"]


class Order(BaseModel):
    """What all processes do at the same time: a step on `rollouts`, a checkpoint in or from `path`."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    name: OrderName
    rollouts: list[Rollout] = []
    path: str = ""

    def text(self) -> bytes:
        """As it travels."""
        return self.model_dump_json().encode()


def order_from(link: Connection) -> Order:
    """The next order, waited for as long as the first process lives; EOFError or OSError at its end.

    Raises ValueError for what is no order.
    """
    return Order.model_validate_json(link.recv_bytes())


def callers_by_rank(server: socket.socket, size: int, key: bytes, within_s: float) -> dict[int, Connection]:
    """A connection to each of the ranks 1 to `size` - 1 that has called within the time; maybe not all."""
    links: dict[int, Connection] = {}
    callers: list[socket.socket] = []
    until_s = time.monotonic() + within_s
    server.setblocking(False)
    while len(links) < size - 1 and (left_s := until_s - time.monotonic()) > 0:
        for ready in wait([server, *callers], left_s):
            assert isinstance(ready, socket.socket)
            if ready is server:
                with suppress(OSError):  # one that has hung up again
                    callers.append(server.accept()[0])
                continue
            callers.remove(ready)
            rank = _rank_of(ready, key)
            if 0 < rank < size and rank not in links:
                links[rank] = _lasting(ready)
            else:
                ready.close()
        while len(callers) > STRANGERS:
            callers.pop(0).close()
    for caller in callers:
        caller.close()
    return links


def call(address: tuple[str, int], rank: int, key: bytes, within_s: float) -> Connection:
    """The other side: a connection to the first process, with the key shown. Raises OSError."""
    reached = socket.create_connection(address, timeout=within_s)
    reached.sendall(key + rank.to_bytes(_RANK_BYTES, "big"))
    return _lasting(reached)


def _rank_of(caller: socket.socket, key: bytes) -> int:
    """Who calls; -1 for one without the key. What it says comes in one piece, so short is it."""
    with suppress(OSError):
        caller.setblocking(False)
        said = caller.recv(KEY_BYTES + _RANK_BYTES)
        if len(said) == KEY_BYTES + _RANK_BYTES and hmac.compare_digest(said[:KEY_BYTES], key):
            return int.from_bytes(said[KEY_BYTES:], "big")
    return -1


def _lasting(reached: socket.socket) -> Connection:
    """A connection that waits for as long as the other side's host answers: one without power does not."""
    reached.setblocking(True)
    reached.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3),
                        ("TCP_USER_TIMEOUT", 60_000)):  # fmt: skip
        if hasattr(socket, name):
            reached.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(reached.detach())
