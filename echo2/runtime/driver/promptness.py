"""Keeps the event loop prompt beside a learner that trains in a thread of the same process. Called by `run`.

Both hold the interpreter's lock in turn. Python's defaults are made for throughput: a thread that computes
gives the lock up after 5 ms, and after every system call the event loop has to wait for that; and a full
garbage collection goes through the million objects of torch and transformers, 0.3 s in which nobody is
answered (measured; benchmarks/load_test.py shows the answer times).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005


@contextmanager
def prompt() -> Iterator[None]:
    """From here on: short turns, and what is there already is no longer looked at for garbage."""
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(switch_s)
