"""Which chunks lead from one version to another, and how large chunks are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.runtime.transport.chain import (
    FLOOR_BYTES,
    cheapest,
    chunk_bytes_of,
    follows,
    needed_for,
    next_chunk_bytes,
    payload_of,
)
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Chunk, File, Manifest, TensorEntry
from echo2.runtime.transport.store import cut

KIB, MIB = 1 << 10, 1 << 20
FULL, DELTA = 1000, 10


def weights_of(version: int) -> str:
    """Their identity in these tests."""
    return f"{version:064x}"


def file(name: str, version: int, size: int) -> File:
    """A file of one chunk."""
    kind = 1 if name == "delta.echo2" else 2
    chunk = Chunk(digest=f"{kind:x}{version:063x}", size=size)
    return File(name=name, size=size, chunks=(chunk,))


def manifest(version: int, full: bool, parent: int = -1, delta_bytes: int = DELTA) -> Manifest:
    """A manifest with the files it is said to have."""
    has_delta = parent >= 0
    return Manifest(
        run_id="r",
        version=version,
        parent=parent,
        parent_weights=weights_of(parent) if has_delta else None,
        weights=weights_of(version),
        tensors=(TensorEntry(name="w", dtype="F32", shape=(1,), digest=weights_of(version)),),
        full=file("model.safetensors", version, FULL) if full else None,
        delta=file("delta.echo2", version, delta_bytes) if has_delta else None,
        model_files=(),
    )


def run_of(*full: bool) -> dict[int, Manifest]:
    """Versions 0, 1, ... each a delta to the one before; those with True also a full file."""
    return {v: manifest(v, is_full, v - 1) for v, is_full in enumerate(full)}


def test_a_late_joiner_gets_the_newest_full_file_and_the_deltas_after_it() -> None:
    """From nothing to version 5: the full file of 3, then the deltas of 4 and 5, in this order."""
    manifests = run_of(True, False, False, True, False, False)
    payload = payload_of(manifests, 5)
    assert [m.version for m, _ in payload.files] == [3, 4, 5]
    assert [f.name for _, f in payload.files] == ["model.safetensors", "delta.echo2", "delta.echo2"]
    assert payload.chunks == tuple(c for _, f in payload.files for c in f.chunks)
    assert (payload.parent, payload.target.version, payload.bytes) == (-1, 5, FULL + 2 * DELTA)
    assert needed_for(5, manifests) == {3, 4, 5} and needed_for(3, manifests) == {3}
    assert needed_for(2, manifests) == {0, 1, 2}


def test_a_holder_gets_the_deltas_after_its_version() -> None:
    """From 1 to 4: the deltas of 2, 3 and 4, past the full file of 3."""
    payload = payload_of(run_of(True, False, False, True, False), 4, parent=1)
    assert [m.version for m in payload.steps] == [2, 3, 4]
    assert payload.base is None and payload.parent == 1 and payload.target.version == 4


def test_a_broken_chain_leads_nowhere() -> None:
    """A version missing in between, or of other weights than the delta is against, ends the chain."""
    manifests = run_of(True, False, False, False)
    gap = {v: m for v, m in manifests.items() if v != 1}
    swapped = manifests | {1: manifests[1].model_copy(update={"weights": weights_of(99)})}
    for broken in (gap, swapped):
        assert not follows(broken[2], broken.get(1))
        assert needed_for(3, broken) == frozenset() and needed_for(0, broken) == {0}
        for parent in (-1, 0):
            with pytest.raises(SnapshotError, match=r"no chain of deltas leads from .* to version 3"):
                payload_of(broken, 3, parent)
        assert payload_of(broken, 3, 1 if broken is swapped else 2).parent >= 1
    loop = {1: manifest(1, False, 2), 2: manifest(2, False, 1)}
    assert needed_for(2, loop) == frozenset()


def test_the_smallest_payload_wins() -> None:
    """Deltas from the newest version held; a full file where the deltas together are larger."""
    manifests = run_of(True, False, False, True, False)
    newest_first = [manifests[v] for v in (4, 3, 2, 1, 0)]
    assert cheapest([], {}) is None and cheapest(newest_first[:1], {}) is None

    def chosen(held: dict[int, set[str]]) -> tuple[int, list[int]]:
        payload = cheapest(newest_first, held)
        assert payload is not None
        return payload.parent, [m.version for m, _ in payload.files]

    assert chosen({}) == (-1, [3, 4])
    assert chosen({0: {weights_of(0)}}) == (0, [1, 2, 3, 4])
    assert chosen({0: {weights_of(0)}, 2: {weights_of(2)}}) == (2, [3, 4])
    assert chosen({2: {weights_of(7)}}) == (-1, [3, 4])
    fat = [manifest(2, True, 1, 900), manifest(1, False, 0, 900)]
    payload = cheapest(fat, {0: {weights_of(0)}})
    assert payload is not None and payload.base is fat[0] and not payload.steps


@given(st.integers(0, 2**45), st.sampled_from([1, 16 * KIB, MIB, 8 * MIB]))
def test_chunks_of_a_known_size(total: int, most: int) -> None:
    """At least 64 chunks where the floor of 64 KiB allows; never above the largest that is configured."""
    size = chunk_bytes_of(total, most)
    assert 1 <= size <= most
    assert size * 63 < total or size <= FLOOR_BYTES
    assert total / size <= 64 or size == most


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60 * MIB), st.sampled_from([100, 16 * KIB, 256 * KIB, 8 * MIB]))
def test_chunks_of_a_size_not_known_yet(total: int, most: int) -> None:
    """No chunk is more than 1/64 of the whole or 64 KiB, all bytes are there, and chunks do not shrink."""
    if total / most > 5000:
        total = 5000 * most
    data = bytes(total)
    sizes = [len(part) for part in cut([data], lambda written: next_chunk_bytes(written, most))]
    assert sum(sizes) == total and sizes[:-1] == sorted(sizes[:-1])
    assert max(sizes) <= min(most, max(FLOOR_BYTES, total // 64))
