"""The learner host's control plane under load: `python benchmarks/control_plane.py [--workers 200]`.

The claim: 500 rollouts/s from 200 workers over HTTP, each on disk before it is acknowledged, none lost, the
99th percentile of answers below 250 ms. The server runs in a process of its own with a real SQLite ledger
behind a small coordinator; the workers are tasks in other processes. Each holds a long poll open all the
time, as real ones do, and sends what is due `--batch` rollouts at a time. Answer times are the client's, its
own work included; where the clients' processes have no core to themselves, that is what they measure.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import resource
import secrets
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from echo2.runtime.transport import messages as m

RUN, PROMPT = "load", 64
GROUP = 8


class Desk:
    """Gives out leases, holds long polls open, puts rollouts into the ledger, many uploads in one sync."""

    def __init__(self, path: Path, tokens: int) -> None:
        from echo2.runtime.data.ledger import Ledger

        self._ledger, self._tokens = Ledger(path), tokens
        self._leases: dict[str, str] = {}
        self._sessions: dict[str, str] = {}
        self._waiting: list[tuple[str, m.Upload, asyncio.Future[list[str]]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._prompt_ids = tuple(range(PROMPT))

    def hello(self, hello: m.Hello, address: str) -> m.Welcome:
        lease = self._sessions.setdefault(hello.session, secrets.token_hex(16))
        self._leases[lease] = hello.session
        return m.Welcome(run_id=RUN, worker_id=hello.session, lease=lease, lease_s=30.0)

    async def work(self, lease: str, request: m.WorkRequest) -> m.WorkReply:
        self.check_lease(lease)
        await asyncio.sleep(request.wait_s)
        return m.WorkReply()

    async def rollouts(self, lease: str, upload: m.Upload) -> m.UploadReply:
        worker = self.check_lease(lease)
        done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.append((worker, upload, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        outcomes = await done
        return m.UploadReply.model_construct(
            verdicts=tuple(
                m.Verdict.model_construct(group_id=r.group_id, index=r.index, outcome=outcome, detail="")
                for r, outcome in zip(upload.rollouts, outcomes)
            )
        )

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            outcomes = await asyncio.to_thread(self._finish, batch)
            at = 0
            for _, upload, done in batch:
                part = outcomes[at : at + len(upload.rollouts)]
                at += len(part)
                if not done.done():
                    done.set_result(part)

    def _finish(self, batch: list[tuple[str, m.Upload, asyncio.Future[list[str]]]]) -> list[str]:
        from echo2.runtime.data.rollout import Rollout, Segment, check, rollout_id
        from echo2.runtime.data.states import Ticket

        taken = [
            Rollout(
                rollout_id(r.group_id, r.index),
                r.group_id,
                r.index,
                r.group_id,
                0,
                worker,
                self._prompt_ids,
                r.token_ids,
                r.logprobs,
                tuple(Segment(s.start, s.version) for s in r.segments),
                r.finish_reason,
            )
            for worker, upload, _ in batch
            for r in upload.rollouts
        ]
        for rollout in taken:
            check(rollout, 151_936, self._tokens)
        self._ledger.dispatch([Ticket(r.group_id, r.index, r.prompt, 0, r.worker_id) for r in taken])
        return [str(outcome) for outcome in self._ledger.finish(taken)]

    def reports(self, lease: str, reports: m.Reports) -> None:
        self.check_lease(lease)

    def leave(self, lease: str, leave: m.Leave) -> None:
        del self._leases[lease]

    def check_lease(self, lease: str) -> str:
        from echo2.runtime.transport.coordinator import UnknownLease

        if lease not in self._leases:
            raise UnknownLease
        return self._leases[lease]

    def manifest(self, version: int) -> m.Manifest:
        raise NotImplementedError

    def chunk(self, digest: str) -> Path:
        raise NotImplementedError

    def metrics(self) -> str:
        return ""

    def health(self) -> dict[str, object]:
        return {"finished": self._ledger.counts().get("finished", 0)}


def serve(pipe: Connection, token: str, folder: str, tokens: int) -> None:
    """The server process: sends its URL, then, when told to stop, CPU seconds since it was told to count."""

    async def main() -> None:
        from echo2.runtime.transport.server import Server, make_app

        desk = Desk(Path(folder) / "ledger.db", tokens)
        server = Server(make_app(desk, token))
        await server.start()
        pipe.send(server.url)
        await asyncio.to_thread(pipe.recv)
        began = time.process_time()
        await asyncio.to_thread(pipe.recv)
        pipe.send((time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        await asyncio.to_thread(pipe.recv)
        await server.stop()

    asyncio.run(main())


def work(pipe: Connection, url: str, token: str, names: list[int], args: argparse.Namespace) -> None:
    """One process of workers: joins, waits for the start, sends for `--seconds`, reports its answer times."""
    from echo2.runtime.transport.client import Client

    rng = random.Random(names[0])
    bodies = [
        (
            tuple(rng.randrange(150_000) for _ in range(args.tokens)),
            tuple(-rng.random() for _ in range(args.tokens)),
        )
        for _ in range(16)
    ]

    def upload(name: int, serial: int) -> m.Upload:
        made = []
        for i in range(args.batch):
            group, index = divmod(serial * args.batch + i, GROUP)
            ids, logprobs = bodies[(serial + i) % 16]
            made.append(
                m.WireRollout.model_construct(
                    group_id=name * 10**6 + group,
                    index=index,
                    token_ids=ids,
                    logprobs=logprobs,
                    segments=(m.WireSegment(start=0, version=0),),
                    finish_reason="stop",
                )
            )
        return m.Upload.model_construct(incarnation=1, rollouts=tuple(made))

    async def poll(client: Client) -> None:
        while True:
            await client.work(m.WorkRequest(wait_s=5.0))

    async def worker(client: Client, name: int, begin_s: float) -> tuple[list[float], int]:
        every_s = args.workers * args.batch / args.rate
        times, accepted, serial = [], 0, 0
        due_s = begin_s + random.Random(name).random() * every_s
        while due_s < begin_s + args.seconds:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            sent = upload(name, serial)
            began = time.monotonic()
            reply = await client.rollouts(sent)
            times.append(time.monotonic() - began)
            accepted += sum(verdict.outcome == "accepted" for verdict in reply.verdicts)
            serial, due_s = serial + 1, due_s + every_s
        return times, accepted

    async def main() -> None:
        clients = [Client(url, token) for _ in names]
        for client, name in zip(clients, names):
            await client.hello(
                m.Hello(protocol=m.PROTOCOL, session=f"session-{name}", pool="load", engine="simulated")
            )
        polls = [asyncio.create_task(poll(client)) for client in clients]
        pipe.send("ready")
        begin_s = await asyncio.to_thread(pipe.recv)
        cpu_began = time.process_time()
        done = await asyncio.gather(*(worker(c, n, begin_s) for c, n in zip(clients, names)))
        pipe.send((done, time.process_time() - cpu_began))
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in clients))

    asyncio.run(main())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--rate", type=float, default=500.0, help="rollouts/s of all workers together")
    parser.add_argument("--batch", type=int, default=1, help="rollouts in one upload")
    parser.add_argument("--tokens", type=int, default=256, help="completion tokens of a rollout")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=2, help="processes that the workers share")
    args = parser.parse_args()
    spawn, token = multiprocessing.get_context("spawn"), secrets.token_hex(16)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        mine, theirs = spawn.Pipe()
        server = spawn.Process(target=serve, args=(theirs, token, folder, args.tokens), daemon=True)
        server.start()
        url = mine.recv()
        pipes = []
        for i in range(args.processes):
            near, far = spawn.Pipe()
            names = list(range(i, args.workers, args.processes))
            spawn.Process(target=work, args=(far, url, token, names, args), daemon=True).start()
            pipes.append(near)
        for pipe in pipes:
            pipe.recv()
        mine.send("count")
        begin_s = time.monotonic() + 0.2
        for pipe in pipes:
            pipe.send(begin_s)
        parts = [pipe.recv() for pipe in pipes]
        done, client_s = [one for part, _ in parts for one in part], sum(cpu for _, cpu in parts)
        took_s = time.monotonic() - begin_s
        mine.send("stop counting")
        cpu_s, peak_mib = mine.recv()
        mine.send("stop")
        server.join(10)
    times = sorted(t for worker_times, _ in done for t in worker_times)
    sent, accepted = len(times) * args.batch, sum(count for _, count in done)
    p50, p99 = (times[int(p * (len(times) - 1))] * 1e3 for p in (0.5, 0.99))
    print(
        f"{args.workers} workers, {args.tokens} tokens a rollout, {args.batch} a request, "
        f"{os.cpu_count()} cores"
    )
    print(
        f"asked for {args.rate:,.0f} rollouts/s; acknowledged {accepted / took_s:,.0f} rollouts/s "
        f"over {took_s:.1f} s"
    )
    print(f"rollouts sent {sent:,}, accepted {accepted:,}, lost {sent - accepted:,}")
    print(f"answer p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {times[-1] * 1e3:.1f} ms")
    print(
        f"server: {cpu_s / took_s:.0%} of one core, {cpu_s / max(1, accepted) * 1e6:,.0f} us a rollout, "
        f"{peak_mib:.0f} MiB; clients: {client_s / took_s:.0%} of one core"
    )


if __name__ == "__main__":
    main()
