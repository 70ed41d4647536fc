"""Live training end to end: real processes on loopback, a real model, the scheduler of the simulator."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import live_run as live
import pytest

from echo2.runtime.data.ledger_query import LedgerReader
from echo2.runtime.data.states import State


def trained_once(folder: Path, steps: int, S: int) -> None:
    """Every step took a whole batch, no rollout was trained twice or too old, in no life of the run."""
    with LedgerReader(folder / "ledger.sqlite") as ledger:
        assert ledger.version == steps and ledger.claimed is None
        entries = list(ledger.entries(state=State.TRAINED))
    assert len(entries) == len({entry.rollout_id for entry in entries}) == 32 * steps
    for entry in entries:
        assert entry.step is not None and entry.oldest_version is not None
        assert 0 <= entry.step - entry.oldest_version <= S
    prompts = [(entry.prompt, entry.index) for entry in entries]
    assert len(set(prompts)) == len(prompts)


def test_vllm_workers_feed_a_learner(tmp_path: Path) -> None:
    """Real vLLM on CPU in its own process trains a real model; the log replays byte for byte."""
    pytest.importorskip("vllm")
    folder = tmp_path / "run"
    done = live.finished("train", live.write_config(tmp_path, steps=5, engine="vllm"), "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr + worker_log(folder)
    trained_once(folder, steps=5, S=1)
    rows = live.rows(folder)
    assert [row["version"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(abs(row["mismatch_kl"]) < 1e-3 for row in rows if row["mismatch_kl"] is not None)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["complete"] and summary["dropped_share"] == 0
    assert live.workers_of(folder) == []
    replayed = live.finished("replay", folder)
    assert replayed.returncode == 0 and "equal" in replayed.stdout, replayed.stdout + replayed.stderr


def test_a_killed_run_resumes_bit_equal(tmp_path: Path) -> None:
    """At S = 0 and one slot a run killed amid a step and resumed ends with the bits of one never stopped."""
    digests = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        config = live.write_config(folder, steps=6, S=0, slots=1)
        out = folder / "run"
        if name == "whole":
            done = live.finished("train", config, "--out", out)
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            with live.running(config, "--out", out) as run:
                run.until("step 3/6")
                run.kill(signal.SIGKILL)
            with live.running(config, "--out", out, "--resume") as run:
                code, output = run.end()
            assert code == 0 and "step 3/6" in output, output
        trained_once(out, steps=6, S=0)
        weights = (out / "checkpoints" / "version-00000006" / "model.safetensors").read_bytes()
        digests.append(hashlib.sha256(weights).hexdigest())
    assert digests[0] == digests[1]


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    """A worker killed without a word costs its running groups, which are generated again; nothing is lost."""
    folder = tmp_path / "run"
    with live.running(live.write_config(tmp_path, steps=10, S=1, count=2), "--out", folder) as run:
        run.until("step 3/10")
        victim = live.workers_of(folder)[0]
        os.kill(victim, signal.SIGKILL)
        code, output = run.end()
    assert code == 0, output
    trained_once(folder, steps=10, S=1)
    log = (folder / "log.jsonl").read_text(encoding="utf-8")
    assert '"kind":"WorkerLeft"' in log and "killed by signal 9" in log
    assert live.workers_of(folder) == []


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    """Interrupted, it is gone within 10 s with a checkpoint and without orphans, and resumes to the end."""
    folder = tmp_path / "run"
    config = live.write_config(tmp_path, steps=400, S=1)
    with live.running(config, "--out", folder) as run:
        run.until("step 3/400")
        began = time.monotonic()
        run.kill(signal.SIGINT)
        code, output = run.end()
        assert time.monotonic() - began < 10
    assert code == 130 and "--resume" in output, output
    assert live.workers_of(folder) == []
    with LedgerReader(folder / "ledger.sqlite") as ledger:
        version = ledger.version
    assert (folder / "checkpoints" / f"version-{version:08d}").is_dir()
    done = live.finished("train", config, "--out", folder, "--resume", "--set", f"run.steps={version + 2}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"goes on from the checkpoint of version {version}:" in done.stdout, done.stdout
    trained_once(folder, steps=version + 2, S=1)


def test_a_remote_worker_joins_and_a_stranger_does_not(tmp_path: Path) -> None:
    """A learner without local workers waits for one that dials in with the token, and trains on it."""
    folder = tmp_path / "run"
    config = live.write_config(tmp_path, steps=3, S=1, local=False)
    with live.running(config, "--out", folder) as run:
        url = run.until("learner at").split()[2].rstrip(",")
        run.until("workers join with")
        common = ["worker", "--join", url, "--pool", "w", "--engine", "transformers", "--threads", "1"]
        stranger = live.finished(*common, "--token", "guess")
        assert stranger.returncode == 2 and "token" in stranger.stderr, stranger.stderr
        token = (folder / "token").read_text(encoding="utf-8").strip()
        worker = live.finished(*common, "--token", token)
        code, output = run.end()
    assert code == 0, output + worker.stderr
    assert worker.returncode == 0, worker.stderr
    trained_once(folder, steps=3, S=1)


def worker_log(folder: Path) -> str:
    """What the workers of a run wrote."""
    return "".join(file.read_text(encoding="utf-8") for file in folder.glob("workers/*/worker.log"))
