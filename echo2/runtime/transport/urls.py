"""Where a worker finds its learner: the URL checked, whom to trust, which way there. Used by the client."""

from __future__ import annotations

import ipaddress
import re
import ssl
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import httpx

from echo2.errors import UserError

_HOST = re.compile(r"[A-Za-z0-9._:-]+", re.ASCII)


def checked_url(url: str) -> httpx.URL:
    """The URL of a learner. Raises UserError for what is none."""
    try:
        parsed = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise UserError(f"{url[:200]!r} is no URL ({error}); give one like http://learner:8123") from error
    known = parsed.scheme in ("http", "https") and not parsed.userinfo and not parsed.query
    if not known or not _HOST.fullmatch(parsed.host) or not 0 < (parsed.port or 80) < 65536:
        raise UserError(f"{url[:200]!r} is no learner's URL; give one like http://learner:8123")
    return parsed


def trusted(ca: Path | None) -> ssl.SSLContext:
    """Whom to trust: the certificates in a file, or the system's. Raises UserError."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"certificate file {str(ca)!r} cannot be used ({error}); give certificates in PEM form"
        ) from error


def has_proxy(scheme: str, host: str) -> bool:
    """Whether this machine reaches the host through a proxy."""
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(host)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from its own machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
