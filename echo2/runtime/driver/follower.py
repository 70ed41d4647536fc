"""A process of `torchrun` that is not the first: it trains its share, as ordered, until the first one ends.

Called by `echo2 train`. It has no API, no ledger and no voice: whatever it has to say goes to the first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.runtime.driver.learner_host import made_learner
from echo2.runtime.driver.setup import Setup, first_line
from echo2.runtime.driver.torchrun import Place, following, order_from
from echo2.runtime.learning import checkpoint
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.weights import whole_weights

ALONE_S = 5.0
"""How long the exchange that runs may take to notice that the first process is gone."""
FAILED = 1
_GONE = ("gone",)


def follow(setup: Setup, where: Place) -> None:
    """Do what the first process orders until its end. Raises UserError when it goes without one."""
    # Ctrl-C is the first one's to answer: its last checkpoint needs this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    with following(where) as link:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        orders: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(link, orders), name="torchrun-orders", daemon=True).start()
        try:
            config = setup.config
            learner = made_learner(config.train, setup.model_dir, config.rollout.max_tokens, where)
            while (order := orders.get())[0] not in ("end", "gone"):
                _obey(learner, *order)
        except Exception as error:
            with contextlib.suppress(OSError):
                link.send_bytes(f"{type(error).__name__}: {first_line(error)}".encode())
            raise
    if order == _GONE:
        raise UserError(f"rank {where.rank} of {where.size}: the first process is gone")


def _read(link: Connection, orders: queue.SimpleQueue[tuple[Any, ...]]) -> None:
    """Pass orders on; after the last one, end the process where it is stuck in an exchange."""
    order: tuple[Any, ...] = ()
    try:
        while order[:1] != ("end",):
            order = order_from(link)
            orders.put(order)
    except (EOFError, OSError):
        orders.put(_GONE)
    threading.Event().wait(ALONE_S)
    sys.stderr.write("the first process of torchrun has ended: leaving at once\n")
    os._exit(FAILED)


def _obey(learner: Learner, order: str, *what: Any) -> None:
    """Take part in one exchange. The first process meets the same mistakes of the user, and tells them."""
    with contextlib.suppress(UserError):
        if order == "step":
            learner.step(what[0])
        elif order == "weights":
            whole_weights(learner.model)
        elif order == "save":
            checkpoint.save(learner, Path(what[0]))
        elif order == "load":
            checkpoint.load(learner, Path(what[0]))
        else:
            raise ValueError(f"unknown order {order!r}")
