"""A delta sent once it is encoded, against one sent while it is: `python -m benchmarks.streaming`.

The learner and its workers run in processes of their own, with the real store, server, relays and receivers;
the workers receive along a chain. The uplinks are shaped to what makes sending take as long as writing (the
encoding, and the digests of the tensors), which is measured first: then the two overlap best, and twice as
fast is the most there can be. Each version in turn is sent the one way and the other, in the same run; times
are from the first tensor on, until the last worker has every chunk, and until it has the verified weights.
Median and range of the repeats. Synthetic bf16 weights, one unit in the last place changed at random places.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np

FIRST = 2
"""The version that all hold when it begins."""
UP_S = 240.0
LATER, AHEAD = "encoded, then sent", "sent while encoded"


# ---- the learner -----------------------------------------------------------------------------------------


def learner(pipe: Connection, folder: str, mebibytes: int, share: float, threads: int) -> None:
    """A process with the store and two servers: one without shaping, and one as slow as the encoder."""
    asyncio.run(_learner(pipe, Path(folder), mebibytes, share, threads))


async def _learner(pipe: Connection, folder: Path, mebibytes: int, share: float, threads: int) -> None:
    import torch
    from transport_kit import KEY, RUN, TOKEN, Desk, model_dir

    from benchmarks.delta_speed import moved, weights
    from echo2.runtime.transport.model_files import model_files_of
    from echo2.runtime.transport.server import Server, make_app
    from echo2.runtime.transport.shaping import Shaper
    from echo2.runtime.transport.snapshot import SnapshotStore

    loop, rng = asyncio.get_running_loop(), np.random.default_rng(0)
    files = model_files_of(model_dir(folder / "model"))
    store = SnapshotStore(folder / "store", RUN, files, KEY, threads=threads)
    now = weights(mebibytes, 2, rng)

    def put(version: int, full: bool, begun: Any = lambda _draft: None) -> Any:
        tensors = {name: torch.from_numpy(array).view(torch.bfloat16) for name, array in now.items()}
        return store.put(version, tensors, full=full, owned=True, begun=begun)

    put(1, full=True)
    now = moved(now, 2, share, rng)
    began_s = time.monotonic()
    size = put(FIRST, full=False).delta.size
    write_s = time.monotonic() - began_s
    bps = 8.0 * size / write_s
    shaped = Server(make_app(Desk(store), TOKEN, uplink=Shaper(bps)))
    free = Server(make_app(Desk(store), TOKEN))
    await shaped.start()
    await free.start()
    pipe.send((free.url, shaped.url, size, write_s, bps))
    while (order := await loop.run_in_executor(None, pipe.recv)) is not None:
        version, way = order
        now = await asyncio.to_thread(moved, now, 2, share, rng)
        began_s = time.monotonic()
        if way == AHEAD:
            tell = lambda draft, at=began_s: pipe.send((at, draft.id))  # noqa: E731
            await asyncio.to_thread(put, version, False, tell)
        else:
            await asyncio.to_thread(put, version, False)
            pipe.send((began_s, ""))
    await shaped.stop()
    await free.stop()


# ---- the workers -----------------------------------------------------------------------------------------


def workers(pipe: Connection, folder: str, count: int, free_url: str, url: str, bps: float) -> None:
    """A process with a chain of workers that relay."""
    asyncio.run(_workers(pipe, Path(folder), count, free_url, url, bps))


async def _workers(pipe: Connection, folder: Path, count: int, free_url: str, url: str, bps: float) -> None:
    from benchmarks.broadcast_node import BY_FAULT, Node
    from echo2.runtime.transport import messages as m
    from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink, Shaper

    loop, failed = asyncio.get_running_loop(), list[m.SourceFailed]()
    names = [f"w{i}" for i in range(count)]
    nodes: dict[str, Any] = {}
    for name in names:
        first = await Node.made(name, free_url, folder / name, UNSHAPED, BY_FAULT["none"], failed.append)
        await first.receiver.fetch(FIRST)
        await first.close()
        link = ShapedLink(up=Shaper(bps))
        nodes[name] = await Node.made(name, url, folder / name, link, BY_FAULT["none"], failed.append)
    sources = [m.Source(worker_id=m.LEARNER), *(m.Source(worker_id=n, url=nodes[n].url) for n in names)]

    async def fetch(i: int, version: int, draft: m.Draft | None) -> tuple[float, float]:
        route = m.Route(sources=(sources[i],), turns=(0,), draft=draft)
        began_s = time.monotonic()
        got = await nodes[names[i]].receiver.fetch(version, version - 1, route)
        return began_s + got.transfer_s, time.monotonic()

    pipe.send("up")
    while (order := await loop.run_in_executor(None, pipe.recv)) is not None:
        version, draft_id, size = order
        draft = m.Draft(id=draft_id, bytes=size) if draft_id else None
        ends = await asyncio.gather(*(fetch(i, version, draft) for i in range(count)))
        assert not failed, failed
        pipe.send((max(chunks for chunks, _ in ends), max(whole for _, whole in ends)))
    for node in nodes.values():
        await node.close()


# ---- both ------------------------------------------------------------------------------------------------


def heard(pipe: Connection) -> Any:
    """What the other end says; the end of the run when it says nothing."""
    if not pipe.poll(UP_S):
        sys.exit(f"a process has said nothing for {UP_S:.0f} s")
    return pipe.recv()


def begun(work: Any, *given: Any) -> tuple[Connection, Any]:
    """A process with this work, and the pipe to it."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, *given), daemon=True)
    process.start()
    return here, process


def line(what: str, seconds: Sequence[float]) -> str:
    """One row."""
    return f"  {what:40} {median(seconds):7.2f}   {min(seconds):5.2f} to {max(seconds):5.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--changed", type=float, default=0.1, help="share of the values")
    parser.add_argument("--threads", type=int, default=1, help="of the encoder")
    parser.add_argument("--workers", type=int, default=1, help="in a chain")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="echo2-streaming-") as folder:
        to_learner, making = begun(learner, folder, options.mebibytes, options.changed, options.threads)
        free_url, url, size, write_s, bps = heard(to_learner)
        to_workers, taking = begun(workers, folder, options.workers, free_url, url, bps)
        heard(to_workers)
        seconds: dict[str, list[tuple[float, float]]] = {LATER: [], AHEAD: []}
        for k in range(2 * options.repeats):
            version, way = FIRST + 1 + k, (LATER, AHEAD)[k % 2]
            to_learner.send((version, way))
            began_s, draft_id = heard(to_learner)
            to_workers.send((version, draft_id, size))
            chunks_s, whole_s = heard(to_workers)
            seconds[way].append((chunks_s - began_s, whole_s - began_s))
        for pipe, process in ((to_learner, making), (to_workers, taking)):
            pipe.send(None)
            process.join(20)
    print(
        f"{options.mebibytes} MiB of bf16, {options.changed:.1%} changed: a delta of {size / 1e6:.1f} MB, "
        f"written in {write_s:.2f} s; uplinks of {bps / 1e6:.0f} Mbit/s; {options.workers} in a chain"
    )
    print(f"{'seconds until the last worker has':42} {'median':>7}   range")
    for i, what in enumerate(("every chunk", "the verified weights")):
        for way, both in seconds.items():
            print(line(f"{what}, {way}", [pair[i] for pair in both]))
        ratio = median(p[i] for p in seconds[LATER]) / median(p[i] for p in seconds[AHEAD])
        print(f"  {'':40} {ratio:7.2f}   times as fast")


if __name__ == "__main__":
    main()
