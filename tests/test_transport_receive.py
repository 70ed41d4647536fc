"""Fetching snapshots over real HTTP: whole and verified, or not at all."""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from echo2.errors import UserError
from echo2.runtime.transport import disk as disk_module
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.manifest_check import SnapshotError, check_manifest, files_of
from echo2.runtime.transport.messages import Manifest
from echo2.runtime.transport.model_files import model_files_of
from echo2.runtime.transport.receive import SnapshotReceiver
from echo2.runtime.transport.server import Server, make_app
from echo2.runtime.transport.shaping import Shaper
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.runtime.transport.tensor_table import weights_digest
from tests.transport_kit import KEY, RUN, TOKEN, Cutter, Desk, full_of, joined, model_dir, serving, weights

KIB = 1024


def desk_with(path: Path, *versions: int, chunk_bytes: int = 16 * KIB, rows: int = 256) -> Desk:
    """A coordinator with snapshots of these versions, of about `rows` KiB each."""
    files = model_files_of(model_dir(path / "model"))
    store = SnapshotStore(path / "store", RUN, files, KEY, chunk_bytes, keep=10)
    for version in versions:
        store.put(version, weights(version, rows))
    return Desk(store)


@asynccontextmanager
async def receiving(
    desk: Desk, path: Path, uplink: Shaper | None = None, **options: Any
) -> AsyncIterator[tuple[SnapshotReceiver, Client]]:
    """A receiver that writes under `path`/got and a client that has said hello, on a server of their own."""
    async with serving(desk, uplink=uplink) as server, joined(server.url) as client:
        yield SnapshotReceiver(client, path / "got", **options), client


def names(path: Path) -> list[str]:
    """What lies in the receiver's directory."""
    return sorted(p.name for p in (path / "got").iterdir()) if (path / "got").exists() else []


def first_chunk(desk: Desk) -> str:
    """The digest of the first chunk of the newest weights."""
    assert desk.store is not None
    return full_of(desk.store.manifest()).chunks[0].digest


def test_a_snapshot_arrives_whole_and_verified(tmp_path: Path) -> None:
    """The model directory has the very tensors and files that were put, and the manifest's identity."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0, 1)
        async with receiving(desk, tmp_path) as (receiver, _):
            received = await receiver.fetch()
            assert received.manifest.version == 1 and received.bytes >= 256 * KIB
            found = load_file(received.path / "model.safetensors")
            assert all(torch.equal(found[n], t) for n, t in weights(1, 256).items())
            assert weights_digest(received.path) == received.manifest.weights
            for file in model_dir(tmp_path / "model").iterdir():
                assert (received.path / file.name).read_bytes() == file.read_bytes()
            asked = len(desk.asked)
            again = await receiver.fetch(1)
            assert (again.path, again.bytes, len(desk.asked)) == (received.path, 0, asked)
            assert (await receiver.fetch(0)).manifest.version == 0

    asyncio.run(main())


def test_what_is_on_disk_is_not_fetched_again(tmp_path: Path) -> None:
    """A version that shares all chunks but one with the last fetches that one; only two versions are kept."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0)
        assert desk.store is not None
        async with receiving(desk, tmp_path) as (receiver, _):
            await receiver.fetch(0)
            for version in (1, 2):
                changed = weights(0, 256) | {"scalar": torch.tensor(float(version))}
                desk.store.put(version, changed)
                asked = len(desk.asked)
                received = await receiver.fetch(version)
                assert len(desk.asked) - asked == 1 and received.bytes <= 16 * KIB
                assert load_file(received.path / "model.safetensors")["scalar"] == version
            assert [n[:16] for n in names(tmp_path)] == ["version-00000001", "version-00000002"]

    asyncio.run(main())


def test_a_tampered_chunk_is_never_applied(tmp_path: Path) -> None:
    """A chunk with one flipped bit is refused by name after three tries; nothing appears; later it works."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0)
        digest = first_chunk(desk)
        assert desk.store is not None
        data = bytearray(desk.store.chunk(digest).read_bytes())
        data[100] ^= 1
        bad = tmp_path / "bad"
        bad.write_bytes(data)
        desk.tampered[digest] = bad
        async with receiving(desk, tmp_path, streams=1) as (receiver, client):
            said = f"chunk {digest} of snapshot 0 from {re.escape(client.url)} has the wrong digest; nothing"
            with pytest.raises(SnapshotError, match=said):
                await receiver.fetch(0)
            assert desk.asked.count(digest) == 3
            assert not [n for n in names(tmp_path) if n.startswith("version")]
            desk.tampered.clear()
            assert weights_digest((await receiver.fetch(0)).path) == desk.store.manifest().weights

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "said"), [(b"", "sends 16379 bytes of a chunk"), (b"more", "sends 16388 bytes of a chunk")]
)
def test_a_chunk_of_the_wrong_length_is_never_applied(tmp_path: Path, change: bytes, said: str) -> None:
    """A chunk that is always shorter or longer than the manifest says ends in an error, not in a hang."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0)
        digest = first_chunk(desk)
        assert desk.store is not None
        data = desk.store.chunk(digest).read_bytes()
        bad = tmp_path / "bad"
        bad.write_bytes(data + change if change else data[:-5])
        desk.tampered[digest] = bad
        async with receiving(desk, tmp_path, give_up_s=0.5) as (receiver, _):
            with pytest.raises(UserError, match=said):
                await receiver.fetch(0)
            assert not [n for n in names(tmp_path) if n.startswith("version")]

    asyncio.run(main())


def test_a_cut_connection_resumes_inside_the_chunk(tmp_path: Path) -> None:
    """Five connections cut in mid-chunk cost five more requests but not the bytes that had come."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0, chunk_bytes=1024 * KIB, rows=1024)
        async with serving(desk) as server:
            cutter = Cutter(server.port, 0, 200_000)
            async with cutter.listening() as url, joined(url) as client:
                manifest = await client.manifest(0)
                cutter.cuts = 5
                receiver = SnapshotReceiver(client, tmp_path / "got", streams=1)
                received = await receiver.fetch(0)
                total = sum(f.size for f in files_of(manifest))
                assert cutter.cuts == 0
                assert received.bytes == total
                assert weights_digest(received.path) == manifest.weights

    asyncio.run(main())


def test_a_restarted_server_is_picked_up_in_mid_download(tmp_path: Path) -> None:
    """The server stops half-way and comes back on its port: the fetch goes on, and fetches nothing twice."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0, chunk_bytes=64 * KIB, rows=1024)
        slow = Shaper(4e6)
        server = Server(make_app(desk, TOKEN, uplink=slow))
        await server.start()
        async with joined(server.url) as client:
            fetching = asyncio.create_task(SnapshotReceiver(client, tmp_path / "got").fetch(0))
            await asyncio.sleep(0.7)
            await server.stop()
            assert not fetching.done()
            desk.leases.clear()
            async with serving(desk, port=server.port):
                received = await asyncio.wait_for(fetching, 20)
        assert desk.store is not None
        assert weights_digest(received.path) == desk.store.manifest(0).weights
        assert received.bytes < 1.1 * 1024 * KIB

    asyncio.run(main())


def test_cancelling_leaves_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """A cancelled fetch shows no version; the next one takes over the chunks that had come."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0, rows=512)
        async with receiving(desk, tmp_path, Shaper(4e6)) as (receiver, _):
            for _ in range(2):
                fetching = asyncio.create_task(receiver.fetch(0))
                await asyncio.sleep(0.3)
                fetching.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await fetching
                assert [n.partition("-")[0] for n in names(tmp_path)] == ["unfinished"]
            received = await receiver.fetch(0)
            assert received.bytes < 0.8 * 512 * KIB
            assert weights_digest(received.path) == received.manifest.weights
            assert [n.partition("-")[0] for n in names(tmp_path)] == ["version"]

    asyncio.run(main())


def test_a_damaged_copy_on_disk_is_replaced(tmp_path: Path) -> None:
    """Weights or a model file changed on this disk are not taken as verified; the wrong chunk is fetched."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0)
        async with receiving(desk, tmp_path) as (receiver, _):
            received = await receiver.fetch(0)
            with (received.path / "model.safetensors").open("r+b") as stream:
                stream.seek(50_000)
                stream.write(b"\xff\xfe\xfd")
            again = await receiver.fetch(0)
            assert 0 < again.bytes <= 16 * KIB
            assert weights_digest(again.path) == again.manifest.weights
            (again.path / "config.json").write_bytes(b"x" * (again.path / "config.json").stat().st_size)
            once_more = await receiver.fetch(0)
            assert "of" in (once_more.path / "config.json").read_text() and 0 < once_more.bytes < 100

    asyncio.run(main())


def test_a_version_made_anew_is_fetched_anew(tmp_path: Path) -> None:
    """After a resume the same version has other weights: the receiver has them, not the old ones."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0, 1)
        assert desk.store is not None
        async with receiving(desk, tmp_path) as (receiver, _):
            old = await receiver.fetch(1)
            desk.store.forget_above(0)
            desk.store.put(1, weights(7, 256))
            new = await receiver.fetch(1)
            assert new.path != old.path and new.manifest.weights != old.manifest.weights
            assert weights_digest(new.path) == new.manifest.weights

    asyncio.run(main())


def test_a_full_disk_on_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room is seen before a byte is fetched; a disk that fills up meanwhile names its path."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0)
        async with receiving(desk, tmp_path) as (receiver, _):
            with monkeypatch.context() as patch:
                usage = shutil.disk_usage(tmp_path)._replace(free=1000)
                patch.setattr(shutil, "disk_usage", lambda _path: usage)
                with pytest.raises(SnapshotError, match=r"more bytes in .*got', which has 1,000 free"):
                    await receiver.fetch(0)
            assert desk.asked == []
            with monkeypatch.context() as patch:

                def full(*_: object) -> None:
                    with disk_module.explained(tmp_path / "got"):
                        raise OSError(errno.ENOSPC, "No space left on device")

                patch.setattr(disk_module, "place", full)
                with pytest.raises(UserError, match=r"got' cannot be written: No space left.*free some"):
                    await receiver.fetch(0)
            assert not [n for n in names(tmp_path) if n.startswith("version")]

    asyncio.run(main())


def test_a_snapshot_that_is_gone_is_told(tmp_path: Path) -> None:
    """A version that is not served is an error that lists those that are; one that vanishes says so."""

    async def main() -> None:
        desk = desk_with(tmp_path, 3)
        assert desk.store is not None
        async with receiving(desk, tmp_path) as (receiver, _):
            with pytest.raises(UserError, match="no snapshot 2; there is 3"):
                await receiver.fetch(2)
            desk.store.chunk(first_chunk(desk)).unlink()
            with pytest.raises(SnapshotError, match="snapshot 3 is no longer served"):
                await receiver.fetch(3)

    asyncio.run(main())


def changed(manifest: Manifest, **fields: Any) -> Manifest:
    """The manifest with other fields, unchecked."""
    return manifest.model_copy(update=fields)


def test_manifests_that_cannot_be_right(tmp_path: Path) -> None:
    """Each thing that does not add up in a manifest is refused by name before a byte is fetched."""
    store = desk_with(tmp_path, 2).store
    assert store is not None
    good = store.manifest()
    check_manifest(good, -1, RUN, 10**9)
    check_manifest(good, 2, RUN, 10**9)
    file, model = full_of(good), good.model_files[0]
    delta = file.model_copy(update={"name": "delta.echo2"})
    parent = {"parent": 1, "parent_weights": "0" * 64}

    def named(name: str) -> Manifest:
        return changed(good, model_files=(model.model_copy(update={"name": name}),))

    cases = [
        (changed(good, run_id="other"), "of run 'other'"),
        (changed(good, version=3), "asked for version 2"),
        (changed(good, full=file.model_copy(update={"name": "x.safetensors"})), "must be one model"),
        (changed(good, full=None), "neither a full file nor a delta"),
        (changed(good, full=file.model_copy(update={"size": file.size + 1})), "its chunks have"),
        (changed(good, full=file.model_copy(update={"chunks": file.chunks[1:]})), "its chunks have"),
        (changed(good, delta=file, **parent), "must be one delta.echo2"),
        (changed(good, delta=delta), "a delta without a parent"),
        (changed(good, **parent), "names a parent without a delta"),
        (changed(good, delta=delta, **parent | {"parent": 2}), "a parent comes before it"),
        (changed(good, delta=delta.model_copy(update={"size": 2**40}), **parent), "its chunks have"),
        (changed(good, model_files=(model, model)), "two files"),
        (changed(good, tensors=(*good.tensors, good.tensors[0])), "lists a tensor twice"),
        (changed(good, tensors=good.tensors[1:]), "does not have the digest"),
        (changed(good, weights="0" * 64), "does not have the digest"),
        *(
            (named(name), "may not go")
            for name in ("..", "run.py", "pytorch_model.bin", "a/b.json", "é.json")
        ),
    ]
    for manifest, said in cases:
        with pytest.raises(SnapshotError, match=said):
            check_manifest(manifest, 2, RUN, 10**9)
    with pytest.raises(SnapshotError, match="takes at most 1,000"):
        check_manifest(good, 2, RUN, 1000)


def test_a_table_that_lies_about_its_file_is_not_applied(tmp_path: Path) -> None:
    """Chunks that are right but hold other tensors than the manifest lists are refused after the fetch."""

    async def main() -> None:
        desk = desk_with(tmp_path, 0, 1)
        assert desk.store is not None
        honest, other = desk.store.manifest(1), desk.store.manifest(0)
        no_delta = {"delta": None, "parent": -1, "parent_weights": None}
        liar = changed(honest, tensors=other.tensors, weights=other.weights, **no_delta)
        async with receiving(desk, tmp_path) as (receiver, _):
            desk.store.signed = lambda version=-1: KEY.sign(liar)  # type: ignore[method-assign]
            with pytest.raises(
                SnapshotError, match=r"tensor '.*' of snapshot 1 is not what its manifest says"
            ):
                await receiver.fetch(1)
            assert not [n for n in names(tmp_path) if n.startswith("version")]

    asyncio.run(main())
