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

from echo2.errors import UserError
from echo2.runtime.driver.learner_host import made_learner
from echo2.runtime.driver.orders import Order, order_from
from echo2.runtime.driver.setup import Setup, first_line
from echo2.runtime.driver.torchrun import Place, following
from echo2.runtime.learning import checkpoint
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.weights import whole_weights

ALONE_S = 5.0
"""How long the exchange that runs may take to notice that the first process is gone."""
FAILED = 1


def follow(setup: Setup, where: Place) -> None:
    """Do what the first process orders until its end. Raises UserError when it goes without one."""
    # Ctrl-C is the first one's to answer: its last checkpoint needs this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    with following(where) as link:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(link, orders), name="torchrun-orders", daemon=True).start()
        try:
            config = setup.config
            learner = made_learner(config.train, setup.model_dir, config.rollout.max_tokens, where)
            while (order := orders.get()) is not None and order.name != "end":
                _obey(learner, order)
        except Exception as error:
            with contextlib.suppress(OSError):
                link.send_bytes(f"{type(error).__name__}: {first_line(error)}".encode())
            raise
    if order is None:
        raise UserError(f"rank {where.rank} of {where.size}: the first process is gone")


def _read(link: Connection, orders: queue.SimpleQueue[Order | None]) -> None:
    """Pass orders on, None when none can come any more; then end the process where it is stuck."""
    try:
        while (order := order_from(link)).name != "end":
            orders.put(order)
        orders.put(order)
    except (EOFError, OSError):
        orders.put(None)
    except ValueError as error:
        sys.stderr.write(f"the first process gave no order that is known here ({first_line(error)}); install "
                         "the same version of echo2 on all hosts\n")  # fmt: skip
        orders.put(None)
    threading.Event().wait(ALONE_S)
    sys.stderr.write("the first process of torchrun has ended: leaving at once\n")
    os._exit(FAILED)


def _obey(learner: Learner, order: Order) -> None:
    """Take part in one exchange. The first process meets the same mistakes of the user, and tells them."""
    with contextlib.suppress(UserError):
        if order.name == "step":
            learner.step(order.rollouts)
        elif order.name == "weights":
            whole_weights(learner.model)
        elif order.name == "save":
            checkpoint.save(learner, Path(order.path))
        else:
            checkpoint.load(learner, Path(order.path))
