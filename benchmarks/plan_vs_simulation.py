"""How far the plan is from the simulation: steps/s and learner utilisation over steady-state scenarios.

First table: constant rates, all workers on, nothing preempted, links that do not vary. The plan's prediction
(`policy.steady.predict`) is compared with the discrete-event simulation after its warm-up. Second table: the
shipped experiments under their real traces (preemptions, link shapes); `--knowing levels` plans them as if
nothing varied, which is what knowing the variation is to be compared with.

    python benchmarks/plan_vs_simulation.py [--seeds N] [--only-worse-than 0.05] [--tables traces]
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
FIRST_STEPS = 20
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


def levels_only(problem: PlanProblem) -> PlanProblem:
    """The problem of a planner that knows levels alone: no link varies and nobody is lost."""
    offers = tuple(
        replace(offer, preemptions_per_h=0.0, link_slowness=1.0, link_out_share=0.0, link_out_s=0.0)
        for offer in problem.offers
    )
    return replace(problem, offers=offers)


def under_traces() -> Iterator[tuple[str, config.LoadedConfig]]:
    """The shipped experiments, and home lines by the hundred, all on: what varying links alone do."""
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        yield path.stem, config.load(path)
    home = config.load(EXPERIMENTS / "consumer-home.toml", ["run.steps=60", 'policy.activation="all"'])
    pools = tuple(
        pool.model_copy(update={"count": 3 * pool.count, "availability": None}) for pool in home.config.pool
    )
    yield "96 home lines, all on", replace(home, config=home.config.replaced(pool=pools))


def real_traces(seeds: int, known: Literal["variation", "levels"], only: str) -> None:
    """Planned and simulated under their traces; each seed begins elsewhere in them."""
    print(
        f"\nplanned knowing {known}; simulated: whole runs, and after the first {FIRST_STEPS} steps\n"
        f"{'experiment':<22} {'workers':>7} {'plan util':>9} {'sim util':>9} {'error':>7} {'later':>7} "
        f"{'error':>7} {'steps/h plan':>12} {'sim':>8} {'error':>7} {'USD/step plan':>14} {'sim':>9}"
    )
    for name, loaded in under_traces():
        if only not in name:
            continue
        runs = [trace_run(loaded, seed, known) for seed in range(1, seeds + 1)]
        table = np.array([run[1:] for run in runs]).mean(axis=0)
        plan_use, use, later, plan_rate, rate, plan_usd, usd = table.tolist()
        print(
            f"{name:<22} {runs[0][0]:>7} {plan_use:>9.3f} {use:>9.3f} {plan_use / use - 1:>+7.1%} "
            f"{later:>7.3f} {plan_use / later - 1:>+7.1%} {plan_rate:>12.2f} {rate:>8.2f} "
            f"{plan_rate / rate - 1:>+7.1%} {plan_usd:>14.3g} {usd:>9.3g}",
            flush=True,
        )


def trace_run(
    loaded: config.LoadedConfig, seed: int, known: Literal["variation", "levels"]
) -> tuple[int, float, float, float, float, float, float, float]:
    """(workers, utilisation planned, simulated, simulated later, steps/h and USD a step likewise)."""
    built = scenario.build(loaded.config.replaced(seed=seed), loaded.base_dir, loaded.source)
    problem = built.problem if known == "variation" else levels_only(built.problem)
    plan, _ = settle_run(problem)
    result = simulate(built.world(settings_for(problem, plan)), seed)
    run, metrics = result.summary(), result.world.metrics
    first = min(FIRST_STEPS, len(metrics.step_end_s) // 2)
    later = sum(metrics.train_s[first:]) / (metrics.step_end_s[-1] - metrics.step_end_s[first - 1])
    return (
        len(plan.chosen), plan.learner_utilisation, run["learner_utilisation"], later,
        3600 * plan.steps_per_s, 3600 * run["steps_per_s"], plan.step_cost_usd, run["step_cost_usd"],
    )  # fmt: skip


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only-worse-than", type=float, default=0.0, help="print rows above this error")
    parser.add_argument("--tables", choices=("both", "constant", "traces"), default="both")
    parser.add_argument("--knowing", choices=("variation", "levels"), default="variation")
    parser.add_argument("--experiment", default="", help="of the second table, rows with this in their name")
    options = parser.parse_args()
    if options.tables != "traces":
        steady_states(options.seeds, options.only_worse_than)
    if options.tables != "constant":
        real_traces(options.seeds, options.knowing, options.experiment)


if __name__ == "__main__":
    main()
