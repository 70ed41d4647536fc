"""Environment variables of the learner's process, set before torch is loaded. Called by `echo2 train`."""

from __future__ import annotations

import os

DEFAULTS = {
    # Threads that spin while they wait take the cores from the workers: 5 to 18 times slower on 2 cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    # A run never waits for the network it was not told of.
    "HF_HUB_OFFLINE": "1",
}


def prepare() -> None:
    """Set what the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
