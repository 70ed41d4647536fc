"""Signed pages: the chunks of a delta, told while later ones are still encoded. Messages and their rules.

A *draft* is one attempt to encode one version. Its chunks are told in pages, in order; each is signed by the
run key and names run, version, draft, its own number and where its chunks stand, so none can be changed,
left out, moved, or shown for another version or another attempt. The signed manifest closes the draft: what
its delta does not list, in this very order, was never published. Made by `draft`, taken in by `ahead`.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Literal

from pydantic import Field

from echo2.runtime.transport.manifest_check import MAX_CHUNK_BYTES, SnapshotError
from echo2.runtime.transport.messages import (
    MAX_CHUNKS,
    Chunk,
    Digest,
    Message,
    Name,
    Ordinal,
    Signature,
    Version,
)

PAGE_CHUNKS = 2048
"""Chunks of a page at most."""
PAGES_AT_ONCE = 32


class Page(Message):
    """Chunks `start` to `start + len(chunks) - 1` of the delta of `version` against `parent`."""

    format: Literal[1] = 1
    run_id: Name
    version: Version
    draft: Digest
    parent: Version
    parent_weights: Digest
    number: Ordinal
    start: Ordinal
    chunks: Annotated[tuple[Chunk, ...], Field(min_length=1, max_length=PAGE_CHUNKS, strict=False)]


class SignedPage(Message):
    """A page as the very text that was signed, and the run key's Ed25519 signature over it."""

    page: Annotated[str, Field(min_length=2, max_length=1 << 20)]
    signature: Signature


class Pages(Message):
    """The next pages of a draft, none where the wait was over first. `whole`: these are the last, and the
    manifest is there."""

    pages: Annotated[tuple[SignedPage, ...], Field(max_length=PAGES_AT_ONCE, strict=False)] = ()
    whole: bool = False


class PageChain:
    """The pages of one draft as they come. `chunks` in order, their `bytes`, the `number` that is next."""

    def __init__(
        self, run_id: str, version: int, draft: str, parent: int, parents: Set[str], most_bytes: int
    ) -> None:
        """`parents`: identities of the weights held of version `parent`; `most_bytes`: of all chunks."""
        self.chunks: list[Chunk] = []
        self.bytes = self.number = 0
        self.parent_weights = ""
        self._said = {"run_id": run_id, "version": version, "draft": draft, "parent": parent}
        self._parents, self._most_bytes = parents, most_bytes

    def take(self, page: Page) -> tuple[Chunk, ...]:
        """The chunks of the next page. Raises SnapshotError, and takes nothing, for any other page."""
        which = f"page {self.number} of version {self._said['version']}"
        for field, wanted in self._said.items():
            if (given := getattr(page, field)) != wanted:
                raise SnapshotError(f"{which}: {field} is {given!r}, it must be {wanted!r}")
        if (page.number, page.start) != (self.number, len(self.chunks)):
            raise SnapshotError(
                f"{which}: page {page.number} came, from chunk {page.start} on; it must go on at chunk "
                f"{len(self.chunks)}"
            )
        if page.parent_weights not in ({self.parent_weights} if self.parent_weights else self._parents):
            raise SnapshotError(f"{which} is of a delta against other weights than those held here")
        largest = max(chunk.size for chunk in page.chunks)
        if largest > MAX_CHUNK_BYTES:
            raise SnapshotError(
                f"{which} has a chunk of {largest} bytes; at most {MAX_CHUNK_BYTES} are taken"
            )
        if len(self.chunks) + len(page.chunks) > MAX_CHUNKS:
            raise SnapshotError(f"{which}: the delta has more than {MAX_CHUNKS} chunks")
        total = self.bytes + sum(chunk.size for chunk in page.chunks)
        if total > self._most_bytes:
            raise SnapshotError(
                f"{which}: the delta has grown to {total:,} bytes; at most {self._most_bytes:,} are taken"
            )
        self.chunks += page.chunks
        self.bytes, self.number, self.parent_weights = total, self.number + 1, page.parent_weights
        return page.chunks
