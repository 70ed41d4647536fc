"""How many rollouts a second the ledger takes on this machine: `python benchmarks/ledger.py [--rollouts N]`.

The claim: 500 rollouts/s of 256 tokens, each on disk before it is acknowledged. Measured with one sync a
rollout, and in the batches that a driver gets when it acknowledges what has arrived in some milliseconds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from echo2.runtime.data.export import export_parquet
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.rollout import Rollout, Segment, check
from echo2.runtime.data.states import Ticket

GROUP = 8


def rollouts(count: int, tokens: int) -> list[Rollout]:
    """Rollouts with `tokens` random tokens each."""
    rng = random.Random(0)
    ids = [tuple(rng.randrange(150_000) for _ in range(tokens)) for _ in range(64)]
    logprobs = [tuple(-rng.random() for _ in range(tokens)) for _ in range(64)]
    return [
        Rollout(
            rollout_id=f"{i // GROUP}:{i % GROUP}",
            group_id=i // GROUP,
            index=i % GROUP,
            prompt=i // GROUP,
            attempt=0,
            worker_id="worker-0",
            prompt_ids=ids[i % 64][:64],
            token_ids=ids[i % 64],
            logprobs=logprobs[i % 64],
            segments=(Segment(0, 0),),
            finish_reason="stop",
            reward=0.5,
        )
        for i in range(count)
    ]


def tickets(done: list[Rollout]) -> list[Ticket]:
    """What was dispatched for them."""
    return [Ticket(r.group_id, r.index, r.prompt, r.attempt, r.worker_id) for r in done]


def line(name: str, count: int, began: float) -> None:
    """One row of the result."""
    took = time.perf_counter() - began
    print(f"{name:44} {count / took:10,.0f} rollouts/s  {took:7.3f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    done = rollouts(args.rollouts, args.tokens)
    with tempfile.TemporaryDirectory(dir=".") as directory:
        path = Path(directory) / "ledger.db"
        began = time.perf_counter()
        for rollout in done:
            check(rollout, 150_000, args.tokens)
        line("check at the door", len(done), began)
        for batch in (1, 8, 64):
            path.unlink(missing_ok=True)
            some = done[: min(len(done), 1000 * batch)]
            with Ledger(path) as ledger:
                began = time.perf_counter()
                for at in range(0, len(some), batch):
                    part = some[at : at + batch]
                    ledger.dispatch(tickets(part))
                    ledger.finish(part)
                line(f"dispatch + finish, {batch} a call, synced", len(some), began)
        with Ledger(path) as ledger:
            began = time.perf_counter()
            groups = len(done) // GROUP
            for version, at in enumerate(range(0, groups, 32)):
                ledger.claim(version, list(range(at, min(groups, at + 32))), 10**9)
                ledger.commit(version, version + 1)
            line("claim + commit, 32 groups of 8 a step", len(done), began)
            began = time.perf_counter()
            export_parquet(ledger, Path(directory) / "out.parquet")
            line("Parquet export", len(done), began)
            print(f"file: {path.stat().st_size / len(done):,.0f} bytes a rollout of {args.tokens} tokens")
        began = time.perf_counter()
        with Ledger(path) as ledger:
            line("open, with its checks", len(done), began)
            began = time.perf_counter()
            ledger.recover(0)
            line("roll back to version 0", len(done), began)


if __name__ == "__main__":
    main()
