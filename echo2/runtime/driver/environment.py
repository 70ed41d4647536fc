"""Environment variables of the learner's process, set before torch is loaded, and of its children.

Called by `echo2 train` and by whatever starts local workers.
"""

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


def is_of_torchrun(name: str) -> bool:
    """Whether an environment variable says where a process stands in torchrun: not for its children."""
    alone = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    return name in alone or name.startswith(("MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_"))
