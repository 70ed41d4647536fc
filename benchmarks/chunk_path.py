"""How fast chunks go from one process to another without shaping, and what this machine allows at most.

    python benchmarks/chunk_path.py [--megabytes 1024] [--streams 4] [--chunk-mb 8]

In the same run and on the same bytes: what a plain socket loop moves (`sendfile` on one side, `recv_into` on
the other), what one thread hashes with the chunks' digest, what it writes, and the three one after another,
which is what a receiver has to do with every byte on one core. Then the real paths: a relay to a worker's
gatherer, and the learner's server to it. Both ends run in processes of their own; the page cache is warm.

What one run has written is removed before the next, as a worker removes old versions: the pages are used
again. A virtual machine pays for the first touch of memory it has never used, many times the copy itself;
the line "memory never used before" names that, measured first in the run.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import os
import shutil
import socket
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

PIECE = 1 << 20


# ---- what the machine allows ---------------------------------------------------------------------------


def socket_rate(file: Path, size: int) -> float:
    """Bytes/s of sendfile in one process to recv_into in another over loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    child = mp.get_context("fork").Process(target=_send, args=(listening.getsockname(), file, size))
    child.start()
    taking, _ = listening.accept()
    buffer, left = bytearray(PIECE), size
    began = time.perf_counter()
    with taking:
        while left > 0 and (count := taking.recv_into(buffer)):
            left -= count
    took = time.perf_counter() - began
    child.join()
    return (size - left) / took


def _send(address: tuple[str, int], file: Path, size: int) -> None:
    with socket.create_connection(address) as line, file.open("rb") as stream:
        at = 0
        while at < size:
            at += os.sendfile(line.fileno(), stream.fileno(), at, size - at)


def hash_rate(size: int) -> float:
    """Bytes/s of the chunks' digest in one thread."""
    from echo2.runtime.transport.digests import digest_of

    data = os.urandom(64 << 20)
    began, done = time.perf_counter(), 0
    while done < size:
        digest_of(data)
        done += len(data)
    return done / (time.perf_counter() - began)


def write_rate(file: Path, size: int) -> float:
    """Bytes/s of writing from memory to a new file."""
    data = os.urandom(8 << 20)
    file.unlink(missing_ok=True)
    began, done = time.perf_counter(), 0
    with file.open("wb", buffering=0) as stream:
        while done < size:
            done += stream.write(data)
    return done / (time.perf_counter() - began)


# ---- the real paths ------------------------------------------------------------------------------------


UP_S = 120.0


def holder(pipe: Connection, folder: str, megabytes: float, chunk_bytes: int) -> None:
    """A process with the learner, and a worker that holds all and relays."""
    asyncio.run(_holder(pipe, Path(folder), megabytes, chunk_bytes))


async def _holder(pipe: Connection, folder: Path, megabytes: float, chunk_bytes: int) -> None:
    from benchmarks.broadcast_node import BY_FAULT, Node, learner
    from echo2.runtime.transport.shaping import UNSHAPED

    loop = asyncio.get_running_loop()
    async with learner(folder, megabytes, None, chunk_bytes) as (server, store, _):
        node = await Node.made(
            "holder", server.url, folder / "holder", UNSHAPED, BY_FAULT["none"], lambda _r: None
        )
        await node.receiver.fetch(1)
        pipe.send((server.url, node.url, store.payload(1).bytes))
        await loop.run_in_executor(None, pipe.recv)
        await node.close()


async def rate_from(learner_url: str, relay_url: str, folder: Path, streams: int) -> tuple[float, float]:
    """(bytes/s until every chunk is verified and in its place, bytes/s with the last check of the whole)."""
    from benchmarks.broadcast_node import BY_FAULT, Node
    from echo2.runtime.transport import messages as m
    from echo2.runtime.transport.gather import GatherSettings
    from echo2.runtime.transport.shaping import UNSHAPED

    settings = GatherSettings(streams=streams)
    failed: list[m.SourceFailed] = []
    node = await Node.made("taker", learner_url, folder, UNSHAPED, BY_FAULT["none"], failed.append, settings)
    route = m.Route(sources=(m.Source(worker_id="holder", url=relay_url),), turns=(0,)) if relay_url else None
    got = await node.receiver.fetch(1, -1, route)
    await node.close()
    assert not failed, failed
    return got.bytes / got.transfer_s, got.bytes / (got.transfer_s + got.check_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1024.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--chunk-mb", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5, help="the best of so many is printed")
    parser.add_argument("--folder", help="where files go (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="echo2-chunks-", dir=options.folder) as name:
        folder = Path(name)
        here, there = mp.get_context("spawn").Pipe()
        arguments = (there, name, options.megabytes, options.chunk_mb << 20)
        process = mp.get_context("spawn").Process(target=holder, args=arguments, daemon=True)
        process.start()
        if not here.poll(UP_S):
            sys.exit(f"the process that holds the chunks has not come up within {UP_S:.0f} s")
        learner_url, relay_url, size = here.recv()
        weights = next(folder.glob("holder/version-*/model.safetensors"))
        target = folder / "target"
        touched = write_rate(target, size)
        best = lambda measure: max(measure() for _ in range(options.repeat))  # noqa: E731
        wire = best(lambda: socket_rate(weights, size))
        hashed = best(lambda: hash_rate(size))
        written = best(lambda: write_rate(target, size))
        target.unlink()
        serial = 1 / (1 / wire + 1 / hashed + 1 / written)
        print(
            f"{size / 1e6:.0f} MB, {options.streams} streams, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        for what, rate in (
            ("plain socket, sendfile to recv_into", wire),
            ("the digest, one thread", hashed),
            ("writing a new file, memory never used before", touched),
            ("writing a new file, memory used again", written),
            ("the three one after another, one core", serial),
        ):
            print(f"  {what:46} {rate / 1e9:6.2f} GB/s")
        for what, url in (("relay to worker", relay_url), ("learner's server to worker", "")):
            runs = []
            for _ in range(options.repeat):
                place = folder / what[:5]
                runs.append(asyncio.run(rate_from(learner_url, url, place, options.streams)))
                shutil.rmtree(place)
            rate, whole = max(runs)
            print(
                f"  {what:46} {rate / 1e9:6.2f} GB/s, {rate / serial:.0%} of that; "
                f"{whole / 1e9:.2f} with the check of the whole file"
            )
        here.send("end")
        process.join(10)


if __name__ == "__main__":
    main()
