"""The event loop beside a learner in the same process."""

from __future__ import annotations

import gc
import sys
import threading

from echo2.runtime.driver.promptness import SWITCH_S, prompt


def test_what_was_set_is_set_back() -> None:
    """Inside, turns are short and old objects are frozen; afterwards all is as before, after an error too."""
    before = sys.getswitchinterval(), gc.get_freeze_count()
    try:
        with prompt():
            assert sys.getswitchinterval() <= 2 * SWITCH_S
            assert gc.get_freeze_count() > 10_000
            raise RuntimeError
    except RuntimeError:
        pass
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == before


def test_garbage_made_inside_is_still_collected() -> None:
    """A cycle that is made and dropped within it is found by the next full collection."""
    with prompt():
        gone = threading.Event()

        class Node:
            def __del__(self) -> None:
                gone.set()

        node = Node()
        node.me = node  # type: ignore[attr-defined]
        del node
        gc.collect()
        assert gone.is_set()
