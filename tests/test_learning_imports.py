"""What the learning plane loads."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["", ".settings", ".sampling", ".advantages"])
def test_the_light_parts_load_no_torch(module: str) -> None:
    """The package, its settings and its advantages can be imported where torch is not installed."""
    code = f"import echo2.runtime.learning{module}, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
