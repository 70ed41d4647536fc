"""The processes that `torchrun` started: the first runs everything, and tells the others what to compute.

`Team` is the first one's side, used by the learner's host; `following` is the others'. Orders go over a
connection of their own, which closes with the process at either end: that is how a death is noticed while
nobody computes (`orders`). The tensors themselves go over torch's process group, which trusts its network:
keep it among the learner's own hosts. Tested with gloo on one CPU host; not with NCCL or on several hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist

from echo2.errors import UserError
from echo2.runtime.driver.orders import KEY_BYTES, Order, call, callers_by_rank
from echo2.runtime.driver.setup import first_line

COLLECTIVE_S = 300.0
"""How long a process waits for the others in one exchange of tensors, and for them to appear."""
NOTICE_S = 2.0
"""How long the cause of a broken exchange is looked for."""
END_S = 3.0
"""How long the first process waits for the others to end."""
_MEETING_BYTES = 512
"""Room for where the others call the first process, and with which key."""


class LostRankError(UserError):
    """A process of the learner has gone; the weights of a step that ran then are not to be used."""


@dataclass(frozen=True)
class Place:
    """This process is `rank` of `size` of all, and `local_rank` on its host."""

    rank: int
    size: int
    local_rank: int


def place() -> Place | None:
    """Where torchrun put this process; None where it did not start it, or started no other."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2 or "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    return Place(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))


def _join(where: Place) -> None:
    """Join torch's process group; returns when all are there. Raises UserError at the deadline."""
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(where.local_rank)
        backend = "cpu:gloo,cuda:nccl"
    with _coming_together(where):
        dist.init_process_group(backend, timeout=timedelta(seconds=COLLECTIVE_S))


@contextlib.contextmanager
def _coming_together(where: Place) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"rank {where.rank} of {where.size}: the processes of torchrun did not come together "
            f"({first_line(error)}); start them anew"
        ) from error


class Team:
    """The first process's side: `together` gives an order and names who is gone where it fails."""

    def __init__(self, where: Place) -> None:
        """Wait for all the others. Raises UserError at the deadline."""
        _join(where)
        self.size = where.size
        self._lost = threading.Event()
        self._why = ""
        self._tell: Callable[[LostRankError], object] = lambda _: None
        self._links = _accepted(where)
        # A daemon: the end of the process does not wait for it.
        threading.Thread(target=self._watch, name="torchrun-watch", daemon=True).start()

    def on_loss(self, tell: Callable[[LostRankError], object]) -> None:
        """`tell` is called, in a thread of its own, when another process goes before the end."""
        self._tell = tell
        if self._lost.is_set():
            tell(self._error())

    def lost(self) -> LostRankError | None:
        """The error where another process has gone before the end."""
        return self._error() if self._lost.is_set() else None

    @contextlib.contextmanager
    def together(self, order: Order) -> Iterator[None]:
        """All processes do what the block does here. Raises LostRankError where one is gone or silent."""
        self._send(order)
        try:
            yield
        except UserError:
            raise
        except RuntimeError as error:
            if self._lost.wait(NOTICE_S):
                raise self._error() from error
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                raise LostRankError(
                    f"a process of torchrun did not answer within {COLLECTIVE_S:g} s or broke off "
                    f"({first_line(error)}); go on with --resume"
                ) from error
            raise

    def close(self) -> None:
        """Tell the others that the end has come, and wait a moment for theirs."""
        with contextlib.suppress(LostRankError):
            self._send(Order(name="end"))
        self._lost.wait(END_S)
        for link in self._links.values():
            link.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _send(self, order: Order) -> None:
        if self._lost.is_set():
            raise self._error()
        if order.name == "end":
            self._why = "the run has ended"
        data = order.text()
        for link in self._links.values():
            try:
                link.send_bytes(data)
            except OSError as error:
                self._lost.wait(NOTICE_S)
                raise self._error() from error

    def _error(self) -> LostRankError:
        why = self._why or "a process of torchrun is gone"
        return LostRankError(f"{why}; the last checkpoint stands, start all anew with --resume")

    def _watch(self) -> None:
        """Until one is gone, in its own words where it has left any."""
        ranks = {id(link): rank for rank, link in self._links.items()}
        with contextlib.suppress(OSError, ValueError):
            link = wait(list(self._links.values()))[0]
            assert isinstance(link, Connection)
            words = "its process was ended from outside"
            with contextlib.suppress(EOFError, OSError):
                words = link.recv_bytes().decode(errors="replace")
            if not self._why:
                self._why = f"rank {ranks[id(link)]} of {self.size} of the learner is gone: {words}"
                self._lost.set()
                self._tell(self._error())
        self._lost.set()


def _accepted(where: Place) -> dict[int, Connection]:
    """A connection to each of the others, by rank. Raises UserError at the deadline."""
    key, host = secrets.token_bytes(KEY_BYTES), os.environ["MASTER_ADDR"]
    try:
        server = socket.create_server((host, 0))
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR is {host!r}, where rank 0 cannot listen ({error.strerror or error}); give torchrun "
            "an address of this host that the others reach, with --master-addr or --local-addr"
        ) from error
    with server:
        with _coming_together(where):
            name = server.getsockname()
            _meeting(name[0], name[1], key)
        links = callers_by_rank(server, where.size, key, COLLECTIVE_S)
    if len(links) < where.size - 1:
        missing = ", ".join(str(rank) for rank in range(1, where.size) if rank not in links)
        raise UserError(
            f"of {where.size} processes of torchrun, these did not reach rank 0 at {host!r} within "
            f"{COLLECTIVE_S:g} s: {missing}; let their hosts through to it, or give torchrun another "
            "--master-addr, and start them anew"
        )
    return links


def _meeting(host: str = "", port: int = 0, key: bytes = b"") -> tuple[str, int, bytes]:
    """Where the first process is called and with which key, as it tells all of them. As text, not pickled."""
    text = json.dumps([host, port, key.hex()]).encode().ljust(_MEETING_BYTES)
    told = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.broadcast(told, src=0)
    host, port, shown = json.loads(told.numpy().tobytes())
    return host, port, bytes.fromhex(shown)


@contextlib.contextmanager
def following(where: Place) -> Iterator[Connection]:
    """The others' side: a connection from which they read the first one's orders with `order_from`."""
    _join(where)
    with _coming_together(where):
        host, port, key = _meeting()
    try:
        link = call((host, port), where.rank, key, COLLECTIVE_S)
    except OSError as error:
        raise UserError(
            f"rank {where.rank} of {where.size}: rank 0 cannot be reached at {host}:{port} "
            f"({error.strerror or error}); give torchrun an address of its host that all reach, with "
            "--master-addr"
        ) from error
    try:
        yield link
    finally:
        link.close()
    dist.destroy_process_group()
