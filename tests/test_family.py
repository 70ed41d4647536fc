"""What a worker process has started, and how the last of it is killed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

pytest.importorskip("psutil")

import psutil

from echo2.runtime.worker import family

SLEEP = "import time; time.sleep(60)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); time.sleep(60)"


def test_a_grandchild_whose_parent_died_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The orphan is no descendant any more, yet it ends, because it was known before its parent died."""
    child = subprocess.Popen([sys.executable, "-c", PARENT])
    try:
        deadline_s = time.monotonic() + 20
        while len(known := family.descendants()) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        orphan = next(process for process in known if process.pid != child.pid)
        child.kill()
        child.wait()
        assert orphan.is_running() and orphan.ppid() != child.pid
        monkeypatch.setattr(family, "descendants", list)  # a reaper of orphans would still find it
        family.kill_descendants(known)
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    finally:
        child.kill()
        family.kill_descendants(known)
