"""Deltas in the learner's store: what they are against, when a full file is written, what may go."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from echo2.errors import UserError
from echo2.runtime.transport import snapshot as snapshot_module
from echo2.runtime.transport import store as store_module
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.snapshot import SnapshotStore, distinct_chunks
from tests.transport_kit import KEY, RUN, full_of, weights

KIB = 1024
Weights = dict[str, torch.Tensor]


def store_at(path: Path, **options: Any) -> SnapshotStore:
    """A store with small chunks and no model files."""
    return SnapshotStore(path / "store", RUN, [], KEY, **{"chunk_bytes": 16 * KIB, **options})


def after(before: Weights, version: int) -> Weights:
    """Weights of which a few values have changed."""
    changed = {name: tensor.clone() for name, tensor in before.items()}
    changed["z.first"][version % len(changed["z.first"]), :3] += 0.1
    return changed


def files_in(path: Path) -> set[str]:
    """Names of the chunk files of a store."""
    return {file.name for file in (path / "store" / "chunks").rglob("*") if file.is_file()}


def test_a_delta_is_against_the_version_before(tmp_path: Path) -> None:
    """The first version is a full file whatever is asked; then deltas name their parent and its weights, and
    are small; a full file is written beside one when that is asked for."""
    store, now = store_at(tmp_path), weights()
    made = [store.put(0, now, full=False)]
    for version in (2, 3, 7):
        now = after(now, version)
        made.append(store.put(version, now, full=version == 7))
    assert [m.full is not None for m in made] == [True, False, False, True]
    assert made[0].delta is None and made[0].parent == -1
    for before, manifest in pairwise(made):
        assert (manifest.parent, manifest.parent_weights) == (before.version, before.weights)
        assert manifest.delta is not None and manifest.delta.size < full_of(made[0]).size / 50
    assert store.put(8, after(now, 8), delta=False).delta is None


def test_a_delta_that_would_not_be_smaller_is_not_kept(tmp_path: Path) -> None:
    """Where every bit changes, a full file is written instead, and nothing of the delta stays on disk."""
    store, noise = store_at(tmp_path), torch.Generator().manual_seed(0)

    def random_bytes() -> Weights:
        return {"w": torch.randint(0, 256, (100_000,), generator=noise, dtype=torch.uint8)}

    store.put(0, random_bytes())
    manifest = store.put(1, random_bytes(), full=False)
    assert manifest.full is not None and manifest.delta is None
    assert files_in(tmp_path) == {c.digest for v in (0, 1) for c in distinct_chunks(store.manifest(v))}


def test_other_tensors_than_before_make_a_full_file(tmp_path: Path) -> None:
    """A tensor more, or of another shape or dtype, cannot be a delta."""
    store, now = store_at(tmp_path), weights()
    store.put(0, now)
    for version, change in enumerate(
        ({"more": torch.zeros(3)}, {"more": torch.zeros(1, 3)}, {"more": torch.zeros(1, 3).int()}), start=1
    ):
        manifest = store.put(version, now | change, full=False)
        assert manifest.full is not None and manifest.delta is None


def test_the_store_keeps_bits_of_its_own(tmp_path: Path) -> None:
    """Tensors that are trained on in place after a put do not change what the next delta is against."""
    store, model = store_at(tmp_path), torch.nn.Linear(256, 64)
    parameters = dict(model.named_parameters())
    first = store.put(0, parameters)
    with torch.no_grad():
        model.weight[3, 3] += 1.0
    second = store.put(1, parameters, full=False)
    assert second.delta is not None and second.parent_weights == first.weights
    assert store_at(tmp_path / "other").put(0, parameters).weights == second.weights != first.weights


def test_after_a_resume_the_next_version_is_full(tmp_path: Path) -> None:
    """A store that is opened again, or whose later versions were forgotten, has no baseline to go on from."""
    store, now = store_at(tmp_path, keep=9), weights()
    for version in range(3):
        store.put(version, now := after(now, version), full=False)
    store.forget_above(1)
    assert store.versions == (0, 1)
    assert store.put(2, now, full=False).full is not None
    again = store_at(tmp_path, keep=9)
    assert again.versions == (0, 1, 2)
    assert again.put(3, after(now, 3), full=False).full is not None
    with pytest.raises(UserError, match="version 1 cannot be put after version 3; versions only go up"):
        again.put(1, now)


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_full_disk_does_not_move_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """A version that could not be written is no parent: the next delta is against the last whole one."""
    store, now = store_at(tmp_path), weights()
    whole = store.put(0, now)
    before, real, calls = files_in(tmp_path), store_module.write_whole, 0

    def full(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_whole", full)
        patch.setattr(snapshot_module, "write_whole", full)
        with pytest.raises(UserError, match="cannot be written: No space left"):
            store.put(1, after(now, 1), full=False)
    assert files_in(tmp_path) == before and store.versions == (0,)
    manifest = store.put(2, after(now, 2), full=False)
    assert (manifest.parent, manifest.parent_weights) == (0, whole.weights) and manifest.delta is not None


def _die_at_the_manifest(path: Path) -> None:
    """In a process of its own: everything of version 1 is on disk but its manifest, then the power fails."""
    store, now = store_at(path), weights()
    store.put(0, now)
    snapshot_module.write_whole = lambda *_: os._exit(9)
    store.put(1, after(now, 1), full=True)


def test_a_crash_between_chunks_and_manifest(tmp_path: Path) -> None:
    """A learner killed after the last chunk of a version and before its manifest has never published it:
    the next life sweeps the chunks away and serves the version before."""
    child = multiprocessing.get_context("spawn").Process(target=_die_at_the_manifest, args=(tmp_path,))
    child.start()
    child.join(60)
    assert child.exitcode == 9
    left = files_in(tmp_path)
    store = store_at(tmp_path)
    assert store.versions == (0,) and files_in(tmp_path) < left
    assert files_in(tmp_path) == {c.digest for c in distinct_chunks(store.manifest(0))}


def test_a_version_whose_chain_is_broken_is_not_served_again(tmp_path: Path) -> None:
    """Where a delta in the middle is damaged on disk, a store opened again serves only what can be had."""
    store, now = store_at(tmp_path, keep=9), weights()
    for version in range(4):
        store.put(version, now := after(now, version), full=version == 3)
    lost = store.manifest(1).delta
    assert lost is not None
    store.chunk(lost.chunks[0].digest).unlink()
    assert store_at(tmp_path, keep=9).versions == (0, 3)


def test_the_budget_never_breaks_a_chain(tmp_path: Path) -> None:
    """With a budget of hardly more than one full file, the newest full file and all deltas after it stay,
    older ones go; a pinned version keeps what it is made from until it is unpinned."""
    size = full_of(store_at(tmp_path / "size").put(0, weights())).size
    store, now = store_at(tmp_path, keep=3, budget_bytes=size + 16 * KIB), weights()
    for version in range(8):
        now = after(now, version)
        store.put(version, now, full=version in (0, 4))
        if version == 2:
            store.pin(2)
    assert store.versions == (0, 1, 2, 4, 5, 6, 7)
    assert [m.version for m, _ in store.payload(2).files] == [0, 1, 2]
    store.unpin(2)
    assert store.versions == (4, 5, 6, 7) and store.bytes_on_disk() <= size + 16 * KIB
    assert [m.version for m, _ in store.payload(7).files] == [4, 5, 6, 7]
    for version, parent in ((7, 3), (6, -1), (7, 5)):
        assert store.payload(version, parent).target.version == version
    with pytest.raises(Refusal, match="no chain of deltas leads from version 1 to version 7"):
        store.payload(7, 1)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_served_can_be_had(tmp_path: Path, seed: int) -> None:
    """Through random puts, pins and unpins under a small budget, the newest and every pinned version have a
    chain from a full file whose chunks are all on disk, and no other chunk file is."""
    chance, now, pinned = random.Random(seed), weights(rows=16), list[int]()
    budget = chance.choice([None, 20 * KIB, 60 * KIB])
    store = store_at(tmp_path, keep=chance.choice([1, 2, 4]), budget_bytes=budget, chunk_bytes=4 * KIB)
    for version in range(14):
        now = after(now, version)
        store.put(version, now, full=chance.random() < 0.25, delta=chance.random() < 0.9)
        if chance.random() < 0.3:
            pinned.append(store.pin(chance.choice(store.versions)))
        if pinned and chance.random() < 0.3:
            store.unpin(pinned.pop(chance.randrange(len(pinned))))
        assert {version, *pinned} <= set(store.versions)
        for served in store.versions:
            for chunk in store.payload(served).chunks:
                assert store.chunk(chunk.digest).stat().st_size == chunk.size
        kept = {c.digest for v in store.versions for c in distinct_chunks(store.manifest(v))}
        assert files_in(tmp_path) == kept
