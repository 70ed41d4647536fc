"""Signed pages: what cannot be changed, moved, left out or shown for another, and how they are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from relay_kit import World, route_of, world
from test_snapshot_streaming import changed
from transport_kit import KEY, RUN

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.chain import delta_chunks, next_chunk_bytes
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.draft import ASKED_PER_S, Draft
from echo2.runtime.transport.manifest_check import MAX_CHUNK_BYTES, SnapshotError
from echo2.runtime.transport.pages import PAGE_CHUNKS, PAGES_AT_ONCE, Page, PageChain, Pages, SignedPage
from echo2.runtime.transport.signing import DOMAIN, RunKey, verified_page

DRAFT, OTHER = "d" * 64, "e" * 64
WEIGHTS = "a" * 64
MOST = 1000


def chunk(i: int, size: int = 10) -> m.Chunk:
    return m.Chunk(digest=f"{i:064x}", size=size)


def page(number: int, start: int, count: int = 2, **fields: Any) -> Page:
    """Page `number` of the draft, unless `fields` say otherwise."""
    return Page(**{
        "run_id": RUN, "version": 2, "draft": DRAFT, "parent": 1, "parent_weights": WEIGHTS, "number": number,
        "start": start, "chunks": tuple(chunk(i) for i in range(start, start + count)), **fields,
    })  # fmt: skip


def held() -> PageChain:
    """What a worker has after two pages of two chunks each."""
    chain = PageChain(RUN, 2, DRAFT, 1, {WEIGHTS, "b" * 64}, MOST)
    chain.take(page(0, 0))
    chain.take(page(1, 2))
    return chain


BAD = {
    "of another run": (page(2, 4, run_id="run-0"), "run_id"),
    "of another version": (page(2, 4, version=3), "version is 3"),
    "of another draft": (page(2, 4, draft=OTHER), "draft"),
    "against another version": (page(2, 4, parent=0), "parent is 0"),
    "against other weights": (page(2, 4, parent_weights="c" * 64), "other weights"),
    "against weights held, but not those of page 0": (page(2, 4, parent_weights="b" * 64), "other weights"),
    "sent again": (page(1, 2), "page 1 came"),
    "with one left out before it": (page(3, 6), "page 3 came"),
    "that begins too early": (page(2, 3), "from chunk 3 on"),
    "that begins too late": (page(2, 5), "from chunk 5 on"),
    "that is beyond the limit": (page(2, 4, chunks=(chunk(4, MOST - 39),)), "at most 1,000 are taken"),
    "with a chunk that no memory takes": (
        page(2, 4, chunks=(chunk(4, MAX_CHUNK_BYTES + 1),)),
        "has a chunk of",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_page_that_is_not_the_next(what: str) -> None:
    """A signed page of anything else, or of elsewhere, is refused by name and changes nothing."""
    bad, why = BAD[what]
    chain = held()
    with pytest.raises(SnapshotError, match=why):
        chain.take(verified_page(KEY.sign_page(bad), KEY.public))
    assert (len(chain.chunks), chain.bytes, chain.number) == (4, 40, 2)
    assert chain.take(page(2, 4)) == (chunk(4), chunk(5))


def test_pages_without_an_end() -> None:
    """However many pages come, what they list never exceeds the limit of bytes."""
    chain = PageChain(RUN, 2, DRAFT, 1, {WEIGHTS}, MOST)
    with pytest.raises(SnapshotError, match="has grown to 1,020 bytes"):
        for number in range(1000):
            chain.take(page(number, 2 * number))
    assert chain.bytes == MOST


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.model_copy(update={"page": s.page.replace('"number":0', '"number":1')}),
        lambda s: s.model_copy(update={"page": s.page + " "}),
        lambda s: RunKey.new().sign_page(Page.model_validate_json(s.page)),
        lambda s: s.model_copy(update={"signature": KEY._key.sign(DOMAIN + s.page.encode()).hex()}),
    ],
    ids=["renumbered", "a blank", "another key", "signed as a manifest"],
)
def test_a_page_that_the_run_key_has_not_signed(change: Callable[[SignedPage], SignedPage]) -> None:
    """One changed character, another key, or a signature made for a manifest: the page is not read at all."""
    signed = KEY.sign_page(page(0, 0))
    assert verified_page(signed, KEY.public) == page(0, 0)
    with pytest.raises(SnapshotError, match="not signed by the run key"):
        verified_page(change(signed), KEY.public)


# ---- told by the learner ---------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_draft(clock: Clock, page_s: float = 0.2) -> Draft:
    parent = m.Manifest(
        run_id=RUN, version=1, weights=WEIGHTS, model_files=(),
        tensors=(m.TensorEntry(name="w", dtype="U8", shape=(1,), digest=WEIGHTS),),
    )  # fmt: skip
    return Draft(KEY, RUN, 2, parent, page_s, clock)


def told(pages: Sequence[SignedPage]) -> list[list[int]]:
    found = [Page.model_validate_json(signed.page) for signed in pages]
    return [[int(c.digest, 16) for c in one.chunks] for one in found]


def test_pages_are_few_and_hold_everything_once() -> None:
    """The first chunk is told at once, then all that came within a page's time, which grows with the time it
    takes up to a limit, and the rest at the end."""

    async def work() -> None:
        clock = Clock()
        draft = a_draft(clock, page_s=5.0)
        for i in range(5):
            draft.add(chunk(i))
            clock.now += 0.3
        clock.now = 100.0
        for i in range(5, 10):
            draft.add(chunk(i))
            clock.now += 2.0
        draft.encoded()
        assert not (await draft.pages(0, 0)).whole
        draft.whole()
        got = await draft.pages(0, 0)
        assert told(got.pages) == [[0], [1, 2], [3, 4], [5], [6, 7, 8], [9]] and got.whole
        assert await draft.pages(6, 0) == Pages(whole=True)
        for i in range(PAGE_CHUNKS):
            draft.add(chunk(i))
        assert len(told((await draft.pages(6, 0)).pages)[0]) == PAGE_CHUNKS

    asyncio.run(work())


@pytest.mark.parametrize("workers", [1, 40, 256, 1000])
def test_pages_are_fewer_the_more_ask_for_them(workers: int) -> None:
    """However many follow a draft, they make no more requests a second than the learner is meant to answer,
    and no page is held back once the encoder has ended."""

    async def work() -> None:
        clock = Clock()
        draft = a_draft(clock)
        draft.followed_by(workers)
        for i in range(500):
            draft.add(chunk(i))
            clock.now += 0.01
        draft.encoded()
        draft.whole()
        pages = told((await draft.pages(0, 0)).pages) + told((await draft.pages(PAGES_AT_ONCE, 0)).pages)
        assert [i for one in pages for i in one] == list(range(500))
        assert workers * (len(pages) - 2) <= 5.0 * ASKED_PER_S  # but for the first and the last

    asyncio.run(work())


def test_a_long_list_is_told_in_parts() -> None:
    """An answer has so many pages at most, and says that all is there only with the last of them."""

    async def work() -> None:
        clock = Clock()
        draft = a_draft(clock)
        for i in range(PAGES_AT_ONCE + 3):
            clock.now += 1.0
            draft.add(chunk(i))
        draft.whole()
        first = await draft.pages(0, 0)
        rest = await draft.pages(PAGES_AT_ONCE, 0)
        assert (len(first.pages), first.whole) == (PAGES_AT_ONCE, False)
        assert (len(rest.pages), rest.whole) == (3, True)

    asyncio.run(work())


def test_who_waits_is_told() -> None:
    """Who waits for a page hears of a chunk that another thread adds, of the end, and of the draft's failure;
    when nothing comes the answer is empty once the wait is over."""

    async def work() -> None:
        clock = Clock()
        draft = a_draft(clock, page_s=0.05)
        assert await draft.pages(0, 0.01) == Pages()
        waiting = asyncio.create_task(draft.pages(0, 30))
        await asyncio.sleep(0)
        threading.Thread(target=draft.add, args=(chunk(0),)).start()
        assert told((await waiting).pages) == [[0]]
        draft.add(chunk(1))  # too early for a page of its own, and no chunk comes after it
        waiting = asyncio.create_task(draft.pages(1, 30))
        await asyncio.sleep(0)
        clock.now = 1.0
        assert told((await waiting).pages) == [[1]]
        waiting = asyncio.create_task(draft.pages(2, 30))
        await asyncio.sleep(0)
        draft.drop("the disk is full")
        with pytest.raises(Refusal, match="given up: the disk is full") as refused:
            await waiting
        assert refused.value.status == 410

    asyncio.run(work())


def test_the_count_of_chunks_is_foreseen() -> None:
    """A delta of a known size is cut into as many chunks as the plan is told."""
    for total in (1, 65_536, 65_537, 4 << 20, 123_456_789):
        sizes = []
        while sum(sizes) < total:
            sizes.append(next_chunk_bytes(sum(sizes), 1 << 20))
        assert delta_chunks(total, 1 << 20) == len(sizes)
    assert delta_chunks(0, 1 << 20) == 1


# ---- told by somebody in between -------------------------------------------------------------------------

Forge = Callable[[Pages, Pages], Pages]
"""What is sent instead: of the true pages of this draft, and those of the version before."""

FORGERIES: dict[str, tuple[Forge, str]] = {
    "a changed page": (
        lambda mine, _: mine.model_copy(
            update={"pages": tuple(s.model_copy(update={"page": s.page + " "}) for s in mine.pages)}
        ),
        "not signed by the run key",
    ),
    "the version before": (lambda _, before: before, "version is 2, it must be 3"),
    "reordered": (
        lambda mine, _: mine.model_copy(update={"pages": mine.pages[::-1]}),
        "it must go on at chunk 0",
    ),
    "one left out": (lambda mine, _: mine.model_copy(update={"pages": mine.pages[1:]}), "page 1 came"),
    "the last one left out": (
        lambda mine, _: mine.model_copy(update={"pages": mine.pages[:-1]}),
        "not published as the delta that its pages told",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_somebody_in_between_who_forges_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever is done to the pages on their way, the worker names it, keeps nothing that they brought, and
    gets the version by its manifest all the same."""
    forge, why = FORGERIES[what]
    monkeypatch.setattr("echo2.runtime.transport.draft.PAGE_CHUNKS", 1)  # a page for each chunk

    async def work() -> None:
        async with world(tmp_path, 4.0) as here:
            node = await here.node("a")
            drafts = [published(here, version) for version in (2, 3)]
            await node.receiver.fetch(2)
            real, true = here.desk.pages, [await d.pages(0, 0) for d in drafts]
            assert len(true[1].pages) > 2

            async def pages(version: int, draft: str, number: int, wait_s: float) -> Pages:
                await real(version, draft, number, wait_s)
                return forge(true[1], true[0]) if number == 0 else Pages(whole=True)

            monkeypatch.setattr(here.desk, "pages", pages)
            route = route_of(["learner"], here.nodes).model_copy(
                update={"draft": m.Draft(id=drafts[1].id, bytes=1)}
            )
            received = await node.receiver.fetch(3, 2, route)
            assert here.right(received) and received.parent == 2
            assert not list((tmp_path / "a").glob("unfinished-*"))

    asyncio.run(asyncio.wait_for(work(), 60))
    dropped = [record.getMessage() for record in caplog.records if "is dropped" in record.getMessage()]
    assert len(dropped) == 1 and why in dropped[0]


def published(here: World, version: int) -> Draft:
    """The draft of a version that is whole by now."""
    drafts: list[Draft] = []
    here.weights[version] = changed(here.weights[version - 1], version)
    here.store.put(version, here.weights[version], full=False, begun=drafts.append)
    return drafts[0]
