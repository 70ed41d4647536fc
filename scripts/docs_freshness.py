"""The freshness rule against the simulation: the table of docs/concepts.md.

Twelve equal workers that make 1.05 times what the learner needs, heavy-tailed lengths (r1-client_35 cut at
12,000 tokens), groups of 8, a step of 60 s and a snapshot that takes 45 s. Only S and kappa vary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from echo2 import traces
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, GenerationRate, TokenLengths, steady_rate
from echo2.policy.provision import Demand, open_share
from echo2.sim.inputs import SimWorker
from echo2.sim.run import simulate
from echo2.testing import small_world

TRAIN_S, BATCH, GROUP, COUNT, LOAD, BROADCAST_S = 60.0, 256, 8, 12, 1.05, 45.0
UPLINK_BPS, PROMPT_TOKENS = 10e9, 200.0
WARM_UP, STEPS, SEEDS = 30, 90, 2
CASES = ((4, (1, 2, 3, 4, 5)), (8, (3, 4, 5, 6, 7, 8, 9)))


def worker() -> tuple[DecodeModel, TokenLengths, GenerationRate]:
    """A worker of whom twelve make `LOAD` times the need."""
    lengths = traces.lengths("r1-client_35").truncated(12_000)
    model = DecodeModel((1.0, 64.0), (0.010, 0.022), (2e-8, 1.2e-6), max_running=16)
    rate = steady_rate(model, lengths, PROMPT_TOKENS).rollouts_per_s
    model = replace(model, speedup=LOAD * BATCH / TRAIN_S / (COUNT * rate))
    return model, lengths, steady_rate(model, lengths, PROMPT_TOKENS, group_size=GROUP)


def simulated(S: int, kappa: int) -> tuple[float, float]:
    """(learner utilisation after the warm-up, share of rollouts dropped), mean over the seeds."""
    model, lengths, rate = worker()
    pool = tuple(
        SimWorker(
            WorkerOffer(
                f"w{i:02d}", "pool", "GPU", "site", 1.0, rate.rollouts_per_s, rate.slots, rate.group_s,
                rate.tail_s, UPLINK_BPS, 1e12,
            ),
            model,
        )
        for i in range(COUNT)
    )  # fmt: skip
    world = small_world(
        pool, S=S, kappa=kappa, batch=BATCH, group=GROUP, steps=STEPS, train_s=TRAIN_S,
        snapshot_bytes=BROADCAST_S * UPLINK_BPS / 8.0, lengths=lengths,
    )  # fmt: skip
    world = replace(world, prompt_tokens=PROMPT_TOKENS)
    used = dropped = 0.0
    for seed in range(SEEDS):
        result = simulate(world, seed)
        ends = result.world.metrics.step_end_s
        used += (STEPS - WARM_UP) * TRAIN_S / (ends[-1] - ends[WARM_UP - 1]) / SEEDS
        dropped += result.summary()["dropped_share"] / SEEDS
    return used, dropped


def rows() -> Iterator[str]:
    """One Markdown row a case."""
    _, _, rate = worker()
    for S, periods in CASES:
        for kappa in periods:
            demand = Demand(S, kappa, BATCH, TRAIN_S, 0.0)
            lag = kappa + (BROADCAST_S + rate.group_s) / TRAIN_S
            by_group = open_share(demand, BROADCAST_S, rate.group_s)
            by_mean = open_share(demand, BROADCAST_S, rate.mean_s)
            used, dropped = simulated(S, kappa)
            yield (
                f"| {S} | {kappa} | {lag:.2f} {'<=' if lag <= S + 1 else '>'} {S + 1} | {by_group:.0%} | "
                f"{by_mean:.0%} | {used:.1%} | {dropped:.1%} |"
            )


def table() -> str:
    """The table, with the two generation times under it."""
    _, _, rate = worker()
    head = (
        "| S | kappa | kappa + b + g against S + 1 | gate open, g of a group | gate open, g of a rollout | "
        "learner works (simulated) | dropped (simulated) |\n|---|---|---|---|---|---|---|"
    )
    under = (
        f"A rollout takes {rate.mean_s / TRAIN_S:.2f} steps on average, a group of {GROUP} "
        f"{rate.group_s / TRAIN_S:.2f}, a snapshot {BROADCAST_S / TRAIN_S:.2f}; {SEEDS} seeds, "
        f"{STEPS - WARM_UP} steps after {WARM_UP} of warm-up; made by `python scripts/docs.py freshness`."
    )
    return "\n".join([head, *rows(), "", under, ""])
