"""Where a run is reached, and what the user is told of it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver_kit import Recorder

from echo2.errors import UserError
from echo2.runtime.driver import serving
from echo2.runtime.driver.run_dir import RunDir


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_others_reach_a_learner_that_listens_everywhere_by_its_name(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wildcard host is shown as this machine's name, scheme and port unchanged."""
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu-3.example.org")
    assert serving.join_url("https://127.0.0.1:8431", host) == "https://gpu-3.example.org:8431"
    assert serving.join_url("http://[::1]:8431", host) == "http://gpu-3.example.org:8431"


@pytest.mark.parametrize("full", ["localhost", "localhost.localdomain", "1.0.0.127.in-addr.arpa"])
def test_a_loopback_name_is_never_shown(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the full name is the loopback's, or an address, the short name is shown."""
    monkeypatch.setattr(socket, "getfqdn", lambda: full)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-3")
    assert serving.join_url("http://127.0.0.1:80", "0.0.0.0") == "http://gpu-3:80"


def test_a_host_that_was_asked_for_is_shown() -> None:
    """A host other than a wildcard is the one others use."""
    assert serving.join_url("http://10.0.0.7:80", "10.0.0.7") == "http://10.0.0.7:80"


def test_local_workers_are_never_told_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept url is the loopback's even where the line on joining shows this machine's name."""
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu-3.example.org")
    server: Any = SimpleNamespace(url="http://127.0.0.1:8431")
    said: list[str] = []
    serving.greet(RunDir(tmp_path, "run-1", 1), server, "0.0.0.0", "secret", [True, False], said.append)
    assert (tmp_path / "url").read_text() == "http://127.0.0.1:8431\n"
    assert said[0].startswith("learner at http://127.0.0.1:8431, ") and said[0].endswith("2 workers on offer")
    assert "--join http://gpu-3.example.org:8431 " in said[1] and "secret" not in said[1]
    serving.greet(RunDir(tmp_path, "run-1", 1), server, "0.0.0.0", "secret", [True], said.append)
    assert len(said) == 3, "nobody joins a run with local workers alone"


def test_a_taken_port_is_named_by_its_key(tmp_path: Path) -> None:
    """The error for a port in use names train.port as the fix, and no option that `echo2 train` lacks."""
    api: Any = Recorder()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        train = SimpleNamespace(host="127.0.0.1", port=port, uplink_mbps=0.0)
        setup: Any = SimpleNamespace(config=SimpleNamespace(train=train), tls=(None, None))
        with pytest.raises(UserError, match=r"in use; choose another with train\.port") as caught:
            asyncio.run(serving.serve(setup, RunDir(tmp_path, "run-1", 1), api, "x" * 32))
    assert f"train.port = {port}" in str(caught.value) and "--" not in str(caught.value)
