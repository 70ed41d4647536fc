"""`echo2 train` with a pool of engine openai: its local worker drives a real vLLM server on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import live_run as live
import pytest

pytest.importorskip("vllm")

from test_engine_openai import vllm_server
from test_live_train import trained_once, worker_log


def test_a_server_of_its_own_feeds_a_learner(tmp_path: Path) -> None:
    """Each version is loaded into the server, and its log-probs are the learner's at the same weights."""
    folder = tmp_path / "run"
    with vllm_server(live.REPOSITORY / "assets" / "tiny-sort", tmp_path / "server.log") as url:
        config = live.write_config(
            tmp_path,
            steps=4,
            S=1,
            engine="openai",
            pool__w__endpoint=[url],
            pool__w__endpoint_weights="shared",
        )
        done = live.finished("train", config, "--out", folder)
        assert done.returncode == 0, done.stdout + done.stderr + worker_log(folder)
        with urlopen(f"{url}/weight_info", timeout=5) as answer:
            held = int(json.load(answer)["weight_version"])
    trained_once(folder, steps=4, S=1)
    used = {row["version"]: row["mismatch_kl"] for row in live.rows(folder)}
    assert [*used] == [1, 2, 3, 4]
    assert all(abs(kl) < 1e-3 for kl in used.values() if kl is not None)
    assert 1 <= held <= 3
    # beside the configuration, in the worker's own folder, and no version but the last
    assert [path.name for path in (tmp_path / "shared" / "w-0").iterdir()] == [f"version-{held}"]
    assert live.workers_of(folder) == []
