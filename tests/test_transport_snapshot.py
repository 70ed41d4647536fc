"""Snapshots on the learner's host: bytes, digests, what is kept and what a full disk does."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from echo2.errors import UserError
from echo2.runtime.transport import snapshot as snapshot_module
from echo2.runtime.transport import store as store_module
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.digests import digest_of
from echo2.runtime.transport.messages import Manifest
from echo2.runtime.transport.model_files import harmless, model_files_of
from echo2.runtime.transport.snapshot import SnapshotStore, distinct_chunks
from echo2.runtime.transport.store import cut
from echo2.runtime.transport.tensor_table import read_entries, weights_digest
from tests.transport_kit import KEY, RUN, full_of, model_dir, weights

KIB = 1024


def store_at(path: Path, **options: Any) -> SnapshotStore:
    """A store with small chunks."""
    files = model_files_of(model_dir(path / "model"))
    return SnapshotStore(path / "store", RUN, files, KEY, **{"chunk_bytes": 16 * KIB, **options})


def joined_bytes(store: SnapshotStore, manifest: Manifest) -> bytes:
    """The weights file put together from its chunks."""
    return b"".join(store.chunk(c.digest).read_bytes() for c in full_of(manifest).chunks)


def files_in(path: Path) -> set[str]:
    """Names of the chunk files of a store."""
    return {file.name for file in (path / "store" / "chunks").rglob("*") if file.is_file()}


def test_the_chunks_make_a_safetensors_file_with_the_same_values(tmp_path: Path) -> None:
    """safetensors loads the joined chunks and finds every tensor, bit for bit, of every dtype and shape."""
    store, sent = store_at(tmp_path), weights()
    manifest = store.put(0, sent)
    file = tmp_path / "joined.safetensors"
    file.write_bytes(joined_bytes(store, manifest))
    found = load_file(file)
    assert found.keys() == sent.keys()
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert [c.size for c in full_of(manifest).chunks[:-1]] == [16 * KIB] * (len(full_of(manifest).chunks) - 1)
    assert read_entries(file) == manifest.tensors


def test_the_identity_is_of_the_values(tmp_path: Path) -> None:
    """`weights` is the same for tensors in any order, cut anyhow, in one file or two; one bit changes it."""
    sent = weights()
    manifest = store_at(tmp_path).put(0, sent)
    other = store_at(tmp_path / "other", chunk_bytes=1000).put(5, dict(reversed(sent.items())))
    assert manifest.weights == other.weights and full_of(manifest).size == full_of(other).size
    folder = tmp_path / "split"
    folder.mkdir()
    names = sorted(sent)
    save_file({n: sent[n] for n in names[:2]}, folder / "1.safetensors")
    save_file({n: sent[n] for n in names[2:]}, folder / "2.safetensors")
    assert weights_digest(folder) == manifest.weights
    sent["z.first"][0, 0] += 1e-3
    assert store_at(tmp_path).put(1, sent).weights != manifest.weights


def test_non_contiguous_and_gradient_tensors(tmp_path: Path) -> None:
    """A transposed view and a parameter that needs gradients are stored by value."""
    base = torch.randn(8, 4)
    viewed = store_at(tmp_path).put(0, {"w": base.t()})
    plain = store_at(tmp_path / "b").put(0, {"w": torch.nn.Parameter(base.t().contiguous())})
    assert viewed.weights == plain.weights and viewed.tensors[0].shape == (4, 8)


def test_equal_chunks_are_stored_once(tmp_path: Path) -> None:
    """A second version with one changed tensor adds the chunks that changed, and no others."""
    store = store_at(tmp_path)
    first = store.put(0, weights())
    before = files_in(tmp_path)
    changed = weights()
    changed["scalar"] = torch.tensor(4.0)
    second = store.put(1, changed, delta=False)
    assert first.weights != second.weights
    assert len(files_in(tmp_path) - before) == 1
    assert store.bytes_on_disk() < 1.5 * full_of(first).size


def test_the_newest_are_kept_and_the_pinned(tmp_path: Path) -> None:
    """Of five versions the last two stay and a pinned one until it is unpinned as often as pinned."""
    store = store_at(tmp_path)
    store.put(0, weights(0))
    assert store.pin(-1) == 0 and store.pin(0) == 0
    for version in range(1, 5):
        store.put(version, weights(version))
    assert store.versions == (0, 3, 4) and store.manifest().version == 4
    store.unpin(0)
    assert store.versions == (0, 3, 4)
    store.unpin(0)
    store.unpin(0)
    assert store.versions == (3, 4)
    held = {c.digest for v in store.versions for c in distinct_chunks(store.manifest(v))}
    held |= {c.digest for f in store.manifest().model_files for c in f.chunks}
    assert files_in(tmp_path) == held
    for call in (store.manifest, store.pin):
        with pytest.raises(Refusal, match="no snapshot 0; there is 3, 4") as refused:
            call(0)
        assert refused.value.status == 404


def test_the_budget_takes_older_ones_first(tmp_path: Path) -> None:
    """With room for one and a half versions only the newest stays, but a pinned one is never taken."""
    store = store_at(tmp_path, keep=3, budget_bytes=100 * KIB)
    for version in range(3):
        store.put(version, weights(version))
    assert store.versions == (2,)
    store.pin(2)
    store.put(3, weights(3))
    assert store.versions == (2, 3)


def test_a_store_is_opened_again(tmp_path: Path) -> None:
    """A new process finds the versions that are whole, sweeps the rest, and refuses another run's store."""
    store = store_at(tmp_path)
    kept = store.put(0, weights(0))
    broken = store.put(1, weights(1))
    store.chunk(full_of(broken).chunks[1].digest).unlink()
    stray = tmp_path / "store" / "chunks" / "ab" / ".left.partial"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"half")
    again = store_at(tmp_path)
    assert again.versions == (0,) and again.manifest(0) == kept
    assert not stray.exists() and len(files_in(tmp_path)) == len({c.digest for c in distinct_chunks(kept)})
    with pytest.raises(UserError, match="run 'run-1', not 'other'"):
        SnapshotStore(tmp_path / "store", "other", [], KEY)


def test_a_chunk_damaged_between_two_lives_is_written_again(tmp_path: Path) -> None:
    """After a power failure a chunk file may have its size and not its bytes; a resumed run that stores the
    same weights puts that right."""
    manifest = store_at(tmp_path).put(0, weights())
    digest = full_of(manifest).chunks[1].digest
    file = store_at(tmp_path).chunk(digest)
    file.write_bytes(bytes(file.stat().st_size))
    again = store_at(tmp_path)
    assert again.put(0, weights()).weights == manifest.weights
    assert digest_of(again.chunk(digest).read_bytes()) == digest


def test_a_resumed_run_makes_versions_anew(tmp_path: Path) -> None:
    """Versions above the checkpoint go, pinned or not; a version can be put again with other weights."""
    store = store_at(tmp_path, keep=5)
    for version in range(3):
        store.put(version, weights(version))
    store.pin(2)
    store.forget_above(0)
    assert store.versions == (0,)
    store.unpin(2)
    made = store.put(1, weights(9))
    assert store.manifest().weights == made.weights
    replaced = store.put(1, weights(10))
    assert store.manifest(1).weights == replaced.weights != made.weights


@pytest.mark.parametrize("fails_at", [0, 2, 5])
def test_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """No space at any chunk or at the manifest: an error names the path, no new file stays, old ones do."""
    store = store_at(tmp_path)
    before = store.put(0, weights(0))
    files = files_in(tmp_path)
    real, calls = store_module.write_whole, 0

    def full(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_whole", full)
        patch.setattr(snapshot_module, "write_whole", full)
        with pytest.raises(UserError, match=r"store' cannot be written: No space left.*free some space"):
            store.put(1, weights(1))
    assert files_in(tmp_path) == files and store.versions == (0,)
    (tmp_path / "still.safetensors").write_bytes(joined_bytes(store, before))
    assert weights_digest(tmp_path / "still.safetensors") == before.weights
    assert store.put(1, weights(1)).version == 1


def test_a_dtype_without_place_is_refused(tmp_path: Path) -> None:
    """A complex tensor is a user's error that names it, and nothing is stored."""
    store = store_at(tmp_path)
    with pytest.raises(UserError, match="'w' is of dtype complex64"):
        store.put(0, {"w": torch.zeros(2, dtype=torch.complex64)})
    assert store.versions == ()


def test_chunks_are_asked_for_by_digest_only(tmp_path: Path) -> None:
    """A path, an unknown digest or a digest in capitals gets 404."""
    store = store_at(tmp_path)
    digest = full_of(store.put(0, weights())).chunks[0].digest
    assert store.chunk(digest).is_file()
    for wrong in ("../../manifests/00000000.json", "0" * 64, digest.upper(), digest[:-1], ""):
        with pytest.raises(Refusal) as refused:
            store.chunk(wrong)
        assert refused.value.status == 404


def test_readers_are_not_kept_waiting_and_never_see_half(tmp_path: Path) -> None:
    """While versions are put and unpinned in threads, every manifest that is seen has all its chunks."""
    store, stop = store_at(tmp_path, keep=3), threading.Event()
    wrong: list[Refusal] = []

    def read() -> None:
        try:
            while not stop.is_set():
                if store.versions:
                    version = store.pin(-1)
                    for chunk in full_of(store.manifest(version)).chunks:
                        store.chunk(chunk.digest)
                    store.unpin(version)
        except Refusal as refusal:
            wrong.append(refusal)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for version in range(12):
            store.put(version, weights(version % 4))
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
    assert not wrong and store.versions == (9, 10, 11)


def test_model_files(tmp_path: Path) -> None:
    """Configuration and tokenizer travel, weights and code do not; a tokenizer must be there."""
    folder = model_dir(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "modeling.py").write_text("")
    names = [file.name for file in model_files_of(folder)]
    assert names == ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        model_files_of(folder)
    assert model_files_of(folder, tokenizer=False)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config\.json"):
        model_files_of(folder)
    with pytest.raises(UserError, match="may not travel"):
        SnapshotStore(tmp_path / "s", RUN, [folder / "modeling.py"], KEY)
    for bad in ("..", ".json", "a/b.json", "x.py", "pytorch_model.bin", "model.safetensors", "a\n.json"):
        assert not harmless(bad), bad


def test_damaged_files_have_no_identity(tmp_path: Path) -> None:
    """A file cut short, with a gap, an absurd header or no tensors is a user's error."""
    whole = tmp_path / "whole.safetensors"
    save_file({"w": torch.zeros(4)}, whole)
    data = whole.read_bytes()
    broken = tmp_path / "broken.safetensors"
    cases = (data[:-1], data + b"\0", data[:4], b"\xff" * 64, b"", data.replace(b"[0,16]", b"[1,17]"))
    for case in cases:
        broken.write_bytes(case)
        with pytest.raises(UserError, match="not a whole safetensors file"):
            weights_digest(broken)
    with pytest.raises(UserError, match="no safetensors weights"):
        weights_digest(tmp_path / "nothing")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 40))
def test_cutting_keeps_every_byte(pieces: list[bytes], size: int) -> None:
    """Parts joined are the pieces joined; all parts but the last are full, none is empty."""
    parts = [bytes(part) for part in cut(pieces, size)]
    assert b"".join(parts) == b"".join(pieces)
    assert all(len(part) == size for part in parts[:-1]) and all(parts)


def test_one_chunk_may_be_put_by_many_threads_at_once(tmp_path: Path) -> None:
    """A full file and a delta of one version that hold the same chunk do not get in each other's way."""
    store = store_module.ChunkStore(tmp_path)
    data, errors = b"x" * (256 * KIB), list[BaseException]()
    ready = threading.Barrier(8)

    def put() -> None:
        try:
            for k in range(40):
                ready.wait(30)
                store.put(data + bytes([k]))
        except BaseException as error:
            errors.append(error)
            ready.abort()

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not list(tmp_path.glob("*/.*"))
