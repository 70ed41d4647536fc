"""`echo2 topology`: every way to spread a snapshot over the workers, against the bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.options import ConfigPath, DryRun, Json, Set

if TYPE_CHECKING:
    from echo2.scenario import Scenario

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the result as JSON.")]
All = Annotated[bool, typer.Option("--all", help="To all workers on offer, not only those the plan rents.")]


def topology(
    config: ConfigPath,
    set_: Set = None,
    all_: All = False,
    json: Json = False,
    out: Out = None,
    dry_run: DryRun = False,
) -> None:
    """Price all broadcast topologies: time, ratio to the bound, egress. Shows the LP bound as well."""
    from echo2.cli.output import print_json, write_text
    from echo2.cli.prepare import configuration, print_resolved, scenario

    loaded = configuration(config, set_)
    if dry_run:
        return print_resolved(loaded)
    result = priced(scenario(loaded), all_)
    if out is not None:
        import json as codec

        write_text(out, codec.dumps(result, indent=2) + "\n")
    if json:
        print_json(result)
    else:
        _show(result)
    return None


def priced(built: Scenario, everyone: bool) -> dict[str, Any]:
    """All candidates and bounds as JSON data."""
    from echo2.cli.prepare import plan_anyhow
    from echo2.policy.broadcast import candidates, cut_bound_s, fluid_bound_s, lp_bound_s

    made, _ = plan_anyhow(built)
    wanted = set(made.chosen)
    offers = [offer for offer in built.problem.offers if everyone or offer.worker_id in wanted]
    problem = built.problem.links.problem(offers, built.problem.snapshot_bytes)
    try:
        lp: float | None = lp_bound_s(problem)
    except ValueError:  # too many receivers for the linear program
        lp = None
    bound = max(lp or 0.0, cut_bound_s(problem))
    return {
        "name": built.config.name,
        "receivers": len(offers),
        "size_bytes": built.problem.snapshot_bytes,
        "bounds_s": {"fluid": fluid_bound_s(problem), "cut": cut_bound_s(problem), "lp": lp},
        "planned": made.broadcast["topology"],
        "planned_reason": made.broadcast["reason"],
        "candidates": [
            {
                "topology": plan.name,
                "time_s": plan.time_s,
                "ratio": plan.time_s / bound if bound else 1.0,
                "mean_s": plan.mean_s,
                "egress_usd": plan.egress_usd,
                "chunks": plan.chunks,
                "reason": plan.reason,
            }
            for plan in candidates(problem)
        ],
    }


def _show(result: dict[str, Any]) -> None:
    from echo2.cli.tables import console, lines, table

    out = console()
    bounds = result["bounds_s"]
    lp = "too many receivers" if bounds["lp"] is None else f"{bounds['lp']:.1f} s"
    title = (
        f"{result['size_bytes'] / 1e9:.2f} GB to {result['receivers']} workers; bounds: fluid "
        f"{bounds['fluid']:.1f} s, with pair caps {bounds['cut']:.1f} s, LP {lp}"
    )
    rows = [
        (
            plan["topology"],
            f"{plan['time_s']:.1f} s",
            f"{plan['ratio']:.3f}",
            f"{plan['mean_s']:.1f} s",
            f"{plan['egress_usd']:.2f}",
            str(plan["chunks"]),
            plan["reason"],
        )
        for plan in result["candidates"]
    ]
    out.print(
        table(title, ["topology", "last", "ratio", "mean", "egress USD", "chunks", "what limits it"], rows)
    )
    out.print()
    lines(out, "In the plan", [result["planned_reason"]])
