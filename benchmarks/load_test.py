"""A whole learner host under load: `python benchmarks/load_test.py [--workers 200] [--rate 500]`.

The claim: 200 workers, 500 rollouts/s in, none lost, the 99th percentile of answers to uploads below 250 ms.
The host is the real `echo2 train` with a torch learner, the scheduler, the ledger and judging; the workers
are real agents with engines that sleep (`simulated`), many to a process; weights are published in bf16, so
that what they fetch after the first version are small deltas. Lost means: accepted by the host and neither
trained nor waiting nor given up in its ledger, or sent and never answered.

Answer times are told three times. The host's own, of /metrics: from a request's head to its answer, and how
late its event loop ran before that. Those of a few workers that have a process of their own, as all have in
a real run. And those of the crowd, a hundred workers to a process, which yields to the others (nice 10):
when a version is published they all rebuild their weights at once, and most of their time is their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.request import urlopen

from echo2.testing.live import live_config

ROOT = Path(__file__).parent.parent
TOKENS, SLOTS = 10, 8
FEW = 4
"""Workers with a process of their own."""
AIM_S = 0.25
LAG = "echo2_loop_lag_seconds_bucket{"
CONFIG = {
    "name": "load-test",
    "run.staleness": 12,
    "run.publish_period": 10,
    "batch.rollouts_per_step": 1000,
    "learner.step_s": 1.5,
    "learner.uplink_mbps": 10000,
    "learner.downlink_mbps": 10000,
    "rollout.tokens": TOKENS,
    "rollout.swap_pause_s": 0.0,
    "pool.w.slots": SLOTS,
    "pool.w.startup_s": 60,
    "pool.w.engine": "simulated",
    "pool.w.local": False,
    "train.task": "noise",
    "train.snapshot_dtype": "bfloat16",
    "train.lease_s": 60,
}


def work(pipe: Connection, url: str, token: str, count: int, rate: float, nice: int) -> None:
    """One process of `count` agents; reports the answer times of their uploads."""
    from echo2.runtime.transport import messages as m
    from echo2.runtime.transport.client import Client
    from echo2.runtime.worker.build import SimulatedProfile, WorkerSettings, opened
    from echo2.runtime.worker.process import new_session

    times: list[tuple[float, float, int]] = []
    inner = Client.rollouts

    async def timed(self: Client, upload: m.Upload) -> m.UploadReply:
        began = time.monotonic()
        reply = await inner(self, upload)
        accepted = sum(verdict.outcome == "accepted" for verdict in reply.verdicts)
        times.append((began, time.monotonic() - began, accepted))
        return reply

    Client.rollouts = timed  # type: ignore[method-assign]

    async def agent() -> None:
        profile = SimulatedProfile(rate, TOKENS)
        settings = WorkerSettings(url, token, new_session(), "w", "simulated", profile=profile)
        async with opened(settings) as made:
            await made.run()

    async def main() -> None:
        await asyncio.gather(*(agent() for _ in range(count)))

    os.nice(nice)
    began = time.process_time()
    try:
        asyncio.run(main())
    finally:
        pipe.send((times, time.process_time() - began))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--rate", type=float, default=540.0, help="rollouts/s that all workers could make")
    parser.add_argument("--steps", type=int, default=20, help="learner steps of 1,000 rollouts")
    parser.add_argument("--processes", type=int, default=2, help="processes that the workers share")
    args = parser.parse_args()
    each = args.rate * TOKENS / args.workers
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="echo2-load-") as folder:
        config, run = Path(folder) / "load.toml", Path(folder) / "run"
        model = ROOT / "assets" / "tiny-sort"
        run_of = {"run.steps": args.steps, "pool.w.count": args.workers, "pool.w.tokens_per_s": each}
        config.write_text(live_config(model, {**CONFIG, **run_of}), encoding="utf-8")
        command = [sys.executable, "-m", "echo2.cli.main", "train", str(config), "--out", str(run)]
        host = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert host.stdout is not None
        url = next(line.split()[2].rstrip(",") for line in host.stdout if line.startswith("learner at"))
        token = (run / "token").read_text(encoding="utf-8").strip()
        pipes, began_s = [], time.monotonic()
        crowd = args.workers - FEW
        counts = [FEW, *(len(range(i, crowd, args.processes)) for i in range(args.processes))]
        for i, count in enumerate(counts):
            near, far = spawn.Pipe()
            nice = 10 if i else 0
            spawn.Process(target=work, args=(far, url, token, count, each, nice), daemon=True).start()
            pipes.append(near)
        output, door = watched(host, url)
        cpu_s = os.wait4(host.pid, 0)[2]
        parts = [pipe.recv() for pipe in pipes]
        report(run, output, door, parts, cpu_s.ru_utime + cpu_s.ru_stime, time.monotonic() - began_s)


def watched(host: subprocess.Popen[str], url: str) -> tuple[str, str]:
    """(what the host printed, its answer times as /metrics told them last)."""
    assert host.stdout is not None
    last = ""
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(host.stdout.read)
        while not reading.done():
            with suppress(OSError), urlopen(f"{url}/metrics", timeout=5) as answer:
                last = answer.read().decode()
            time.sleep(1.0)
        return reading.result(), last


def report(
    run: Path,
    output: str,
    door: str,
    parts: list[tuple[list[tuple[float, float, int]], float]],
    host_s: float,
    wall_s: float,
) -> None:
    """Print the figures, of the whole run: the start with everybody's full snapshot is in them."""
    from echo2.runtime.data.ledger_query import LedgerReader
    from echo2.runtime.data.states import State

    if not (run / "summary.json").is_file():
        sys.exit(output)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    with LedgerReader(run / "ledger.sqlite") as ledger:
        counts = ledger.counts()
        finished = sum(entry.tokens is not None for entry in ledger.entries())
    uploads = sorted(one for times, _ in parts for one in times)
    accepted = sum(count for _, _, count in uploads)
    span_s = uploads[-1][0] - uploads[0][0]
    print(f"rollouts/s in      {accepted / span_s:.0f}, in {len(uploads):,} uploads")
    rollouts, lag = buckets(door, 'echo2_answer_seconds_bucket{route="rollouts",'), buckets(door, LAG)
    print(f"host's answers     {told(rollouts)}; {rollouts[-1][1]:,} uploads")
    print(f"host's loop late   {told(lag)}; looked at {lag[-1][1]:,} times")
    print(f"few workers see    {percentiles(parts[0][0])}")
    print(f"the crowd sees     {percentiles([one for times, _ in parts[1:] for one in times])}")
    print(f"accepted           {accepted:,} by the clients' count, {finished:,} by the ledger's")
    print("ledger             " + ", ".join(f"{state} {counts[state]:,}" for state in State))
    busy = summary["steady"]["learner_utilisation"]
    print(f"learner            {summary['steps']} steps, utilisation {busy:.0%}")
    print(f"host CPU           {host_s / wall_s:.0%} of a core (torch included), of {os.cpu_count()} cores")
    print(f"clients' CPU       {sum(cpu for _, cpu in parts) / wall_s:.0%} of a core")


def buckets(text: str, prefix: str) -> list[tuple[float, int]]:
    """(bound in seconds, how many took no longer) of a histogram in Prometheus' text."""
    lines = (line[len(prefix) :] for line in text.splitlines() if line.startswith(prefix))
    return [(float(le), int(count)) for le, count in re.findall(r'le="([^"]+)"} (\d+)', "\n".join(lines))]


def told(found: list[tuple[float, int]]) -> str:
    """The bounds that half and 99 % kept, and the share within the aim."""
    half, most = (
        next(bound for bound, count in found if count >= share * found[-1][1]) for share in (0.5, 0.99)
    )
    within = next(count for bound, count in found if bound >= AIM_S) / found[-1][1]
    return f"p50 <= {half * 1e3:g} ms, p99 <= {most * 1e3:g} ms, {within:.2%} within {AIM_S * 1e3:g} ms"


def percentiles(uploads: list[tuple[float, float, int]]) -> str:
    """Of the seconds that answers took."""
    took = sorted(seconds for _, seconds, _ in uploads)
    p50, p99 = (took[int(p * (len(took) - 1))] * 1e3 for p in (0.5, 0.99))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"


if __name__ == "__main__":
    main()
