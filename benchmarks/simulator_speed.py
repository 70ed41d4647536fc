"""How fast the simulator is: rollouts/s, events/s, the policy's share, and how the cost grows.

    python benchmarks/simulator_speed.py [--full]

`--full` adds the largest points (1,024 workers, 5,000 steps; some minutes). Whole runs on one core, with
heavy-tailed lengths (r1-client_35) and a decode model that depends on the number of sequences and context.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import echo2.traces as traces
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, steady_rate
from echo2.sim.inputs import LearnerModel, SimWorker, WorldInputs
from echo2.sim.run import simulate
from echo2.sim.timeline import Timeline
from echo2.sim.world import World
from echo2.testing import one_site, small_world

TRAIN_S = 60.0
MODEL = DecodeModel((1.0, 16.0, 64.0), (0.012, 0.016, 0.024), (2e-8, 3e-7, 1.2e-6), max_running=16)


def build(workers: int, steps: int, batch: int = 512) -> WorldInputs:
    """A pool of three speeds that makes 1.1 times what the learner needs, S = 6, kappa = 3."""
    lengths = traces.lengths("r1-client_35").truncated(12_000)
    speeds = [(1.0, 0.6, 1.8)[i % 3] for i in range(workers)]
    raw = sum(steady_rate(replace(MODEL, speedup=s), lengths, 200.0).rollouts_per_s for s in speeds)
    scale = 1.1 * batch / TRAIN_S / raw
    pool = []
    for i, speed in enumerate(speeds):
        model = replace(MODEL, speedup=speed * scale)
        rate = steady_rate(model, lengths, 200.0, group_size=8)
        offer = WorkerOffer(
            f"w{i:04d}", "pool", "GPU", "site", 1.0, rate.rollouts_per_s, rate.slots, rate.group_s,
            rate.tail_s, 5e9, 5e9,
        )  # fmt: skip
        pool.append(SimWorker(offer, model))
    links = one_site(10e9, 0.05)
    world = small_world(
        tuple(pool), S=11, kappa=3, batch=batch, group=8, steps=steps, train_s=TRAIN_S, snapshot_bytes=16e9,
        lengths=lengths, links=links,
    )  # fmt: skip
    return replace(world, learner=LearnerModel(TRAIN_S, cv=0.05), prompt_tokens=200.0)


def measure(workers: int, steps: int, batch: int = 512) -> None:
    """Print one row."""
    result = simulate(build(workers, steps, batch))
    summary = result.summary()
    rollouts = summary["rollouts"]["dispatched"]
    events = sum(summary["events"].values())
    seconds = result.elapsed_s
    print(
        f"{workers:>7} {steps:>6} {batch:>7} {seconds:>8.2f} {rollouts / seconds:>11,.0f} "
        f"{events / seconds:>10,.0f} {1e6 * seconds / rollouts:>12.1f} "
        f"{summary['learner_utilisation']:>6.1%}",
        flush=True,
    )


def policy_share(workers: int, steps: int) -> float:
    """Share of a run's time spent in `Scheduler.observe` (measured with the clock around each call)."""
    world = World(build(workers, steps), 0, False, Timeline(False))
    observe, spent = world.scheduler.observe, 0.0

    def timed(fact):  # type: ignore[no-untyped-def]
        nonlocal spent
        began = time.perf_counter()
        out = observe(fact)
        spent += time.perf_counter() - began
        return out

    world.scheduler.observe = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    world.run(1e9)
    return spent / (time.perf_counter() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    print(
        f"{'workers':>7} {'steps':>6} {'rollout':>7} {'seconds':>8} {'rollouts/s':>11} {'events/s':>10} "
        f"{'us/rollout':>12} {'util':>6}"
    )
    points = [(64, 300, 512)] * 3 + [(64, 100, 512), (64, 1000, 512), (256, 100, 2048), (1024, 100, 8192)]
    if options.full:
        points += [(64, 5000, 512), (1024, 1000, 512), (1024, 300, 8192)]
    for workers, steps, batch in points:
        measure(workers, steps, batch)
    print(f"policy (Scheduler.observe): {policy_share(64, 100):.0%} of the run's time")


if __name__ == "__main__":
    main()
