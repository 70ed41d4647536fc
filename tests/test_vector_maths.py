"""The first parallel sine of a process is as exact as any other."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROCESSES = 12
FIRST_CALL = """
from echo2.runtime import vector_maths
vector_maths.settle()
import torch
torch.manual_seed(0)
angles = torch.rand(35, 64) * 35
print(float((angles.cos().double() - angles.double().cos()).abs().max()))
"""


def test_first_call_is_exact() -> None:
    """In each of twelve fresh processes it is within 1e-6; unsettled, about one in four is off by 1e-4."""
    for _ in range(PROCESSES):
        done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < 1e-6
