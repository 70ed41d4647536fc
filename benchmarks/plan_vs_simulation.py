"""How far the plan is from the simulation: steps/s and learner utilisation over steady-state scenarios.

First table: constant rates, all workers on, nothing preempted, links that do not vary. The plan's prediction
(`policy.steady.predict`) is compared with the discrete-event simulation after its warm-up. Second table: the
shipped experiments under their real traces (preemptions, link shapes), whole runs from the first second.

    python benchmarks/plan_vs_simulation.py [--seeds N] [--only-worse-than 0.05]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from echo2 import config, scenario, traces
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths, steady_rate
from echo2.policy.links import LinkTable
from echo2.policy.plan_types import PlanProblem
from echo2.policy.planner import settings_for, settle_run
from echo2.policy.provision import provision
from echo2.policy.search import demand_for, steady_state
from echo2.policy.settings import SchedulerSettings
from echo2.sim.inputs import LearnerModel, SimWorker, WorldInputs
from echo2.sim.run import simulate

TRAIN_S = 60.0
BATCH, GROUP = 256, 8
LEARNER_UPLINK_BPS = 10e9
WARM_UP, MEASURED = 30, 60
EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


@dataclass(frozen=True)
class Case:
    """One scenario. `load`: rollouts/s of the pool over what the learner needs. `bcast_s`: of a snapshot."""

    S: int
    kappa: int
    load: float
    bcast_s: float
    lengths: str
    mixed: bool
    reading: Literal["overlap", "stall"] = "overlap"

    @property
    def name(self) -> str:
        """Short label."""
        pool = "mixed" if self.mixed else "equal"
        return (
            f"S={self.S:<2} kappa={self.kappa:<2} load={self.load:<4} bcast={self.bcast_s:>3.0f}s "
            f"{self.lengths:<9} {pool} {self.reading}"
        )


def cases() -> Iterator[Case]:
    """The grid: 108 scenarios."""
    kappas = {0: (1,), 1: (1, 2), 3: (1, 3), 6: (1, 3, 5), 11: (2, 6)}
    for S, choices in kappas.items():
        for kappa, load, bcast_s in itertools.product(choices, (0.7, 1.05, 2.0), (6.0, 45.0)):
            yield Case(S, kappa, load, bcast_s, "client_35", mixed=(kappa + S) % 2 == 0)
    for S, kappa in ((0, 1), (3, 2), (6, 3)):
        for load, bcast_s in itertools.product((0.7, 1.05, 2.0), (6.0, 45.0)):
            yield Case(S, kappa, load, bcast_s, "constant", mixed=False)
            yield Case(S, kappa, load, bcast_s, "constant", mixed=True)
    for S, kappa in ((3, 2), (6, 5)):
        for load, bcast_s in itertools.product((0.7, 1.05), (6.0, 45.0)):
            yield Case(S, kappa, load, bcast_s, "client_35", mixed=True, reading="stall")


def problem_of(case: Case) -> PlanProblem:
    """A pool scaled so that its raw rate is `load` times the need, with the wanted broadcast time."""
    lengths = traces.lengths("r1-client_35").truncated(12_000) if case.lengths == "client_35" else None
    lengths = lengths or TokenLengths.constant(2_500.0)
    speeds = (1.0, 0.5, 2.0) if case.mixed else (1.0,)
    base = DecodeModel((1.0, 64.0), (0.010, 0.022), (2e-8, 1.2e-6), max_running=48)
    count = 12
    models = [replace(base, speedup=speeds[i % len(speeds)]) for i in range(count)]
    raw = sum(steady_rate(model, lengths, 200.0).rollouts_per_s for model in models)
    scale = case.load * BATCH / TRAIN_S / raw
    offers, decode = [], {}
    for i, model in enumerate(models):
        model = replace(model, speedup=model.speedup * scale)
        rate = steady_rate(model, lengths, 200.0, group_size=8)
        name = f"w{i:02d}"
        decode[name] = model
        offers.append(
            WorkerOffer(
                name, f"pool{i % len(speeds)}", "GPU", "a", 1.0, rate.rollouts_per_s, rate.slots,
                rate.group_s, rate.tail_s, LEARNER_UPLINK_BPS, 1e12,
            )
        )  # fmt: skip
    size = case.bcast_s * LEARNER_UPLINK_BPS / 8.0
    links = LinkTable(("a",), ((1e12,),), ((0.002,),), ((0.0,),), "a", LEARNER_UPLINK_BPS, LEARNER_UPLINK_BPS)
    return PlanProblem(
        case.S, case.kappa, BATCH, GROUP, WARM_UP + MEASURED, TRAIN_S, 0.0, 20.0, size, size, tuple(offers),
        decode, lengths, 200.0, links, reading=case.reading, activation="all", margin=1.0, best_effort=True,
    )  # fmt: skip


def predicted(problem: PlanProblem) -> tuple[float, float]:
    """(steps/s, learner utilisation) of the plan."""
    result = provision(problem.offers, problem.links, demand_for(problem, problem.publish_period), "all")
    steady = steady_state(problem, problem.publish_period, result)
    return steady.steps_per_s, steady.learner_utilisation


def simulated(problem: PlanProblem, seed: int) -> tuple[float, float, float]:
    """(steps/s, learner utilisation, dropped share) of the simulation after its warm-up."""
    settings = SchedulerSettings(
        problem.staleness_bound, problem.publish_period, BATCH, GROUP, problem.total_steps, TRAIN_S,
        problem.full_snapshot_bytes, problem.snapshot_bytes, 20.0, problem.links, reading=problem.reading,
        activation="all",
    )  # fmt: skip
    workers = tuple(SimWorker(offer, problem.decode[offer.worker_id]) for offer in problem.offers)
    world = WorldInputs(settings, workers, LearnerModel(TRAIN_S), problem.lengths, problem.prompt_tokens)
    result = simulate(world, seed)
    metrics = result.world.metrics
    ends = metrics.step_end_s
    seconds = ends[-1] - ends[WARM_UP - 1]
    steps = len(ends) - WARM_UP
    return steps / seconds, sum(metrics.train_s[WARM_UP:]) / seconds, result.summary()["dropped_share"]


def steady_states(seeds: int, shown_above: float) -> None:
    """The table of constant rates and its summary."""
    errors = []
    print(f"{'scenario':<62} {'plan util':>9} {'sim util':>9} {'error':>7} {'steps/s':>8} {'dropped':>8}")
    for case in cases():
        problem = problem_of(case)
        rate, use = predicted(problem)
        runs = [simulated(problem, seed) for seed in range(seeds)]
        sim_rate, sim_use, dropped = (float(np.mean(column)) for column in zip(*runs))
        error, rate_error = use / sim_use - 1.0, rate / sim_rate - 1.0
        errors.append((abs(error), abs(rate_error), dropped))
        if abs(error) >= shown_above:
            print(
                f"{case.name:<62} {use:>9.3f} {sim_use:>9.3f} {error:>+7.1%} {rate_error:>+8.1%} "
                f"{dropped:>8.1%}",
                flush=True,
            )
    table = np.array(errors)
    few = table[table[:, 2] <= 0.1]
    print(
        f"\n{len(errors)} scenarios: utilisation error mean {table[:, 0].mean():.2%}, "
        f"p95 {np.quantile(table[:, 0], 0.95):.2%}, max {table[:, 0].max():.2%}, "
        f"within 5 %: {(table[:, 0] <= 0.05).sum()}; steps/s mean {table[:, 1].mean():.2%}, "
        f"max {table[:, 1].max():.2%}\n"
        f"{len(few)} of them drop at most 10 % of their rollouts: max {few[:, 0].max():.2%}, "
        f"within 5 %: {(few[:, 0] <= 0.05).sum()}"
    )


def real_traces(seeds: int) -> None:
    """The shipped experiments, planned and simulated under their traces."""
    print(
        f"\n{'experiment':<22} {'plan util':>9} {'sim util':>9} {'error':>7} {'USD/step plan':>14} {'sim':>7}"
    )
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        loaded = config.load(path)
        built = scenario.build(loaded.config, loaded.base_dir, loaded.source)
        plan, _ = settle_run(built.problem)
        world = built.world(settings_for(built.problem, plan))
        runs = [simulate(world, seed).summary() for seed in range(1, seeds + 1)]
        use = float(np.mean([run["learner_utilisation"] for run in runs]))
        usd = float(np.mean([run["step_cost_usd"] for run in runs]))
        print(
            f"{path.stem:<22} {plan.learner_utilisation:>9.3f} {use:>9.3f} "
            f"{plan.learner_utilisation / use - 1:>+7.1%} {plan.step_cost_usd:>14.3f} {usd:>7.3f}",
            flush=True,
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only-worse-than", type=float, default=0.0, help="print rows above this error")
    options = parser.parse_args()
    steady_states(options.seeds, options.only_worse_than)
    real_traces(options.seeds)


if __name__ == "__main__":
    main()
