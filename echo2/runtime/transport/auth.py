"""The run's shared token: what it must look like, and how it is compared. Used by server and client."""

from __future__ import annotations

import hmac
import secrets

from echo2.errors import UserError

LEASE_HEADER = "X-Echo2-Lease"
"""Carries the lease of a worker process, beside the token."""

SHORTEST, LONGEST = 16, 512
"""Characters of a token."""


def new_token() -> str:
    """A fresh token of 256 random bits, safe in URLs and shells."""
    return secrets.token_urlsafe(32)


def checked_token(token: str) -> str:
    """The token without surrounding space. Raises UserError (which does not show it) when it is no good."""
    token = token.strip()
    if not SHORTEST <= len(token) <= LONGEST or not token.isascii() or not token.isprintable():
        raise UserError(
            f"the token has {len(token)} characters; it needs {SHORTEST} to {LONGEST} printable ASCII ones: "
            "leave it out and one is made"
        )
    return token


def authorised(header: str | None, token: str) -> bool:
    """Whether an Authorization header carries the token, in a time that does not depend on how much fits."""
    scheme, _, given = (header or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return same and scheme.lower() == "bearer"
