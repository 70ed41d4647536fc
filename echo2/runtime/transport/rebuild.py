"""Weights made from a held version and the deltas after it: tensor by tensor, into a file of their own.

Called by the receiver, in a thread. What comes out is verified by the caller before anybody sees it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from echo2.runtime.delta.codec import apply_delta
from echo2.runtime.delta.layout import DeltaError
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Manifest
from echo2.runtime.transport.store import explained
from echo2.runtime.transport.tensor_table import HASH_THREADS, ITEM_BYTES, layout_of, places_in
from echo2.runtime.transport.writing import Array

Places = Mapping[str, tuple[int, int]]

_STEP_BYTES = 64 << 20


def rebuild(
    parent: Path, steps: Sequence[tuple[Manifest, Path]], out: Path, threads: int = HASH_THREADS
) -> None:
    """Apply deltas, oldest first, to the safetensors file `parent`; `out` becomes the last one's weights.

    The first delta goes from `parent` to `out`, each later one changes `out` in place. Raises SnapshotError
    for a delta that does not fit or is damaged, UserError for a full disk; `out` is then worth nothing.
    """
    source = parent
    for manifest, delta in steps:
        try:
            _apply(source, manifest, delta, out, threads)
        except DeltaError as error:
            raise SnapshotError(
                f"the delta of version {manifest.version} against {manifest.parent} cannot be applied "
                f"({error}); nothing was applied"
            ) from error
        source = out


def _apply(source: Path, manifest: Manifest, delta: Path, out: Path, threads: int) -> None:
    head, places = layout_of(manifest.tensors)
    sizes = {e.name: (places[e.name][1], ITEM_BYTES[e.dtype]) for e in manifest.tensors}
    in_place = source == out
    given: dict[str, Array] = {}
    with explained(out.parent), source.open("rb") as held, out.open("r+b" if in_place else "wb") as stream:
        old, handle = _reader(held, places_in(source)), stream.fileno()
        if not in_place:
            os.truncate(handle, len(head) + sum(size for _, size in places.values()))
            _write(handle, memoryview(head), 0)

        def before(name: str) -> Array:
            given[name] = old(name)
            return given[name]

        def put(name: str, array: Array) -> None:
            if given.pop(name) is array and in_place:
                return  # an unchanged tensor is where it belongs
            if array.nbytes:
                _write(handle, array.data, places[name][0])

        apply_delta([delta], before, put, sizes, threads)


def _reader(file: BinaryIO, places: Places) -> Callable[[str], Array]:
    """The bytes of a tensor by name. Read, not mapped: a disk that fails is an error, not a signal."""

    def read(name: str) -> Array:
        if name not in places:
            raise DeltaError(f"tensor {name[:80]!r} is not in the parent; fetch the full snapshot")
        start, size = places[name]
        array: Array = np.empty(size, np.uint8)
        at, view = 0, array.data
        while at < size:
            got = os.preadv(file.fileno(), [view[at : at + _STEP_BYTES]], start + at)
            if not got:
                raise DeltaError(f"tensor {name[:80]!r} of the parent is cut short; fetch the full snapshot")
            at += got
        return array

    return read


def _write(handle: int, data: memoryview, at: int) -> None:
    data = data.cast("B")
    while data:
        done = os.pwrite(handle, data[:_STEP_BYTES], at)
        data, at = data[done:], at + done
