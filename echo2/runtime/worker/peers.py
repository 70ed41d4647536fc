"""A worker among workers: its relay, the routes it is given, and what it reports of its sources.

Put together by `build`, used by the agent and its swaps. Without a relay the worker is a leaf: it receives
along the plan and passes nothing on.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.gather import Gatherer
from echo2.runtime.transport.relay import Relay
from echo2.runtime.transport.shaping import ShapedLink, Shaper
from echo2.runtime.transport.shelf import Shelf
from echo2.runtime.transport.urls import is_loopback

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """`port` 0: any free one. `host`: the address others are told; "": the one this machine has towards the
    learner. `mbps` caps what is sent (0: no cap)."""

    on: bool = True
    port: int = 0
    host: str = ""
    mbps: float = 0.0


class Peers:
    """The relay (None: a leaf) and the gatherer of one worker."""

    def __init__(self, gatherer: Gatherer, relay: Relay | None) -> None:
        self._gatherer, self._relay = gatherer, relay

    def report_to(self, tell: Callable[[m.Report], None]) -> None:
        """Who is told of failed sources and of bytes taken."""
        self._gatherer.failed = self._gatherer.taken = tell

    def welcomed(self, welcome: m.Welcome) -> None:
        """The learner has given this worker its name."""
        self._gatherer.worker_id = welcome.worker_id

    def follow(self, version: int, route: m.Route | None) -> None:
        """Another route for a version that is on its way."""
        self._gatherer.follow(version, route)

    def uplink_bps(self) -> float:
        """What the uplink gives, where the relay could tell since it was last asked; else 0."""
        return self._relay.meter.reading() if self._relay is not None else 0.0


def made_relay(
    settings: RelaySettings, shelf: Shelf, token: str, url: str, link: ShapedLink
) -> tuple[Relay | None, str]:
    """(the relay, not started yet, and the host that others are told); (None, "") where none is wanted."""
    if not settings.on:
        return None, ""
    host = settings.host or own_address(url)
    caps = [shaper for shaper in (link.up, _cap(settings.mbps)) if shaper is not None]
    bound = LOOPBACK if is_loopback(host) else "::" if ":" in host else "0.0.0.0"
    return Relay(shelf, token, bound, settings.port, tuple(caps)), host


def relay_url(host: str, port: int) -> str:
    """The address of a relay as others are told it. Raises UserError for a host that is none."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        m.Source(worker_id="w", url=url)
    except ValueError:
        raise UserError(f"--relay-host is {host[:100]!r}; give a host name or an address") from None
    return url


def own_address(url: str) -> str:
    """The address of this machine on the way to the learner; loopback for a learner on this machine."""
    parts = urlsplit(url)
    host, port = parts.hostname or LOOPBACK, parts.port or 80
    # a datagram socket: nothing is sent, the system only chooses the way
    with suppress(OSError, UnicodeError):
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return LOOPBACK


def _cap(mbps: float) -> Shaper | None:
    return Shaper(mbps * 1e6) if mbps > 0 else None
