"""Deltas over real HTTP to a worker's disk: bit-equal at each version, and never half, wrong or stuck."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from echo2.errors import UserError
from echo2.runtime.transport import rebuild as rebuild_module
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Manifest, Route, Source
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.receive import SnapshotReceiver
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.runtime.transport.tensor_table import weights_digest
from tests.transport_kit import KEY, RUN, Desk, adamw_steps, full_of, joined, model_dir, serving, weights

KIB = 1024
LEARNER = Route(sources=(Source(worker_id="learner"),), turns=(0,))
Weights = dict[str, torch.Tensor]


class Publisher:
    """A desk whose store gets one version after the other, each with a few values changed."""

    def __init__(self, path: Path, **options: Any) -> None:
        files = model_files_of(model_dir(path / "model"))
        self.store = SnapshotStore(path / "store", RUN, files, KEY, **{"keep": 50, **options})
        self.desk = Desk(self.store)
        self.now = weights(rows=256)
        self.versions: dict[int, Weights] = {}

    def put(self, version: int, full: bool = False) -> Manifest:
        """The next version."""
        self.now = {name: tensor.clone() for name, tensor in self.now.items()}
        self.now["z.first"][version % 256, :5] += 0.25
        self.versions[version] = self.now
        return self.store.put(version, self.now, full=full)

    def flip(self, version: int, path: Path) -> None:
        """Serve the first chunk of a version's delta with one bit changed."""
        delta = self.store.manifest(version).delta
        assert delta is not None
        self.serve_instead(delta.chunks[0].digest, path, lambda data: bytes([data[0] ^ 1]) + data[1:])

    def serve_instead(self, digest: str, path: Path, change: Any) -> None:
        """Serve other bytes for a chunk."""
        path.write_bytes(change(self.store.chunk(digest).read_bytes()))
        self.desk.tampered[digest] = path

    def forge(self, version: int, **fields: Any) -> None:
        """Serve a manifest of `version` with other fields, signed by the run key all the same."""
        real, forged = self.store.signed, self.store.manifest(version).model_copy(update=fields)
        self.store.signed = lambda v=-1: KEY.sign(forged) if v == version else real(v)  # type: ignore[method-assign]


@asynccontextmanager
async def receiving(publisher: Publisher, path: Path, **options: Any) -> AsyncIterator[SnapshotReceiver]:
    """A receiver that writes under `path`/got, and a server of its own."""
    async with serving(publisher.desk) as server, joined(server.url) as client:
        yield SnapshotReceiver(client, path / "got", **{"give_up_s": 2.0, **options})


def shown(path: Path) -> list[int]:
    """The versions that a worker's directory shows."""
    return sorted(int(p.name.split("-")[1]) for p in (path / "got").glob("version-*"))


def equal(path: Path, expected: Weights) -> bool:
    """Whether a model directory holds these weights, bit by bit."""
    found = load_file(path / "model.safetensors")
    return found.keys() == expected.keys() and all(
        found[n].dtype == t.dtype and found[n].numpy(force=True).tobytes() == t.numpy(force=True).tobytes()
        if t.dtype != torch.bfloat16
        else torch.equal(found[n].view(torch.int16), t.view(torch.int16))
        for n, t in expected.items()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_twenty_steps_of_a_model(tmp_path: Path, dtype: torch.dtype) -> None:
    """Over 20 AdamW steps of a small model each version arrives by its delta alone, bit-equal."""
    from engine_kit import tiny_model

    from echo2.runtime.learning.weights import whole_weights

    model, publisher = tiny_model(0), Publisher(tmp_path)
    steps = adamw_steps(model, learning_rate=1e-5)

    def published(version: int) -> Weights:
        made = {name: t.to(dtype) for name, t in whole_weights(model).items()}
        publisher.store.put(version, made, full=False)
        return made

    async def main() -> None:
        published(0)
        async with receiving(publisher, tmp_path) as receiver:
            first = await receiver.fetch(0)
            for version in range(1, 21):
                next(steps)
                made = published(version)
                received = await receiver.fetch(version, parent=version - 1)
                assert (received.parent, received.manifest.full) == (version - 1, None)
                assert equal(received.path, made)
                assert weights_digest(received.path) == received.manifest.weights
                assert received.bytes < first.bytes
        assert shown(tmp_path) == [19, 20]

    asyncio.run(main())


def test_versions_in_between_are_skipped(tmp_path: Path) -> None:
    """A worker at 1 that is told to take 5 gets the deltas of 2 to 5 and shows nothing in between."""

    async def main() -> None:
        publisher = Publisher(tmp_path)
        for version in (0, 1):
            publisher.put(version)
        async with receiving(publisher, tmp_path) as receiver:
            await receiver.fetch(1)
            for version in (2, 3, 4, 5):
                publisher.put(version, full=version == 3)
            received = await receiver.fetch(5, parent=1, route=LEARNER)
            assert received.parent == 1 and equal(received.path, publisher.versions[5])
            payload = publisher.store.payload(5, 1)
            assert received.bytes == payload.bytes and shown(tmp_path)[-1] == 5
            assert not {2, 3, 4} & set(shown(tmp_path))

    asyncio.run(main())


@pytest.mark.parametrize("route", [None, LEARNER], ids=["free", "planned"])
def test_a_late_joiner(tmp_path: Path, route: Route | None) -> None:
    """A worker with an empty disk gets the newest full file and the deltas after it, and nothing older."""

    async def main() -> None:
        publisher = Publisher(tmp_path)
        for version in range(7):
            publisher.put(version, full=version == 4)
        async with receiving(publisher, tmp_path) as receiver:
            received = await receiver.fetch(-1, route=route)
            payload = publisher.store.payload(6)
            assert [m.version for m, _ in payload.files] == [4, 5, 6]
            assert (received.parent, received.manifest.version) == (-1, 6)
            small = sum(file.size for file in received.manifest.model_files)
            assert received.bytes == payload.bytes + small
            assert equal(received.path, publisher.versions[6])
            # what it was made from is a whole version too, and of use for the next
            assert shown(tmp_path) == [4, 6]
            publisher.put(7)
            assert (await receiver.fetch(7)).parent == 6

    asyncio.run(main())


def test_the_disk_decides_what_is_fetched(tmp_path: Path) -> None:
    """Without a plan: deltas from the newest version on this disk, also one of an earlier life."""

    async def main() -> None:
        publisher = Publisher(tmp_path)
        publisher.put(0)
        async with receiving(publisher, tmp_path) as receiver:
            await receiver.fetch(0)
        for version in (1, 2, 3):
            publisher.put(version, full=version == 2)
        async with receiving(publisher, tmp_path) as receiver:
            received = await receiver.fetch()
            assert received.parent == 0 and equal(received.path, publisher.versions[3])

    asyncio.run(main())


BROKEN = ["flipped", "truncated", "damaged-parent", "other-parent", "gone-manifest", "swapped-delta"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_chain_is_healed_by_the_full_snapshot(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A delta of 2 that is flipped or cut short on its way, a parent damaged on this disk or of other
    weights, a manifest that is gone, a delta of another version under a right signature: the full file of 3
    is taken, the log says why, and the weights are right."""

    async def main() -> None:
        publisher, bad = Publisher(tmp_path), tmp_path / "bad"
        for version in (0, 1):
            publisher.put(version)
        async with receiving(publisher, tmp_path) as receiver:
            first = await receiver.fetch(1)
            for version in (2, 3):
                publisher.put(version, full=version == 3)
            delta = publisher.store.manifest(2).delta
            assert delta is not None
            if case == "flipped":
                publisher.flip(2, bad)
            elif case == "truncated":
                publisher.serve_instead(delta.chunks[0].digest, bad, lambda data: data[:-3])
            elif case == "damaged-parent":
                with (first.path / "model.safetensors").open("r+b") as stream:
                    stream.seek(100_000)
                    stream.write(b"\xff\xfe\xfd")
            elif case == "other-parent":
                publisher.forge(2, parent_weights="0" * 64)
            elif case == "gone-manifest":
                real = publisher.store.signed
                publisher.store.signed = lambda v=-1: real(99 if v == 2 else v)  # type: ignore[method-assign]
            else:
                publisher.forge(2, delta=publisher.store.manifest(1).delta)
            with caplog.at_level(logging.WARNING, logger="echo2.worker"):
                received = await receiver.fetch(3, parent=1)
            assert received.parent == -1 and equal(received.path, publisher.versions[3])
            if case == "other-parent":
                assert "version 1, from which deltas to 3 lead on, is not here" in caplog.text
            else:
                assert "version 3 by deltas failed" in caplog.text
                assert "taking the full snapshot of version 3 and 0 deltas" in caplog.text
            assert shown(tmp_path) == [1, 3]
            publisher.put(4)
            assert (await receiver.fetch(4, parent=3)).parent == 3

    asyncio.run(main())


@pytest.mark.parametrize("case", ["flipped", "lying-table", "swapped-delta"])
def test_without_a_full_snapshot_nothing_wrong_is_shown(tmp_path: Path, case: str) -> None:
    """Where the only way to version 2 leads over a wrong delta, it is refused and the versions before stay
    as they are; once the delta is right, it is taken."""

    async def main() -> None:
        publisher, said = Publisher(tmp_path), "nothing was applied"
        for version in (0, 1):
            publisher.put(version)
        async with receiving(publisher, tmp_path) as receiver:
            await receiver.fetch(1)
            real = publisher.store.signed
            publisher.put(2)
            if case == "flipped":
                publisher.flip(2, tmp_path / "bad")
                said = "wrong digest"
            elif case == "swapped-delta":
                publisher.forge(2, delta=publisher.store.manifest(1).delta)
                said = "is not what its manifest says"
            else:
                other = publisher.store.manifest(1)
                publisher.forge(2, tensors=other.tensors, weights=other.weights)
                said = "is not what its manifest says"
            with pytest.raises(SnapshotError, match=said):
                await receiver.fetch(2, parent=1)
            assert 2 not in shown(tmp_path)
            publisher.store.signed = real  # type: ignore[method-assign]
            publisher.desk.tampered.clear()
            received = await receiver.fetch(2)
            assert equal(received.path, publisher.versions[2])

    asyncio.run(main())


def test_a_version_made_anew_is_no_parent(tmp_path: Path) -> None:
    """After a resume, version 1 has other weights: a delta against the new one is not applied to the old."""

    async def main() -> None:
        publisher = Publisher(tmp_path)
        for version in (0, 1):
            publisher.put(version)
        async with receiving(publisher, tmp_path) as receiver:
            await receiver.fetch(1)
            publisher.store.forget_above(0)
            publisher.now["scalar"] = torch.tensor(9.0)
            publisher.put(1)
            publisher.put(2)
            received = await receiver.fetch(2, parent=1)
            assert received.parent == -1 and equal(received.path, publisher.versions[2])

    asyncio.run(main())


@pytest.mark.parametrize("fails_at", [1, 4])
def test_a_disk_that_fills_up_while_deltas_are_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """No space in the middle of the new weights: the error names the place, nothing is shown, and with
    space again the delta that has come is not fetched a second time."""

    async def main() -> None:
        publisher, real, calls = Publisher(tmp_path), os.pwrite, 0
        publisher.put(0)
        async with receiving(publisher, tmp_path) as receiver:
            await receiver.fetch(0)
            publisher.put(1)

            def full(handle: int, data: Any, at: int) -> int:
                nonlocal calls
                calls += 1
                if calls >= fails_at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(handle, data, at)

            with monkeypatch.context() as patch:
                patch.setattr(rebuild_module.os, "pwrite", full)
                with pytest.raises(UserError, match=r"cannot be written: No space left.*free some space"):
                    await receiver.fetch(1)
            assert shown(tmp_path) == [0]
            asked = len(publisher.desk.asked)
            received = await receiver.fetch(1)
            assert received.bytes == 0 and len(publisher.desk.asked) == asked
            assert equal(received.path, publisher.versions[1])

    asyncio.run(main())


def test_what_came_can_be_passed_on(tmp_path: Path) -> None:
    """After the swap every chunk of the payload is on the shelf with the right bytes, and so is the full file
    that a version made by a delta has; what is thrown away is on the shelf no more."""

    async def main() -> None:
        publisher = Publisher(tmp_path, chunk_bytes=64 * KIB)
        for version in range(3):
            publisher.put(version, full=version == 1)
        async with receiving(publisher, tmp_path) as receiver:
            shelf = receiver.shelf

            def served(version: int, parent: int) -> bool:
                found = [(c, shelf.where(c.digest)) for c in publisher.store.payload(version, parent).chunks]
                return all(
                    place is not None
                    and place.path.read_bytes()[place.offset : place.offset + place.size]
                    == publisher.store.chunk(chunk.digest).read_bytes()
                    for chunk, place in found
                )

            await receiver.fetch(2)
            assert served(2, -1)
            holdings = shelf.holdings(2)
            assert holdings is not None and holdings.chunks == len(publisher.store.payload(2).chunks)
            publisher.put(3, full=True)
            await receiver.fetch(3, parent=2, route=LEARNER)
            assert served(3, 2) and served(3, -1)
            old = full_of(publisher.store.manifest(1)).chunks[0].digest
            publisher.put(4)
            await receiver.fetch(4)
            assert shown(tmp_path) == [3, 4] and shelf.where(old) is None

    asyncio.run(main())


def test_a_cancelled_fetch_of_a_chain_is_taken_up_again(tmp_path: Path) -> None:
    """Cancelled at any moment, a fetch shows nothing it should not, and the next one goes on from there."""

    async def main() -> None:
        publisher = Publisher(tmp_path, chunk_bytes=16 * KIB)
        for version in range(4):
            publisher.put(version, full=version == 1)
        async with receiving(publisher, tmp_path, streams=1) as receiver:
            for wait_s in (0.01, 0.03, 0.06, 0.1):
                fetching = asyncio.create_task(receiver.fetch(3))
                await asyncio.sleep(wait_s)
                fetching.cancel()
                await asyncio.gather(fetching, return_exceptions=True)
                assert set(shown(tmp_path)) <= {1, 3}
            received = await receiver.fetch(3)
            assert equal(received.path, publisher.versions[3])
            assert not list((tmp_path / "got").glob("unfinished-*"))

    asyncio.run(main())
