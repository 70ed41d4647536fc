"""A version on the learner's host while it is encoded: its chunks so far, in signed pages, and who waits.

Opened by the snapshot store; `add`, `encoded`, `whole` and `drop` are called in the thread that writes,
`pages` on the server's event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable

from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.messages import Chunk, Manifest
from echo2.runtime.transport.pages import PAGE_CHUNKS, PAGES_AT_ONCE, Page, Pages, SignedPage
from echo2.runtime.transport.signing import RunKey

PAGE_S = 0.2
"""Seconds between two pages at most while chunks come, unless those who ask are many."""
ASKED_PER_S = 400.0
"""Requests for pages a second by all who follow a draft together, at most (ours): each asks for each page."""
AT_FIRST, LATER = 0.1, 1 / 8
"""A page may follow after this share of `PAGE_S`, and after this share of the time so far (ours): few pages
for what takes long, and no long wait in what is short."""


class Draft:
    """`id` is new for every attempt; `parent` is the version that the delta is against."""

    def __init__(
        self,
        key: RunKey,
        run_id: str,
        version: int,
        parent: Manifest,
        page_s: float = PAGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id, self.version, self.parent = secrets.token_hex(32), version, parent.version
        self._key, self._run_id, self._parent_weights = key, run_id, parent.weights
        self._page_s, self._clock = page_s, clock
        self._lock = threading.Lock()
        self._pages: list[SignedPage] = []
        self._open: list[Chunk] = []
        self._told, self._last_s, self._began_s = 0, -1e9, clock()
        self._followers = 0
        self._whole = False
        self._dropped = ""
        self._waiting: set[asyncio.Future[None]] = set()

    # ---- the writer's side -----------------------------------------------------------------------

    def add(self, chunk: Chunk) -> None:
        """The next chunk is on disk."""
        with self._lock:
            self._open.append(chunk)
        self._close_page(due=True)

    def encoded(self) -> None:
        """All chunks are there; the manifest is not."""
        self._close_page(due=False)

    def whole(self) -> None:
        """The manifest is there."""
        with self._lock:
            self._whole = True
        self._wake()

    def drop(self, reason: str) -> None:
        """The version will not come of this draft."""
        with self._lock:
            self._dropped = reason or "no reason is known"
        self._wake()

    def followed_by(self, workers: int) -> None:
        """So many are told of this draft, and will ask for each page."""
        self._followers = workers

    # ---- the workers' side -----------------------------------------------------------------------

    async def pages(self, number: int, wait_s: float) -> Pages:
        """The pages from `number` on, as soon as there is one or the manifest is there; none after `wait_s`.

        Raises Refusal 410 for a draft that was dropped.
        """
        until_s = time.monotonic() + wait_s
        while True:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with self._lock:
                if (answer := self._answer(number)) is not None:
                    return answer
                self._waiting.add(future)
            left_s = until_s - time.monotonic()
            try:
                # not for longer than a page takes: chunks may wait for one while the encoder is slow
                await asyncio.wait([future], timeout=max(0.0, min(left_s, self._longest_s)))
            finally:
                with self._lock:
                    self._waiting.discard(future)
            if left_s <= 0:
                return Pages()
            self._close_page(due=True)

    # ---- inside ----------------------------------------------------------------------------------

    @property
    def _longest_s(self) -> float:
        """The longest pause between two pages."""
        return max(self._page_s, self._followers / ASKED_PER_S)

    def _answer(self, number: int) -> Pages | None:
        """What there is to tell; the lock is held."""
        if self._dropped:
            raise Refusal(410, "draft-dropped", f"version {self.version} was given up: {self._dropped}")
        found = tuple(self._pages[number : number + PAGES_AT_ONCE])
        whole = self._whole and number + PAGES_AT_ONCE >= len(self._pages)
        return Pages(pages=found, whole=whole) if found or whole else None

    def _close_page(self, due: bool) -> None:
        """Sign what waits as a page; if `due`, only when it is time for one."""
        with self._lock:
            now_s = self._clock()
            pause_s = min(self._page_s, max(AT_FIRST * self._page_s, LATER * (now_s - self._began_s)))
            pause_s = max(pause_s, self._followers / ASKED_PER_S)
            early = now_s - self._last_s < pause_s and len(self._open) < PAGE_CHUNKS
            if not self._open or (due and early):
                return
            page = Page(
                run_id=self._run_id,
                version=self.version,
                draft=self.id,
                parent=self.parent,
                parent_weights=self._parent_weights,
                number=len(self._pages),
                start=self._told,
                chunks=tuple(self._open),
            )
            self._pages.append(self._key.sign_page(page))
            self._told, self._last_s = self._told + len(self._open), now_s
            self._open.clear()
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            # a loop that has ended waits for nothing
            if not (loop := future.get_loop()).is_closed():
                loop.call_soon_threadsafe(_done, future)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
