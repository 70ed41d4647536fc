"""Where a live run is reached: its HTTP server, its port and token through all its lives, how workers join.

Called by `run`. The folder of a run keeps `url` (as this machine reaches it) and `token`.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable

from echo2.errors import UserError
from echo2.runtime.driver.api import LearnerApi
from echo2.runtime.driver.run_dir import RunDir
from echo2.runtime.driver.setup import Setup
from echo2.runtime.transport.server import Server, make_app
from echo2.runtime.transport.shaping import Shaper

WILDCARDS = ("", "0.0.0.0", "::")


async def serve(setup: Setup, run: RunDir, api: LearnerApi, token: str) -> Server:
    """The HTTP server, up. Raises UserError for a port in use."""
    train = setup.config.train
    app = make_app(api, token, uplink=Shaper(train.uplink_mbps * 1e6) if train.uplink_mbps else None)
    kept = 0 if train.port else _kept_port(run)
    # A port that was not asked for is taken again if it is free, for remote workers that know it.
    for port in dict.fromkeys((train.port or kept, train.port)):
        server = Server(app, train.host, port, *setup.tls)
        try:
            await server.start()
        except UserError as error:
            if port == train.port:
                raise UserError(
                    f"train.host = {train.host!r}, train.port = {port}: {_by_key(str(error))}"
                ) from error
        else:
            return server
    raise AssertionError("unreachable: the last port is the one asked for")


def kept_token(run: RunDir) -> str:
    """The token of the life before; a new one where there was none."""
    file = run.path / "token"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else secrets.token_urlsafe(24)


def greet(
    run: RunDir,
    server: Server,
    host: str,
    token: str,
    local: list[bool],
    say: Callable[[str], None],
    run_key: str = "",
) -> None:
    """Keep url and token, and say how to join; `host` is the one listened on, `local` each worker's.

    `run_key`: the public key that signs the snapshots of this run.
    """
    (run.path / "url").write_text(server.url + "\n", encoding="utf-8")
    file = run.path / "token"
    file.touch(mode=0o600)
    file.write_text(token + "\n", encoding="utf-8")
    say(f"learner at {server.url}, {run.path}, {len(local)} workers on offer")
    if not all(local):
        url = join_url(server.url, host)
        say(f"workers join with: echo2 worker --join {url} --pool NAME --token $(cat {run.path}/token)")
        if run_key:
            say(f"snapshots are signed by run key {run_key}: with --run-key a worker takes no others")


def relay_host(setup: Setup) -> str:
    """The address that the relays of local workers are told to others by."""
    if all(pool.local for pool in setup.config.pool):
        return "127.0.0.1"
    host = setup.config.train.host
    return _own_name() if host in WILDCARDS else host


def join_url(url: str, host: str) -> str:
    """`url` as other machines reach it: one that listens everywhere is known by this machine's name."""
    if host not in WILDCARDS:
        return url
    scheme, port = url.split("://")[0], url.rsplit(":", 1)[1]
    return f"{scheme}://{_own_name()}:{port}"


def _own_name() -> str:
    """This machine's name, with its domain where that is known."""
    name = socket.getfqdn()
    # What a machine without an entry in a name service gets: its loopback's name, or an address reversed.
    return socket.gethostname() if name.startswith("localhost") or name.endswith(".arpa") else name


def _by_key(text: str) -> str:
    """The transport names options of a command line; a run has keys of its configuration."""
    return text.replace("--port", "train.port").replace("--host", "train.host")


def _kept_port(run: RunDir) -> int:
    """The port of the life before; 0 where there was none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((run.path / "url").read_text(encoding="utf-8").rsplit(":", 1)[1])
    return 0
