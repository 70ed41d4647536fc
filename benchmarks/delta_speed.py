"""How fast a delta is made, applied and checked on this machine: `python -m benchmarks.delta_speed`.

The claim: 1 GB/s of model or more each way on two cores (bf16, 1 % of the values changed). Beside it BLAKE3
and SHA-256 over the same buffers: every byte that travels and every tensor that comes of it is hashed.
Synthetic weights, changes of one unit in the last place at random places; median and range of the repeats.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import blake3
import numpy as np

from echo2.runtime.delta.codec import apply_delta, delta_pieces
from echo2.runtime.delta.layout import Bytes

Tensors = dict[str, Bytes]


def weights(mebibytes: int, item: int, rng: np.random.Generator) -> Tensors:
    """Tensors of 32 MiB of bit patterns that weights have: normal, sigma 0.02, bf16 or float32."""
    made: Tensors = {}
    for index in range(max(1, mebibytes // 32)):
        patterns = rng.normal(0.0, 0.02, (32 << 20) // item).astype(np.float32).view(np.uint32)
        words = patterns if item == 4 else (patterns >> 16).astype(np.uint16)
        made[f"layer.{index}"] = words.view(np.uint8)
    return made


def moved(old: Tensors, item: int, share: float, rng: np.random.Generator) -> Tensors:
    """The same tensors with `share` of the values one unit in the last place up or down."""
    made: Tensors = {}
    for name, array in old.items():
        new = array.copy()
        words = new.view(f"i{item}")
        at = rng.random(len(words)) < share
        words[at] += rng.choice(np.array([-1, 1], dtype=words.dtype), int(at.sum()))
        made[name] = new
    return made


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each repeat, after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds


def line(name: str, threads: int, size: int, seconds: list[float], note: str = "") -> None:
    """One row of the result."""
    rates = sorted(size / s / 1e9 for s in seconds)
    middle = statistics.median(rates)
    print(f"{name:30} {threads:7} {middle:8.2f}   {rates[0]:5.2f} to {rates[-1]:5.2f}   {note}".rstrip())


def codec(item: int, share: float, mebibytes: int, threads: list[int], repeats: int) -> None:
    """Rows for making and applying one delta; what is applied is compared with what was meant, once."""
    rng = np.random.default_rng(0)
    old = weights(mebibytes, item, rng)
    new = moved(old, item, share, rng)
    items = dict.fromkeys(new, item)
    sizes = {name: (array.nbytes, item) for name, array in new.items()}
    total = sum(array.nbytes for array in new.values())
    delta = b"".join(delta_pieces(old, new, items))

    def same(name: str, array: Bytes) -> None:
        assert np.array_equal(array, new[name]), name

    apply_delta(io.BytesIO(delta), old.__getitem__, same, sizes)
    label = f"{'bf16' if item == 2 else 'fp32'}, {share:.1%} changed"
    for count in threads:
        spent = timed(lambda n=count: sum(map(len, delta_pieces(old, new, items, n))), repeats)  # type: ignore[misc]
        line(f"encode {label}", count, total, spent, f"{total / len(delta):,.1f}x smaller")
        spent = timed(
            lambda n=count: apply_delta(  # type: ignore[misc]
                io.BytesIO(delta), old.__getitem__, lambda _name, _array: None, sizes, n
            ),
            repeats,
        )
        line(f"decode {label}", count, total, spent)


def hashing(mebibytes: int, threads: list[int], repeats: int) -> None:
    """Rows for the digests over 8 MiB chunks, as chunks are hashed: each thread its own chunk."""
    chunks = [c for a in weights(mebibytes, 2, np.random.default_rng(1)).values() for c in np.split(a, 4)]
    total = sum(chunk.nbytes for chunk in chunks)
    digests: dict[str, Callable[[Bytes], bytes]] = {
        "blake3": lambda chunk: blake3.blake3(chunk.data).digest(),
        "sha256": lambda chunk: hashlib.sha256(chunk.data).digest(),
    }
    for name, digest in digests.items():
        for count in threads:
            with ThreadPoolExecutor(count) as pool:
                spent = timed(lambda p=pool, d=digest: list(p.map(d, chunks)), repeats)  # type: ignore[misc]
            line(f"{name}, chunks of 8 MiB", count, total, spent)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=512, help="size of the model")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    print(f"{args.mebibytes} MiB of weights, {os.cpu_count()} cores, {args.repeats} repeats")
    print(f"{'':30} {'threads':>7} {'GB/s':>8}   {'range':14}")
    for item, share in ((2, 0.001), (2, 0.01), (2, 0.1), (2, 0.6), (4, 0.95)):
        codec(item, share, args.mebibytes, args.threads, args.repeats)
    hashing(args.mebibytes, args.threads, args.repeats)


if __name__ == "__main__":
    main()
