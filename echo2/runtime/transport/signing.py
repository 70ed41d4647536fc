"""The run key: Ed25519 signatures over manifests and pages, made on the learner's host, checked by workers.

The learner's host makes one key a run and keeps it in the run's folder; a worker pins the public half when
it joins, and believes no manifest and no page that this key has not signed. The signature is over the exact
text behind a prefix of its own, so that nothing else signed by the key passes for a manifest, or a page.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Manifest, Message, SignedManifest
from echo2.runtime.transport.pages import Page, SignedPage

DOMAIN = b"echo2 snapshot manifest, format 2\0"
"""Goes before the text that is signed (ours)."""
PAGE_DOMAIN = b"echo2 snapshot page, format 1\0"

Signed = TypeVar("Signed", bound=Message)

_HEX_32 = re.compile(r"[0-9a-f]{64}")


class RunKey:
    """The private key of a run."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: the 32 bytes that an Ed25519 private key is (RFC 8032)."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(secret)

    @classmethod
    def new(cls) -> RunKey:
        """A key that nobody else has."""
        return cls(secrets.token_bytes(32))

    @property
    def public(self) -> str:
        """The public key, 64 hex digits: what workers pin."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, manifest: Manifest) -> SignedManifest:
        """The manifest as text, with the signature over that text."""
        text = manifest.model_dump_json()
        return SignedManifest(manifest=text, signature=self._key.sign(DOMAIN + text.encode()).hex())

    def sign_page(self, page: Page) -> SignedPage:
        """The same for a page."""
        text = page.model_dump_json()
        return SignedPage(page=text, signature=self._key.sign(PAGE_DOMAIN + text.encode()).hex())


def kept_key(file: Path) -> RunKey:
    """The key in `file`; a new one, readable by its owner only, where there is none yet.

    Raises UserError for a file that holds no key, or cannot be read or written.
    """
    try:
        if not file.is_file():
            _keep(file, secrets.token_hex(32))
        text = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise UserError(
            f"{str(file)!r}: the run key cannot be kept ({error.strerror}); make room or check its rights"
        ) from error
    if not _HEX_32.fullmatch(text):
        raise UserError(
            f"{str(file)!r} holds no run key (64 hex digits); put back the run's own, or start another run"
        )
    return RunKey(bytes.fromhex(text))


def verified(signed: SignedManifest, run_key: str) -> Manifest:
    """The manifest, if the run's key has signed this very text. Raises SnapshotError."""
    return _verified(signed.manifest, signed.signature, DOMAIN, run_key, Manifest, "manifest")


def verified_page(signed: SignedPage, run_key: str) -> Page:
    """The page, if the run's key has signed this very text. Raises SnapshotError."""
    return _verified(signed.page, signed.signature, PAGE_DOMAIN, run_key, Page, "page")


def _verified(
    text: str, signature: str, domain: bytes, run_key: str, kind: type[Signed], what: str
) -> Signed:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(checked_key(run_key)))
    try:
        public.verify(bytes.fromhex(signature), domain + text.encode())
    except InvalidSignature:
        raise SnapshotError(
            f"a {what} is not signed by the run key {run_key[:12]}... that this worker has pinned; it was "
            "changed on its way or is another run's, and nothing of it was applied"
        ) from None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise SnapshotError(
            f"a signed {what} cannot be read ({error.errors()[0]['msg']}); install the version of echo2 "
            "that the learner runs"
        ) from error


def checked_key(text: str) -> str:
    """A public key as a user or a learner gives it. Raises UserError unless it is 64 hex digits."""
    if not _HEX_32.fullmatch(text):
        raise UserError(
            f"run key is {text[:70]!r}; give the 64 hex digits that `echo2 train` prints when it starts"
        )
    return text


def pinned(before: str, now: str | None, run_id: str) -> str:
    """The key to go by after a welcome: `before` ("": none yet) stays. Raises UserError for any other."""
    if now is None:
        raise UserError(
            f"the learner of run {run_id} names no run key, so its snapshots cannot be checked; install the "
            "same version of echo2 on both sides"
        )
    if before and now != checked_key(before):
        raise UserError(
            f"the learner names run key {now[:12]}... for run {run_id}, this worker has pinned "
            f"{before[:12]}...; it is another run or another learner: check --join and --run-key"
        )
    return checked_key(now)


def _keep(file: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            os.fchmod(handle, 0o600)  # whatever an earlier attempt or the umask left
            stream.write(text + "\n")
            stream.flush()
            os.fsync(handle)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
