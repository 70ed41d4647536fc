"""Weights into chunks: tensors to bits and their table, a full file or a delta of them to chunks on disk.

Called by the snapshot store, in the thread that writes. Tensors are hashed and deltas encoded by several
threads; chunks are on disk while later tensors are still encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from echo2.errors import UserError
from echo2.runtime.transport.chain import chunk_bytes_of, next_chunk_bytes
from echo2.runtime.transport.digests import digest_of
from echo2.runtime.transport.messages import Chunk, File, TensorEntry
from echo2.runtime.transport.model_files import DELTA_FILE, WEIGHTS_FILE
from echo2.runtime.transport.store import Bytes, ChunkStore, cut
from echo2.runtime.transport.tensor_table import HASH_THREADS, ITEM_BYTES, layout_of, weights_digest_of

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[np.uint8]

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Dtypes as torch spells them, and as safetensors does."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Weights as bytes by name, their table by name, and their identity."""

    arrays: Mapping[str, Array]
    table: tuple[TensorEntry, ...]
    weights: str

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return sum(array.nbytes for array in self.arrays.values())

    def full_pieces(self) -> Iterator[Bytes]:
        """The bytes of the safetensors file."""
        head, places = layout_of(self.table)
        yield head
        for name in places:
            if self.arrays[name].nbytes:
                yield self.arrays[name].data


@dataclass(frozen=True, slots=True)
class Raw:
    """Weights as bytes by name, not hashed yet; (dtype, shape) of each as safetensors has them, by name."""

    arrays: Mapping[str, Array]
    kinds: Mapping[str, tuple[str, tuple[int, ...]]]

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def itemsize(self) -> dict[str, int]:
        """Bytes of one value, by tensor."""
        return {name: ITEM_BYTES[dtype] for name, (dtype, _) in self.kinds.items()}

    def like(self, other: Bits) -> bool:
        """Whether the same tensors are there, whatever their values."""
        return dict(self.kinds) == {e.name: (e.dtype, e.shape) for e in other.table}

    def hashed(self, threads: int = HASH_THREADS) -> Bits:
        """With the digest of every tensor."""

        def entry(name: str) -> TensorEntry:
            dtype, shape = self.kinds[name]
            return TensorEntry(name=name, dtype=dtype, shape=shape, digest=digest_of(self.arrays[name].data))

        with ThreadPoolExecutor(threads) as pool:
            table = tuple(pool.map(entry, self.kinds))
        return Bits(self.arrays, table, weights_digest_of(table))


def raw_of(tensors: Mapping[str, Tensor], owned: bool, threads: int = HASH_THREADS) -> Raw:
    """The bits of tensors; copies, unless `owned`: then nobody may write to the tensors any more.

    Raises UserError for a dtype that has no place in safetensors.
    """
    kinds = {name: (_dtype(name, tensors[name]), tuple(tensors[name].shape)) for name in sorted(tensors)}
    with ThreadPoolExecutor(threads) as pool:
        arrays = pool.map(lambda name: _bytes_of(tensors[name], owned), kinds)
        return Raw(dict(zip(kinds, arrays)), kinds)


def full_file(
    chunks: ChunkStore, bits: Bits, most_chunk: int, held: list[Chunk], threads: int = HASH_THREADS
) -> File:
    """All of the weights as one safetensors file. As for `cut_file`."""
    size = chunk_bytes_of(bits.bytes, most_chunk)
    file = cut_file(chunks, WEIGHTS_FILE, bits.full_pieces(), size, held, threads=threads)
    assert file is not None  # no bound was given
    return file


def delta_file(
    chunks: ChunkStore,
    before: Bits,
    after: Raw,
    most_chunk: int,
    held: list[Chunk],
    threads: int = HASH_THREADS,
    added: Callable[[Chunk], None] = lambda _chunk: None,
) -> File | None:
    """What makes `after` out of `before`; None where it would not be smaller than all of it.

    `added` is told of every chunk in order, as soon as it is on disk.
    """
    from echo2.runtime.delta.codec import delta_pieces

    def size(written: int) -> int:
        return next_chunk_bytes(written, most_chunk)

    pieces = delta_pieces(before.arrays, after.arrays, after.itemsize, threads)
    return cut_file(chunks, DELTA_FILE, pieces, size, held, after.bytes, threads, added)


def cut_file(
    chunks: ChunkStore,
    name: str,
    pieces: Iterable[Bytes],
    size: int | Callable[[int], int],
    held: list[Chunk],
    most_bytes: int | None = None,
    threads: int = HASH_THREADS,
    added: Callable[[Chunk], None] = lambda _chunk: None,
) -> File | None:
    """Put the pieces into chunks of `size`, each held once more, noted in `held` and told to `added`.

    None as soon as there are `most_bytes` or more. Raises OSError (disk full); what is in `held` then is the
    caller's to release.
    """
    made: list[Chunk] = []
    total = 0

    def take(done: Future[Chunk]) -> None:
        made.append(done.result())
        held.append(made[-1])
        added(made[-1])

    with ThreadPoolExecutor(threads) as pool:
        writing: deque[Future[Chunk]] = deque()
        try:
            for part in cut(pieces, size):
                total += len(part)
                if most_bytes is not None and total >= most_bytes:
                    return None
                # no more than a few chunks wait in memory, and none that is on disk waits to be told
                while writing and (len(writing) > threads or writing[0].done()):
                    take(writing.popleft())
                writing.append(pool.submit(chunks.put, part))
        finally:
            _take_all(writing, take)
    return File(name=name, size=total, chunks=tuple(made))


def _take_all(writing: deque[Future[Chunk]], take: Callable[[Future[Chunk]], None]) -> None:
    """Take every chunk that was begun, also after one that failed; then raise the first failure."""
    first: BaseException | None = None
    while writing:
        try:
            take(writing.popleft())
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


def _dtype(name: str, tensor: Tensor) -> str:
    spelled = str(tensor.dtype).removeprefix("torch.")
    if spelled not in _DTYPES:
        raise UserError(
            f"tensor {name[:80]!r} is of dtype {spelled}; a snapshot takes {', '.join(sorted(ITEM_BYTES))}"
        )
    return _DTYPES[spelled]


def _bytes_of(tensor: Tensor, owned: bool) -> Array:
    """The tensor's values in memory order."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        return np.empty(0, np.uint8)
    if not owned and flat.data_ptr() == tensor.data_ptr():
        flat = flat.clone()
    array: Array = flat.view(torch.uint8).numpy()
    return array
