"""How far the activation rules are from the optimum, and how long they take, on random mixed pools.

    python -m benchmarks.activation_bound [--pools 15] [--sizes 12,24,48,96,256,1024] [--seed 0]

A pool mixes prices of 0.2-4 USD/h and rates that follow them loosely (a cheap GPU can be the better buy);
the need is 20-90 % of the pool's rate. Ratios are to the exact optimum, times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from echo2.policy.activation import Activation, Candidate, choose, exact, greedy_then_prune, revise
from echo2.policy.activation.milp import milp


def random_pool(rng: np.random.Generator, size: int) -> tuple[list[Candidate], float]:
    """A pool without two equal workers, half of it running, and a need it can meet."""
    price = np.exp(rng.uniform(np.log(0.2), np.log(4.0), size))
    rate = 0.05 * price ** rng.uniform(0.6, 1.1) * np.exp(rng.normal(0.0, 0.4, size))
    active = rng.random(size) < 0.5
    pool = [
        Candidate(f"w{i:04d}", float(price[i]), float(rate[i]), bool(active[i]), startup_s=120.0)
        for i in range(size)
    ]
    return pool, float(rate.sum() * rng.uniform(0.2, 0.9))


def timed(call: Callable[[], Activation]) -> tuple[Activation, float]:
    """The answer and its milliseconds."""
    began = time.perf_counter()
    answer = call()
    return answer, (time.perf_counter() - began) * 1e3


def measure(size: int, pools: int, seed: int) -> str:
    """One line of the table for pools of `size` workers."""
    rng = np.random.default_rng([seed, size])
    ratios: list[float] = []
    bounds: list[float] = []
    ms: dict[str, list[float]] = {"exact": [], "HiGHS": [], "auto": [], "greedy": [], "revise": []}
    gave_up = 0
    for _ in range(pools):
        pool, needed = random_pool(rng, size)
        optimum, exact_ms = timed(lambda p=pool, n=needed: exact(p, n))
        highs_ms = timed(lambda p=pool, n=needed: milp(p, n))[1] if size <= 256 else float("nan")
        greedy, greedy_ms = timed(lambda p=pool, n=needed: greedy_then_prune(p, n))
        _, auto_ms = timed(lambda p=pool, n=needed: choose(p, n))
        _, revise_ms = timed(lambda p=pool, n=needed: revise(p, n).activation)
        gave_up += optimum.method != "exact"
        ratios.append(greedy.cost_usd_per_h / optimum.cost_usd_per_h)
        bounds.append(optimum.ratio)
        for name, value in zip(ms, (exact_ms, highs_ms, auto_ms, greedy_ms, revise_ms)):
            ms[name].append(value)
    times = "  ".join(f"{statistics.median(values):8.2f}" for values in ms.values())
    return (
        f"{size:5d}  {statistics.median(ratios):8.4f}  {max(ratios):8.4f}  {statistics.median(bounds):8.4f}  "
        f"{times}  {max(ms['exact']):9.1f}  {gave_up:7d}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pools", type=int, default=15)
    parser.add_argument("--sizes", default="12,24,48,96,256,1024")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    choose([Candidate("warm-up", 1.0, 1.0)], 0.5, "exact")
    print("         greedy/optimum      optimum/LP                 median ms                      exact")
    print(
        " size    median       max    median      exact     HiGHS      auto    greedy    revise     max ms"
        "  gave up"
    )
    for size in (int(text) for text in args.sizes.split(",")):
        print(measure(size, args.pools, args.seed))


if __name__ == "__main__":
    main()
