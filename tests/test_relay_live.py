"""`echo2 train` with workers that pass snapshots on to each other, as real processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from live_run import finished, write_config

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


@pytest.mark.parametrize("topology", ["chain", "stripes"])
def test_a_run_whose_workers_relay(tmp_path: Path, topology: str) -> None:
    """Four workers train along a chain or stripes: peers send their part, weights are the learner's, and the
    log replays to the same decisions."""
    policy = f'topologies = ["{topology}"]'
    config = write_config(tmp_path, steps=8, S=2, count=4, slots=4, relay=True, policy=policy)
    # a learner with less than its workers have: nothing else is worth relaying for
    config.write_text(config.read_text().replace("uplink_mbps = 2000", "uplink_mbps = 200"))
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
