"""USD of egress per version, star against the chosen plan, for the shipped scenarios.

    python benchmarks/egress.py [--weights 0 1 10]

Each scenario is planned as `echo2 plan` does (best effort), and its workers are sent one version: as its
configuration says (deltas where it asks for them) and, where that differs, as a full snapshot. Every row is
one `run.egress_weight`: 0 looks at time alone, 1 holds USD of egress against USD of rollouts lost to
lateness. `late` is what the plan's lateness costs by the scheduler's own rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from echo2 import config, scenario
from echo2.policy.broadcast import BroadcastPlan, candidates
from echo2.policy.facts import WorkerOffer
from echo2.policy.plan_choice import choose_plan
from echo2.policy.plan_types import PlanProblem
from echo2.policy.planner import settings_for, settle_run
from echo2.policy.worth import Demand, lateness_usd, rollout_usd

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


@dataclass(frozen=True)
class Row:
    """One version sent to the planned workers."""

    scenario: str
    workers: int
    weight: float
    size_gb: float
    star: BroadcastPlan
    plan: BroadcastPlan
    late_usd: float


def shipped() -> list[Path]:
    """The configurations that are planned and simulated."""
    return sorted(EXPERIMENTS.glob("*.toml"))


def rows_of(path: Path, weights: list[float]) -> Iterator[Row]:
    """The rows of one scenario."""
    loaded = config.load(path)
    built = scenario.build(loaded.config, loaded.base_dir, str(path))
    problem: PlanProblem = replace(built.problem, best_effort=True)
    plan, _ = settle_run(problem)
    settings = settings_for(problem, plan)
    offers = [offer for offer in problem.offers if offer.worker_id in set(plan.chosen)]
    for size in dict.fromkeys((problem.snapshot_bytes, problem.full_snapshot_bytes)):
        demand = replace(settings.demand(settings.train_s), snapshot_bytes=size)
        plans = candidates(problem.links.problem(offers, size), topologies=problem.topologies)
        star = min((p for p in plans if p.topology == "star"), key=lambda p: p.time_s)
        for weight in weights:
            weighted = replace(demand, egress_weight=weight)
            best, _ = choose_plan(plans, offers, weighted)
            yield Row(path.stem, len(offers), weight, size / 1e9, star, best, late_usd(best, offers, demand))


def late_usd(plan: BroadcastPlan, offers: list[WorkerOffer], demand: Demand) -> float:
    """USD of rollouts lost to the plan's lateness, per version."""
    each = rollout_usd(offers, demand)
    by_id = {offer.worker_id: offer for offer in offers}
    times = zip(plan.order, plan.receiver_s)
    return sum(lateness_usd(by_id[name], demand, seconds, each) for name, seconds in times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 1.0])
    options = parser.parse_args()
    print(
        f"{'scenario':24}{'N':>4}{'GB':>8}{'weight':>8}  {'star':>8}{'':>10}  {'plan':10}{'USD':>8}{'s':>10}"
        f"{'late USD':>10}{'saved':>8}"
    )
    for path in shipped():
        for row in rows_of(path, options.weights):
            star, plan = row.star, row.plan
            saved = 1.0 - plan.egress_usd / star.egress_usd if star.egress_usd else 0.0
            print(
                f"{row.scenario:24}{row.workers:>4}{row.size_gb:>8.2f}{row.weight:>8g}"
                f"  {star.egress_usd:>8.2f}{star.time_s:>8.1f} s  {plan.name:10}{plan.egress_usd:>8.2f}"
                f"{plan.time_s:>10.1f}{row.late_usd:>10.2f}{saved:>8.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
