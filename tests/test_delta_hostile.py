"""Deltas that are damaged or made to harm: a DeltaError or some output of the right size, nothing else."""

from __future__ import annotations

import io
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.delta import records
from echo2.runtime.delta.codec import apply_delta, delta_pieces
from echo2.runtime.delta.layout import (
    END,
    HEADER,
    LENGTH,
    MAGIC,
    RECORD,
    Bytes,
    DeltaError,
    Head,
    Kind,
    fingerprint,
)
from echo2.runtime.delta.sections import unpacked

COUNT = 3000
RNG = np.random.default_rng(0)
OLD = {name: RNG.integers(0, 256, COUNT * 2, dtype=np.uint8) for name in "abcde"}
SIZES = dict.fromkeys(OLD, (COUNT * 2, 2))


def _new() -> dict[str, Bytes]:
    made = {name: array.copy() for name, array in OLD.items()}
    for name, share in (("a", 0.001), ("b", 0.02), ("c", 0.3), ("d", 0.9)):
        words = made[name].view("u2")
        words[RNG.random(COUNT) < share] += 1
    made["e"] = RNG.integers(0, 200, COUNT, dtype=np.uint16).view(np.uint8)
    return made


NEW = _new()
DELTA = b"".join(delta_pieces(OLD, NEW, dict.fromkeys(OLD, 2), slice_elements=1000))


def outcome(delta: bytes, threads: int = 1) -> dict[str, Bytes] | str:
    """The tensors a delta gives, or its DeltaError; any other exception is the test's failure."""
    made: dict[str, Bytes] = {}
    try:
        apply_delta(io.BytesIO(delta), OLD.__getitem__, made.__setitem__, SIZES, threads)
    except DeltaError as error:
        return str(error)
    assert {name: array.nbytes for name, array in made.items()} == {n: s for n, (s, _) in SIZES.items()}
    return made


def one_tensor(records_bytes: bytes, elements: int = COUNT) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A delta of one tensor with a right header and end around the given records."""
    sizes = {"w": (elements * 2, 2)}
    body = HEADER.pack(MAGIC, 1 << 20, fingerprint(sizes)) + b"\x01" + records_bytes + END
    return body + LENGTH.pack(zlib.crc32(body)), sizes


def refused(records_bytes: bytes, match: str, elements: int = COUNT) -> None:
    """The records are refused, with little memory."""
    delta, sizes = one_tensor(records_bytes, elements)
    old = np.zeros(elements * 2, dtype=np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(DeltaError, match=match):
            apply_delta(io.BytesIO(delta), lambda _: old, lambda _n, _a: None, sizes)
        assert tracemalloc.get_traced_memory()[1] < 4e6 + 20 * old.nbytes
    finally:
        tracemalloc.stop()


def record(kind: int, planes: int, count: int, stream: int, *sections: bytes) -> bytes:
    """A record with whatever numbers and stored sections."""
    stored = b"".join(LENGTH.pack(len(s)) + s for s in sections)
    return bytes([kind]) + RECORD.pack(planes, count, stream) + stored


def test_the_whole_delta_is_right() -> None:
    """The delta that the other tests damage holds every kind of record, and gives the new tensors."""
    made = outcome(DELTA)
    assert not isinstance(made, str)
    assert all(np.array_equal(made[name], NEW[name]) for name in NEW)
    heads = {records.encode(OLD[n].view("u2")[:1000], NEW[n].view("u2")[:1000])[0] for n in NEW}
    assert {Kind.GAPS8, Kind.BITMAP, Kind.DENSE, Kind.FULL} <= heads


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(DELTA) - 1))
def test_a_delta_cut_short_is_refused(length: int) -> None:
    """Any prefix is a DeltaError, also one that ends after a tensor."""
    assert isinstance(outcome(DELTA[:length]), str)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 8 * len(DELTA) - 1), st.sampled_from([1, 2]))
def test_any_flipped_bit_is_found(bit: int, threads: int) -> None:
    """One bit: always a DeltaError, the CRC finds what nothing before it does."""
    damaged = bytearray(DELTA)
    damaged[bit // 8] ^= 1 << bit % 8
    assert isinstance(outcome(bytes(damaged), threads), str)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_damage_with_a_right_checksum_harms_nothing(seed: int, changes: int) -> None:
    """Random bytes behind the header, the CRC made right again: refused, or tensors of the right size."""
    rng = np.random.default_rng(seed)
    damaged = np.frombuffer(DELTA, dtype=np.uint8).copy()
    at = rng.integers(HEADER.size, len(DELTA) - 4, changes)
    damaged[at] = rng.integers(0, 256, changes)
    body = damaged.tobytes()[:-4]
    outcome(body + LENGTH.pack(zlib.crc32(body)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
@example(b"")
def test_any_records_at_all_harm_nothing(content: bytes) -> None:
    """Whatever stands after a right header is refused or gives a tensor of the right size."""
    delta, sizes = one_tensor(content, 40)
    made: list[int] = []
    try:
        apply_delta(
            io.BytesIO(delta), lambda _: np.zeros(80, np.uint8), lambda _, a: made.append(a.nbytes), sizes
        )
    except DeltaError:
        return
    assert made == [80]


@pytest.mark.parametrize(
    ("records_bytes", "match"),
    [
        (record(Kind.GAPS8, 1, 2, 2, b"\x00\x01", b"\x02"), "cannot be unpacked|unpacks"),
        (record(Kind.GAPS8, 0, 1, 1, b"\x00"), "0 planes"),
        (record(Kind.GAPS8, 3, 1, 1, b"\x00"), "3 planes"),
        (record(Kind.GAPS8, 1, 0, 0), "0 values"),
        (record(Kind.GAPS8, 1, COUNT + 1, COUNT + 1), "impossible"),
        (record(Kind.GAPS8, 1, 2**32 - 1, 2**32 - 1), "impossible"),
        (record(Kind.GAPS8, 1, 1, 2**32 - 1), "impossible"),
        (record(Kind.GAPS8, 1, 2, 1, b"\x00"), "impossible"),
        (record(Kind.BITMAP, 1, 1, 1), "impossible"),
        (record(Kind.DENSE, 1, COUNT - 1, 0), "impossible"),
        (record(Kind.FULL, 1, COUNT, 0), "impossible"),
        (record(6, 1, 1, 1), "kind 6"),
        (record(Kind.DENSE, 1, COUNT, 0) + LENGTH.pack(2**32 - 1), "section of a delta has 4294967295 bytes"),
        (record(Kind.DENSE, 1, COUNT, 0) + LENGTH.pack(0), "section of a delta has 0 bytes"),
    ],
)
def test_impossible_numbers_are_refused(records_bytes: bytes, match: str) -> None:
    """Counts, lengths and kinds that the tensor's size rules out are refused before anything is read."""
    refused(records_bytes, match)


@pytest.mark.parametrize(
    ("count", "stream"),
    [
        (1, bytes([255] * 11 + [250])),  # beyond the tensor's 3,000 elements
        (1, bytes([0, 255])),  # ends inside a gap
        (2, bytes([0] * 4)),  # more positions than values
        (2, bytes([255, 255])),  # none at all
    ],
)
def test_positions_out_of_range_are_refused(count: int, stream: bytes) -> None:
    """A position past the end, a gap without an end and a wrong count are refused."""
    refused(record(Kind.GAPS8, 1, count, len(stream), stream, b"\x02" * count), "positions")


def test_two_byte_positions_and_bitmaps_out_of_range_are_refused() -> None:
    """The same for gaps of two bytes, and for bits behind a bitmap's last element."""
    refused(record(Kind.GAPS16, 1, 1, 1, b"\xb8", b"\x0b", b"\x02"), "positions")  # 3000 of 0..2999
    bits = np.zeros((COUNT - 1 + 7) // 8, dtype=np.uint8)
    bits[-1] = 0x80
    refused(record(Kind.BITMAP, 1, 1, 0, bits.tobytes(), b"\x02"), "positions", COUNT - 1)


def bomb(size: int) -> bytes:
    """A small zstd frame of zeros."""
    return zstandard.ZstdCompressor(level=1).compress(bytes(size))


def unsaid(size: int) -> bytes:
    """The same without its size in the head."""
    packer = zstandard.ZstdCompressor(level=1, write_content_size=False)
    return packer.compress(bytes(size))


@pytest.mark.parametrize("make", [bomb, unsaid])
def test_a_zip_bomb_is_not_unpacked(make: Callable[[int], bytes]) -> None:
    """A section whose frame holds 64 MB, or does not say how much, is refused with hardly any memory."""
    frame = make(64_000_000)
    assert len(frame) < 10_000
    refused(record(Kind.DENSE, 1, 10_000, 0, frame), "unpacks to", 10_000)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    """The head says 100 bytes, as expected, and the frame holds more or fewer."""
    honest = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(200)))
    assert honest[5] == 200
    honest[5] = 100
    with pytest.raises(DeltaError, match="section"):
        unpacked(bytes(honest), 100)


def test_a_frame_with_bytes_behind_it_is_refused() -> None:
    """Nothing may hide behind a section's frame."""
    with pytest.raises(DeltaError, match="section"):
        unpacked(bomb(1000) + b"more", 1000)


def test_bytes_behind_the_end_are_refused() -> None:
    """A delta ends where it says."""
    assert "behind a delta's end" in str(outcome(DELTA + b"\x00"))


def test_a_delta_of_other_tensors_is_refused() -> None:
    """Another name, size or element size in the manifest than the delta was made for."""
    for sizes in (
        {**SIZES, "f": (0, 2)},
        dict.fromkeys(SIZES, (COUNT * 2, 1)),
        {n: s for n, s in SIZES.items() if n != "e"},
    ):
        with pytest.raises(DeltaError, match="other tensors"):
            apply_delta(io.BytesIO(DELTA), OLD.__getitem__, lambda _n, _a: None, sizes)


def test_a_held_tensor_of_the_wrong_size_is_refused() -> None:
    """What the worker holds is compared with the manifest before it is read."""
    with pytest.raises(DeltaError, match="'a' is held with 4 bytes, not 6000"):
        apply_delta(io.BytesIO(DELTA), lambda _: np.zeros(4, np.uint8), lambda _n, _a: None, SIZES)


def test_other_files_are_refused() -> None:
    """A safetensors file, an older format, slices of no or too many elements."""
    head = HEADER.pack(MAGIC, 1000, fingerprint(SIZES))
    assert DELTA.startswith(head)
    rest = DELTA[len(head) :]
    assert "no delta of format 1" in str(outcome(b"\x40" + bytes(200)))
    assert "no delta of format 1" in str(outcome(MAGIC[:-1] + b"\x07" + DELTA[8:]))
    for many in (0, 2**32 - 1):
        assert "slices of" in str(outcome(HEADER.pack(MAGIC, many, fingerprint(SIZES)) + rest))


def test_a_delta_error_is_a_users_error() -> None:
    """The command line shows it as one line, without a traceback."""
    assert issubclass(DeltaError, UserError) and Head(Kind.FULL, 1, 1, 0)
