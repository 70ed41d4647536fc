"""`echo2 optimise` against a plain grid search, on the shipped scenarios: USD a step and simulations needed.

    python -m benchmarks.optimise [--scenarios consumer-home,...] [--steps 60] [--held-out 5] [--jobs 2]
                                  [--kept FILE]

The grid: S (a quarter, half, all of the configuration's), kappa (1, half of S, S - 1, S), broadcast (the
policy's choice, star, stripes, regional), all or half of every pool, full snapshots or deltas (the
configuration's, else as measured): all simulated, the cheapest wins. The search gets a tenth of the
simulations for the same choices. Both winners are then simulated with other seeds: a minimum over many noisy
runs flatters. `--kept` keeps every outcome in a file: stopped half-way, the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from echo2.cli.code_version import code_version
from echo2.cli.sweep_pool import results
from echo2.config import Config, LoadedConfig, dumps, load
from echo2.study.candidate import AUTO, MEASURED, Candidate, Planned, Plans, Ratio, applied, given
from echo2.study.intervals import t_interval
from echo2.study.neighbours import Space, staleness_choices
from echo2.study.objective import Outcome, objective
from echo2.study.optimise import search
from echo2.study.simulated import run_one

FOLDER = Path(__file__).resolve().parent.parent / "experiments"
SCENARIOS = ("consumer-home", "datacentre", "qwen3-8b-mixed-spot", "qwen3-32b", "qwen3-30b-a3b")
SHARE = 10


@dataclass(frozen=True)
class Found:
    """A winner: USD per step on the seed of the search and on others, simulations and plans it took."""

    config: Config
    usd_per_step: float
    simulations: int
    plans: int
    seconds: float


def grid(base: Candidate, ratios: Sequence[Ratio]) -> Iterator[Candidate]:
    """The plain grid."""
    S = base.staleness
    pairs = [
        (s, k) for s in sorted({max(1, S // 4), max(1, S // 2), S}) for k in sorted({1, s // 2, s - 1, s})
    ]
    half = tuple((name, max(1, count // 2)) for name, count in base.pools)
    broadcasts: tuple[tuple[str, ...], ...] = ((), ("star",), ("stripes",), ("regional",))
    for (s, kappa), way, pools, ratio in itertools.product(pairs, broadcasts, (base.pools, half), ratios):
        if kappa >= 1:
            yield Candidate(s, kappa, way, ratio, AUTO, pools)


class Simulations:
    """Simulates configurations, `jobs` at a time. With a file, none that it holds, made by this code."""

    def __init__(self, jobs: int, kept: Path | None) -> None:
        self._jobs, self._path = jobs, kept
        self._kept: dict[str, Outcome] = {}
        if kept is not None and kept.is_file():
            for line in kept.read_text(encoding="utf-8").splitlines():
                key, outcome = json.loads(line)
                self._kept[key] = Outcome(**outcome)

    def __call__(self, loaded: LoadedConfig, configs: Sequence[Config]) -> list[Outcome]:
        """What each configuration comes to."""
        keys = [hashlib.sha256(f"{code_version()}\n{dumps(c)}".encode()).hexdigest() for c in configs]
        new = [i for i, key in enumerate(keys) if key not in self._kept]
        tasks = [(i, replace(loaded, config=configs[i])) for i in new]
        if tasks:
            for i, outcome in results(run_one, tasks, min(self._jobs, len(tasks))):
                self._keep(keys[i], outcome)
        return [self._kept[key] for key in keys]

    def _keep(self, key: str, outcome: Outcome) -> None:
        self._kept[key] = outcome
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([key, asdict(outcome)]) + "\n")


def by_grid(loaded: LoadedConfig, ratios: Sequence[Ratio], simulated: Simulations) -> Found:
    """Every point simulated."""
    began = time.perf_counter()
    configs = [applied(loaded.config, c, True) for c in grid(given(loaded.config), ratios)]
    outcomes = simulated(loaded, configs)
    done = [(o.usd_per_step, i) for i, o in enumerate(outcomes) if o.complete]
    usd, best = min(done)
    return Found(configs[best], usd, len(configs), 0, time.perf_counter() - began)


def by_search(
    loaded: LoadedConfig, ratios: Sequence[Ratio], most: int, simulated: Simulations, jobs: int
) -> Found:
    """What `echo2 optimise` does."""
    began = time.perf_counter()
    start, plans = given(loaded.config), Plans(loaded)
    space = Space(staleness_choices(start.staleness), tuple(ratios), start.pools)

    def evaluate(chosen: Sequence[Planned]) -> list[Outcome]:
        return simulated(loaded, [plans.config(planned) for planned in chosen])

    goal = objective("step", None, plans.problem(start))
    found = search(plans, space, start, goal, evaluate, most, jobs)
    winner, took = found.winner, time.perf_counter() - began
    return Found(
        plans.config(winner.planned), winner.outcome.usd_per_step, len(found.tried), found.plans, took
    )


def held_out(loaded: LoadedConfig, found: Found, seeds: int, simulated: Simulations) -> list[float]:
    """USD per step of a winner on seeds that the search has not seen, in their order."""
    first = loaded.config.seed + 1000
    configs = [found.config.replaced(seed=seed) for seed in range(first, first + seeds)]
    return [outcome.usd_per_step for outcome in simulated(loaded, configs)]


def said(values: Sequence[float]) -> str:
    """Mean and 95 % interval."""
    found = t_interval(values)
    return f"{found.mean:.4f} +- {found.half:.4f}"


def choices(config: Config) -> str:
    """A winner's choices in short."""
    pools = "+".join(str(pool.count) for pool in config.pool)
    ways = ",".join(config.policy.topologies) or "any"
    run = config.run
    codec = f"delta ratio {config.model.delta_ratio}"
    margin = config.policy.margin
    return f"S {run.staleness}, kappa {run.publish_period}, {ways}, {codec}, margin {margin}, {pools}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--held-out", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", type=Path, help="a file for outcomes, to go on where it was stopped")
    args = parser.parse_args()
    simulated = Simulations(args.jobs, args.kept)
    for name in args.scenarios.split(","):
        loaded = load(FOLDER / f"{name}.toml", [f"run.steps={args.steps}"])
        own = loaded.config.model.delta_ratio
        ratios: tuple[Ratio, ...] = (1.0, own if own != 1 else MEASURED)
        plain = by_grid(loaded, ratios, simulated)
        ours = by_search(loaded, ratios, plain.simulations // SHARE, simulated, args.jobs)
        print(f"{name}, {args.steps} steps, simulated, seed {loaded.config.seed}")
        fresh = {}
        for what, found in (("grid", plain), ("optimise", ours)):
            fresh[what] = held_out(loaded, found, args.held_out, simulated)
            effort = f"{found.simulations:4d} simulations  {found.plans:4d} plans  {found.seconds:5.0f} s"
            print(f"  {what:8s}  {effort}  {found.usd_per_step:.4f} USD/step; others {said(fresh[what])}")
            print(f"            {choices(found.config)}")
        gaps = [b - a for a, b in zip(fresh["grid"], fresh["optimise"])]
        ratio = ours.usd_per_step / plain.usd_per_step
        print(
            f"  optimise / grid = {ratio:.4f}; optimise - grid on {len(gaps)} other seeds {said(gaps)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
