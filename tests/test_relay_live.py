"""`echo2 train` with workers that pass snapshots on to each other, as real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from live_run import finished, running, workers_of, write_config

from echo2.runtime.transport.tensor_table import weights_digest


def bytes_by_source(run: Path) -> dict[str, int]:
    """What all workers say they have taken from whom, from their logs."""
    took: dict[str, int] = {}
    for log in run.glob("workers/*/worker.log"):
        for line in log.read_text(encoding="utf-8").splitlines():
            if "bytes came: " in line:
                for count, name in re.findall(r"([\d,]+) from ([\w-]+)", line.split("bytes came: ")[1]):
                    took[name] = took.get(name, 0) + int(count.replace(",", ""))
    return took


def records(run: Path) -> list[dict[str, Any]]:
    """The facts and decisions of a run that may still go on."""
    found = []
    for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n") and "kind" in (entry := json.loads(line)):
            found.append(entry)
    return found


def decisions(run: Path) -> list[dict[str, Any]]:
    """Those that publish."""
    return [entry for entry in records(run) if entry["kind"] == "PublishSnapshot"]


def words_of(pid: int) -> str:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")


@pytest.mark.parametrize("topology", ["chain", "stripes"])
def test_a_run_whose_workers_relay(tmp_path: Path, topology: str) -> None:
    """Four workers train along a chain or stripes: peers send their part, weights are the learner's, and the
    log replays to the same decisions."""
    # a learner with less than its workers have: nothing else is worth relaying for
    config = write_config(
        tmp_path, steps=8, S=2, count=4, slots=4, relay=True, policy__topologies=[topology],
        learner__uplink_mbps=200,
    )  # fmt: skip
    ended = finished("train", config, "--out", tmp_path / "run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = [line.get("kind") for line in lines]
    assert "PublishSnapshot" in kinds and "RelayFailed" not in kinds
    took, compared = bytes_by_source(run), 0
    peers = sum(count for name, count in took.items() if name != "learner")
    for manifest in run.glob("snapshots/manifests/*.json"):
        known = json.loads(json.loads(manifest.read_text(encoding="utf-8"))["manifest"])["weights"]
        shown = list(run.glob(f"workers/*/snapshots/version-{manifest.stem}-*"))
        assert {weights_digest(path / "model.safetensors") for path in shown} <= {known}
        compared += len(shown)
    assert compared >= 4
    assert peers > 0
    replayed = finished("replay", run)
    assert replayed.returncode == 0 and "equal" in replayed.stdout


def test_a_relay_killed_in_mid_broadcast_holds_nobody_up(tmp_path: Path) -> None:
    """The first of a chain is killed while it passes a snapshot on: the others get it, and the run ends well.

    Links of 4 Mbit/s and full snapshots of 1.6 MB: a broadcast takes seconds, so the kill lands in one.
    """
    config = write_config(
        tmp_path, steps=6, S=3, count=3, slots=8, engine="simulated", relay=True,
        policy__topologies=["chain"], pool__w__uplink_mbps=4, pool__w__downlink_mbps=4,
        pool__w__shape_links=True, learner__uplink_mbps=4, run__full_every=1, train__task="noise",
    )  # fmt: skip
    folder = tmp_path / "run"
    with running(config, "--out", folder) as run:
        run.until("step 2/")
        plans = [d for d in decisions(folder) if d["kind"] == "PublishSnapshot"]
        first = plans[-1]["plan"]["order"][0]
        victim = next(pid for pid in workers_of(folder) if first in words_of(pid))
        os.kill(victim, signal.SIGKILL)
        code, output = run.end(150.0)
    assert code == 0, output
    assert "6 steps in" in output
    left = [line for line in records(folder) if line["kind"] == "WorkerLeft" and line["worker_id"] == first]
    assert left
    arrived = {line["worker_id"] for line in records(folder) if line["kind"] == "SnapshotLive"}
    assert len(arrived - {first}) == 2
    replayed = finished("replay", folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
