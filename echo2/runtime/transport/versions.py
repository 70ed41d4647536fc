"""The versions that workers can fetch: found, pinned, and thrown away when nothing kept is made from them.

What `snapshot.SnapshotStore` has beside the writing. Safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path

from echo2.runtime.transport import chain
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.draft import Draft
from echo2.runtime.transport.manifest_check import SnapshotError, files_of
from echo2.runtime.transport.messages import Chunk, Manifest, SignedManifest
from echo2.runtime.transport.store import ChunkStore

NEWEST = -1
KEPT_DRAFTS = 4


class Versions:
    """Manifests in `directory`/manifests, chunks in `directory`/chunks. Raises UserError, OSError."""

    def __init__(self, directory: Path, keep: int, budget_bytes: int | None) -> None:
        self.directory, self._keep, self._budget_bytes = directory, keep, budget_bytes
        # never held for long, so that the server's event loop can ask for a manifest while one is written
        self._lock = threading.Lock()
        self._pins: Counter[int] = Counter()
        self._chunks = ChunkStore(directory / "chunks")
        self._manifests = directory / "manifests"
        self._versions: dict[int, Manifest] = {}
        self._signed: dict[int, SignedManifest] = {}
        self._drafts: dict[int, Draft] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that can be fetched, ascending."""
        with self._lock:
            return tuple(sorted(self._versions))

    def manifest(self, version: int = NEWEST) -> Manifest:
        """The manifest of a version, of the newest for -1. Raises Refusal (404)."""
        with self._lock:
            return self._versions[self._known(version)]

    def signed(self, version: int = NEWEST) -> SignedManifest:
        """The same as it travels, with its signature. Raises Refusal (404)."""
        with self._lock:
            return self._signed[self._known(version)]

    def payload(self, version: int = NEWEST, parent: int = -1) -> chain.Payload:
        """The chunks that bring a holder of `parent` (-1: of nothing) to `version`. Raises Refusal (404)."""
        with self._lock:
            version, manifests = self._known(version), dict(self._versions)
        try:
            return chain.payload_of(manifests, version, parent)
        except SnapshotError as error:
            raise Refusal(404, "no-chain", str(error)) from error

    def chunk(self, digest: str) -> Path:
        """The file of a chunk. Raises Refusal (404)."""
        with contextlib.suppress(ValueError):
            path = self._chunks.path(digest)
            if path.is_file():
                return path
        raise Refusal(404, "no-chunk", f"there is no chunk {digest[:64]!r}; fetch the newest snapshot")

    def draft(self, version: int, draft_id: str) -> Draft:
        """A delta that is being encoded, or one of the last few that were. Raises Refusal (404)."""
        with self._lock:
            draft = self._drafts.get(version)
        if draft is None or draft.id != draft_id:
            raise Refusal(404, "no-draft", f"version {version} is not being encoded as {draft_id[:12]}...")
        return draft

    def pin(self, version: int) -> int:
        """Keep a version (-1: the newest) while somebody fetches it; returns which, for `unpin`.

        Raises Refusal (404).
        """
        with self._lock:
            version = self._known(version)
            self._pins[version] += 1
            return version

    def unpin(self, version: int) -> None:
        """Take a pin back. A version that is not pinned is ignored. May delete files: call it in a thread."""
        with self._lock:
            self._pins[version] -= 1
            if self._pins[version] > 0:
                return
            del self._pins[version]
        self._collect()

    def bytes_on_disk(self) -> int:
        """Bytes of all chunks that are kept, shared ones once."""
        return self._chunks.bytes_held()

    # ---- inside ----------------------------------------------------------------------------------

    def _known(self, version: int) -> int:
        """The number of a version that is there; the lock is held."""
        wanted = max(self._versions, default=NEWEST) if version == NEWEST else version
        if wanted not in self._versions:
            have = ", ".join(map(str, sorted(self._versions))) or "none yet"
            raise Refusal(404, "no-snapshot", f"there is no snapshot {version}; there is {have}")
        return wanted

    def _keep_draft(self, version: int, draft: Draft | None) -> None:
        """What is asked for by its pages from now on; the last few before it may still be."""
        with self._lock:
            self._drafts.pop(version, None)
            if draft is not None:
                self._drafts[version] = draft
            for old in list(self._drafts)[:-KEPT_DRAFTS]:
                del self._drafts[old]

    def _collect(self) -> None:
        """Drop what nothing kept is made from: beyond the newest few, and those too while over the budget."""
        with self._lock:
            kept = [v for v in sorted(self._versions) if self._pins[v]]
            newest = sorted(self._versions)[-self._keep :]
        self._drop_all_but({*kept, *newest})
        for oldest in newest[:-1]:
            if self._budget_bytes is None or self.bytes_on_disk() <= self._budget_bytes:
                return
            newest.remove(oldest)
            self._drop_all_but({*kept, *newest})

    def _drop_all_but(self, kept: set[int]) -> None:
        """Drop versions, oldest first, that no version of `kept` and none pinned meanwhile needs."""
        for version in self.versions:
            with self._lock:
                pinned = {v for v in self._versions if self._pins[v]}
                needed = [chain.needed_for(v, self._versions) for v in kept | pinned]
                gone = None if version in frozenset().union(*needed) else self._take_out(version)
            if gone is not None:
                self._chunks.release(distinct_chunks(gone))

    def _take_out(self, version: int) -> Manifest | None:
        # The manifest goes first: after a crash in between, no version is served without its chunks.
        self._manifest_path(version).unlink(missing_ok=True)
        self._pins.pop(version, None)
        self._signed.pop(version, None)
        return self._versions.pop(version, None)

    def _manifest_path(self, version: int) -> Path:
        return self._manifests / f"{version:08d}.json"


def distinct_chunks(manifest: Manifest) -> list[Chunk]:
    """Every chunk of a snapshot, weights and model files, in order and once."""
    return list(dict.fromkeys(chunk for file in files_of(manifest) for chunk in file.chunks))
