"""Deltas of snapshots: what was published comes back bit by bit, the same bytes whatever makes them."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.runtime.delta import codec, positions, values
from echo2.runtime.delta.codec import apply_delta, delta_pieces
from echo2.runtime.delta.layout import HEADER, ITEM_SIZES, Bytes, DeltaError, Kind

Tensors = dict[str, Bytes]


def random_words(rng: np.random.Generator, count: int, item: int) -> Bytes:
    """Bit patterns of weights, with every NaN, infinity and -0.0 pattern as likely as the rest of a tenth."""
    words = rng.integers(0, 256, count * item, dtype=np.uint8).view(f"u{item}")
    words[rng.random(count) < 0.05] = 1 << (8 * item - 1)  # -0.0
    words[rng.random(count) < 0.05] = (1 << (8 * item)) - 1  # a NaN with every bit set
    return words.view(np.uint8)


def changed(rng: np.random.Generator, old: Bytes, item: int, density: float, far: bool) -> Bytes:
    """Some values one unit in the last place away, or of a few far from theirs (`far`)."""
    new = old.copy()
    words = new.view(f"u{item}")
    at = np.flatnonzero(rng.random(len(words)) < density)
    if far:
        words[at] = rng.integers(0, 200, len(at))
    else:
        words[at] += rng.choice(np.array([1, (1 << (8 * item)) - 1], dtype=words.dtype), len(at))
    return new


def applied(delta: bytes, old: Tensors, items: Mapping[str, int], threads: int = 1) -> Tensors:
    """The tensors that a delta makes of `old`."""
    made: Tensors = {}
    sizes = {name: (array.nbytes, items[name]) for name, array in old.items()}
    apply_delta(io.BytesIO(delta), old.__getitem__, made.__setitem__, sizes, threads)
    return made


def encoded(old: Tensors, new: Tensors, items: Mapping[str, int], threads: int = 1, cut: int = 64) -> bytes:
    """A delta in slices of `cut` elements."""
    return b"".join(delta_pieces(old, new, items, threads, cut))


def one(old: Bytes, new: Bytes, item: int, cut: int = 1 << 20) -> bytes:
    """The delta of a single tensor."""
    return encoded({"w": old}, {"w": new}, {"w": item}, cut=cut)


tensors = st.lists(
    st.tuples(
        st.sampled_from(ITEM_SIZES),
        st.integers(0, 300),
        st.sampled_from([0.0, 0.003, 0.02, 0.1, 0.3, 0.7, 1.0]),
        st.booleans(),
    ),
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(tensors, st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 64, 4096]), st.sampled_from([1, 3]))
def test_any_tensors_come_back_bit_by_bit(
    shapes: list[tuple[int, int, float, bool]], seed: int, cut: int, threads: int
) -> None:
    """Every element size, length, density, slice length and number of threads: the new bytes exactly."""
    rng = np.random.default_rng(seed)
    items = {f"t{i}": shape[0] for i, shape in enumerate(shapes)}
    old = {f"t{i}": random_words(rng, n, item) for i, (item, n, _, _) in enumerate(shapes)}
    new = {
        f"t{i}": changed(rng, old[f"t{i}"], item, density, far)
        for i, (item, _, density, far) in enumerate(shapes)
    }
    made = applied(encoded(old, new, items, threads, cut), old, items, threads)
    assert list(made) == sorted(new)
    for name, array in new.items():
        assert made[name].tobytes() == array.tobytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.permutations(range(6)))
def test_the_bytes_depend_on_the_tensors_alone(seed: int, order: list[int]) -> None:
    """One thread or three, whatever the order of the mappings: the same delta."""
    rng = np.random.default_rng(seed)
    old = {f"t{i}": random_words(rng, 500, 2) for i in range(6)}
    new = {name: changed(rng, array, 2, 0.05, False) for name, array in old.items()}
    items = dict.fromkeys(old, 2)
    again = {f"t{i}": new[f"t{i}"] for i in order}
    assert encoded(old, new, items) == encoded(old, again, items, threads=3)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from(ITEM_SIZES))
def test_differences_fold_and_unfold(old: int, new: int, item: int) -> None:
    """Any two patterns: the folded difference leads back, and one unit is 1 or 2, wherever it carries."""
    mask = (1 << (8 * item)) - 1
    a, b = (np.array([x & mask], dtype=f"u{item}") for x in (old, new))
    assert values.unfolded(a, values.folded(a, b)) == b
    above = np.array([(int(a[0]) + 1) & mask], dtype=a.dtype)
    assert values.folded(a, above)[0] == 2 and values.folded(above, a)[0] == 1


@settings(deadline=None)
@given(st.sets(st.integers(0, 199_999), min_size=1, max_size=40), st.sampled_from([0, 3]))
def test_positions_come_back(chosen: set[int], rest: int) -> None:
    """Any positions, with gaps from 0 to far beyond two bytes, also in lengths that are no multiple of 8."""
    mask = np.zeros(200_000 + rest, dtype=np.bool_)
    mask[sorted(chosen)] = True
    kind, _, at, sections = positions.encode(mask, len(chosen))
    assert at.tolist() == sorted(chosen)
    assert positions.decode(kind, sections, len(chosen), len(mask)).tolist() == sorted(chosen)


@pytest.mark.parametrize(
    ("density", "far", "kind"),
    [
        (0.0005, False, Kind.GAPS16),
        (0.01, False, Kind.GAPS8),
        (0.2, False, Kind.BITMAP),
        (0.8, False, Kind.DENSE),
        (1.0, True, Kind.FULL),
    ],
)
def test_each_density_has_its_code(density: float, far: bool, kind: Kind) -> None:
    """From rare changes to new values everywhere the code changes, and none is larger than the tensor."""
    rng = np.random.default_rng(1)
    old = random_words(rng, 1 << 17, 2)
    new = changed(rng, old, 2, density, far)
    delta = one(old, new, 2)
    assert delta[HEADER.size + 1] == kind
    assert applied(delta, {"w": old}, {"w": 2})["w"].tobytes() == new.tobytes()
    assert len(delta) < old.nbytes + 100


def test_sparse_changes_cost_little_more_than_their_entropy() -> None:
    """1 % of bf16 values one unit up or down: within 15 % of the least that any code needs."""
    rng = np.random.default_rng(2)
    old = random_words(rng, 1 << 20, 2)
    new = changed(rng, old, 2, 0.01, False)
    count = int(np.count_nonzero(old.view("u2") != new.view("u2")))
    share = count / (1 << 20)
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    least = (1 << 20) * entropy + count  # a sign each
    assert least <= 8 * len(one(old, new, 2)) < 1.15 * least


def test_an_unchanged_tensor_costs_a_byte_and_no_copy() -> None:
    """A tensor without a change is one byte, and the receiver is given the array it holds."""
    rng = np.random.default_rng(3)
    old = {"a": random_words(rng, 100_000, 2), "b": random_words(rng, 10, 4)}
    items = {"a": 2, "b": 4}
    delta = encoded(old, old, items)
    assert len(delta) == HEADER.size + 2 + 5
    made = applied(delta, old, items)
    assert made["a"] is old["a"] and made["b"] is old["b"]


def test_the_old_tensors_are_left_as_they_are() -> None:
    """Neither side writes into the tensors it holds: both are read-only here."""
    rng = np.random.default_rng(4)
    old = random_words(rng, 1000, 4)
    new = changed(rng, old, 4, 0.3, True)
    old.flags.writeable = new.flags.writeable = False
    assert applied(one(old, new, 4), {"w": old}, {"w": 4})["w"].tobytes() == new.tobytes()


def test_pieces_leave_while_later_tensors_are_still_to_be_encoded() -> None:
    """Taking the first pieces reads only a bounded number of the tensors, and closing ends the threads."""
    rng = np.random.default_rng(5)
    names = [f"t{i:03}" for i in range(200)]
    old = {name: random_words(rng, 256, 2) for name in names}
    new = {name: changed(rng, array, 2, 0.5, False) for name, array in old.items()}
    read: list[str] = []

    class Watched(dict[str, Bytes]):
        def __getitem__(self, name: str) -> Bytes:
            read.append(name)
            return super().__getitem__(name)

    pieces = delta_pieces(Watched(old), new, dict.fromkeys(names, 2), threads=2)
    first = list(itertools.islice(pieces, 3))
    assert len(first) == 3 and len(set(read)) < 20
    pieces.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("delta")]


def test_a_delta_in_several_files_is_read_as_one(tmp_path: Path) -> None:
    """Chunk files one after another, cut anywhere, are the delta."""
    rng = np.random.default_rng(6)
    old = random_words(rng, 5000, 2)
    new = changed(rng, old, 2, 0.1, False)
    delta = one(old, new, 2)
    files = []
    for at in range(0, len(delta), 97):
        files.append(tmp_path / f"{at}")
        files[-1].write_bytes(delta[at : at + 97])
    made: Tensors = {}
    apply_delta(files, lambda _: old, made.__setitem__, {"w": (old.nbytes, 2)}, threads=2)
    assert made["w"].tobytes() == new.tobytes()


@pytest.mark.parametrize(
    ("new", "items", "match"),
    [
        ({"w": np.zeros(8, np.uint8), "v": np.zeros(8, np.uint8)}, {"w": 2, "v": 2}, "names or sizes"),
        ({"w": np.zeros(10, np.uint8)}, {"w": 2}, "names or sizes"),
        ({"w": np.zeros(8, np.uint8)}, {"w": 3}, "elements of 3"),
        ({"w": np.zeros(8, np.uint8)}, {}, "elements of 0"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(new: Tensors, items: dict[str, int], match: str) -> None:
    """Other names, sizes or element sizes: no delta, publish a full snapshot."""
    with pytest.raises(DeltaError, match=rf"{match}.*publish a full snapshot"):
        delta_pieces({"w": np.zeros(8, np.uint8)}, new, items)


def test_an_error_of_the_receiver_ends_it() -> None:
    """What `put` raises comes out as it is, and no thread stays."""

    def full(name: str, array: Bytes) -> None:
        raise OSError("disk full")

    rng = np.random.default_rng(7)
    old = random_words(rng, 5000, 2)
    delta = one(old, changed(rng, old, 2, 0.1, False), 2, cut=64)
    with pytest.raises(OSError, match="disk full"):
        apply_delta(io.BytesIO(delta), lambda _: old, full, {"w": (old.nbytes, 2)}, threads=2)
    assert not [t for t in threading.enumerate() if t.name.startswith("delta")]


def test_no_torch_is_needed() -> None:
    """Importing the codec loads neither torch nor pandas."""
    code = (
        f"import sys, {codec.__name__}; print([m for m in ('torch', 'pandas', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
