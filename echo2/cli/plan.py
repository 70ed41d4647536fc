"""`echo2 plan`: which workers, how stale, published how, at what price; or why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.options import ConfigPath, DryRun, Json, Set
from echo2.cli.output import usd_text

if TYPE_CHECKING:
    from rich.console import Console

    from echo2.policy.plan_types import RunPlan
    from echo2.scenario import Scenario

WORKERS = ["pool", "GPU", "active", "USD/h", "+ egress", "rollouts/s", "fresh", "T_bcast"]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the plan as JSON.")]


def plan(
    config: ConfigPath, set_: Set = None, json: Json = False, out: Out = None, dry_run: DryRun = False
) -> None:
    """Plan a run: publication period, workers, broadcast, cost. Infeasible: exit code 3, with a remedy."""
    from echo2.cli.output import print_json, write_text
    from echo2.cli.prepare import configuration, print_resolved, scenario

    loaded = configuration(config, set_)
    if dry_run:
        return print_resolved(loaded)
    from echo2.policy.planner import plan_run

    built = scenario(loaded)
    made = plan_run(built.problem)
    if out is not None:
        import json as codec

        write_text(out, codec.dumps(as_json(built, made), indent=2) + "\n")
    if json:
        print_json(as_json(built, made))
    else:
        from echo2.cli.tables import console

        show(console(), built, made)
    return None


def as_json(built: Scenario, made: RunPlan) -> dict[str, Any]:
    """`plan --json`: the plan, the prices with their dates, the notes."""
    from dataclasses import asdict

    return {
        "name": built.config.name,
        **made.to_json(),
        "prices": [asdict(price) for price in built.prices],
        "notes": list(built.notes),
    }


def show(out: Console, built: Scenario, made: RunPlan) -> None:
    """The plan for people."""
    from echo2.cli.tables import lines, print_sources, table

    out.print(table(f"Plan of {built.config.name}", ["", "", ""], _headline(made)))
    out.print()
    out.print(table("Workers", WORKERS, _workers(made), flexible=None))
    out.print()
    lines(out, "Why", [f"{row.pool}: {row.reason}" for row in made.workers if row.reason])
    lines(out, "Answers", made.answers)
    print_sources(out, built)


def _headline(made: RunPlan) -> list[tuple[str, str, str]]:
    cast, active = made.broadcast, made.activation
    split = ", ".join(f"{name} {usd_text(usd)}" for name, usd in made.cost_split_usd.items())
    smallest = "none" if made.smallest_feasible_S is None else str(made.smallest_feasible_S)
    on, offered = len(made.chosen), sum(row.on_offer for row in made.workers)
    return [
        ("staleness bound S", str(made.S), f"smallest that keeps the learner busy: {smallest}"),
        (
            "publication period kappa",
            str(made.kappa),
            f"worst lag {made.worst_lag} without the gate, {made.regime}",
        ),
        ("learner utilisation", f"{made.learner_utilisation:.1%}", f"bound by {made.binding}"),
        (
            "steps/h",
            f"{3600 * made.steps_per_s:.2f}",
            f"bound {3600 * made.upper_bound_steps_per_s:.2f}, "
            f"ratio {made.steps_per_s / made.upper_bound_steps_per_s:.3f}",
        ),
        ("USD a step", usd_text(made.step_cost_usd), split),
        (
            "rollouts/s",
            f"{made.mu_active:.2f}",
            f"needed {made.mu_needed:.2f}, safety margin {made.margin:.2f} included",
        ),
        (
            "workers",
            f"{on} of {offered}",
            f"{usd_text(active['cost_usd_per_h'], 2)} USD/h, bound {usd_text(active['bound_usd_per_h'], 2)}, "
            f"ratio {active['ratio']:.3f}; "
            f"all on: {usd_text(active['baseline_all_on_usd_per_h'], 2)} + egress",
        ),
        (
            "broadcast",
            f"{cast['time_s']:.1f} s",
            f"{cast['topology']}, bound {cast['bound_s']:.1f} s, ratio {cast['ratio']:.3f}, "
            f"{usd_text(cast['egress_usd'], 2)} USD; star: {cast['baseline_star_s']:.1f} s, "
            f"{usd_text(cast['baseline_star_egress_usd'], 2)} USD",
        ),
    ]


def _workers(made: RunPlan) -> list[tuple[str, ...]]:
    return [
        (
            row.pool,
            row.gpu,
            f"{row.active}/{row.on_offer}",
            usd_text(row.price_usd_per_h, 2),
            usd_text(row.egress_usd_per_h, 2),
            f"{row.rollouts_per_s:.3f}",
            f"{row.effective_rollouts_per_s / max(row.rollouts_per_s, 1e-12):.0%}",
            f"{row.t_bcast_s:.0f} s",
        )
        for row in made.workers
    ]
