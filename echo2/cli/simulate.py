"""`echo2 simulate`: run the planned scheduler through a simulated world on real traces."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.options import ConfigPath, DryRun, Json, Seed, Set
from echo2.cli.output import usd_text

if TYPE_CHECKING:
    from rich.console import Console

    from echo2.policy.plan_types import RunPlan
    from echo2.scenario import Scenario

WORKERS = ["pool", "GPU", "workers", "paid h", "busy", "rollouts", "USD", "egress USD"]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Write log.jsonl, summary.json, trace.json (Perfetto), config.toml, plan.json.",
    ),
]


def simulate(
    config: ConfigPath,
    set_: Set = None,
    seed: Seed = None,
    json: Json = False,
    out: Out = None,
    dry_run: DryRun = False,
) -> None:
    """Simulate a run with the scheduler that also drives live training."""
    from echo2.cli.output import new_folder, print_json
    from echo2.cli.prepare import configuration, print_resolved

    loaded = configuration(config, set_, seed)
    if dry_run:
        return print_resolved(loaded)
    from echo2.config import dumps

    if out is None:
        built, made, summary = _run(loaded, None)
    else:
        with new_folder(out) as folder:
            (folder / "config.toml").write_text(dumps(loaded.config), encoding="utf-8")
            built, made, summary = _run(loaded, folder)
    if json:
        print_json(as_json(built, made, summary))
    else:
        from echo2.cli.tables import console

        show(console(), built, made, summary)
        if out is not None:
            typer.echo(f"wrote {out}; replay it with: echo2 replay {shlex.quote(str(out))}")
    return None


def _run(loaded: Any, folder: Path | None) -> tuple[Scenario, RunPlan, dict[str, Any]]:
    import json as codec
    from dataclasses import asdict

    from echo2.cli.output import warn
    from echo2.cli.plan import as_json as json_of_plan
    from echo2.cli.prepare import plan_anyhow, scenario
    from echo2.cli.startup import startup
    from echo2.policy.planner import settings_for
    from echo2.sim import run as simulation

    built = scenario(loaded)
    made, trouble = plan_anyhow(built)
    if made.S and built.problem.total_steps <= made.S + 1:
        warn(
            f"run.steps = {built.problem.total_steps}: the first S + 1 = {made.S + 1} steps may train on the "
            "weights of the start, so this run shows nothing of the broadcast; give more steps"
        )
    if trouble:
        warn(f"{trouble}; simulating the best that can be done")
    world = built.world(settings_for(built.problem, made))
    result = simulation.simulate(world, loaded.config.seed, keep_log=folder is not None)
    start = startup(result, made)
    summary = {**result.summary(), "startup": asdict(start)}
    if folder is not None:
        result.write(folder)
        plan = json_of_plan(built, made)
        (folder / "plan.json").write_text(codec.dumps(plan, indent=2) + "\n", encoding="utf-8")
    if not summary["complete"]:
        done = f"{summary['steps']} of {loaded.config.run.steps} steps"
        warn(f"the run did not finish: {done}; then it waited for {summary['waiting_for']}")
    return built, made, summary


def as_json(built: Scenario, made: RunPlan, summary: dict[str, Any]) -> dict[str, Any]:
    """`simulate --json`: the summary, what was planned, and the notes."""
    planned = {
        name: getattr(made, name)
        for name in ("S", "kappa", "steps_per_s", "learner_utilisation", "step_cost_usd", "t_bcast_s")
    }
    return {
        "name": built.config.name,
        "seed": built.config.seed,
        **summary,
        "plan": {**planned, "topology": made.broadcast["topology"], "workers": len(made.chosen)},
        "notes": list(built.notes),
    }


def show(out: Console, built: Scenario, made: RunPlan, summary: dict[str, Any]) -> None:
    """The result for people."""
    from echo2.cli.tables import lines, table

    title = f"Simulation of {built.config.name}, seed {built.config.seed}, S = {made.S}, kappa = {made.kappa}"
    out.print(table(title, ["", "simulated", "planned", ""], _headline(made, summary)))
    out.print()
    idle = [(cause, f"{share:.1%}") for cause, share in summary["bubble_by_cause"].items()]
    if idle:
        out.print(table("Learner idle", ["waiting for", "of the time"], idle, flexible=None))
        out.print()
    out.print(table("Workers used", WORKERS, _by_pool(summary["workers"]), flexible=None))
    out.print()
    lines(out, "Where the numbers come from", built.notes)


def _headline(made: RunPlan, summary: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    from echo2.cli.startup import StartUp, phrase

    start = phrase(StartUp(**summary["startup"]))
    stale, tail, split = summary["staleness"], summary["bcast_tail_s"], summary["cost_split_usd"]
    steps = max(1, summary["steps"])
    bound = summary["upper_bound_steps_per_s"]
    tokens, events = summary["tokens"], summary["events"]
    return [
        (
            "steps/h",
            f"{3600 * summary['steps_per_s']:.2f}",
            f"{3600 * made.steps_per_s:.2f}",
            f"{summary['steps']} steps in {summary['wall_s'] / 3600:.2f} h; bound {3600 * bound:.2f} "
            f"({summary['upper_bound_term']}), ratio {summary['steps_per_s'] / max(bound, 1e-12):.3f}",
        ),
        (
            "learner utilisation",
            f"{summary['learner_utilisation']:.1%}",
            f"{made.learner_utilisation:.1%}",
            "; ".join(part for part in (f"bubble {summary['bubble']:.1%}", start) if part),
        ),
        (
            "USD a step",
            usd_text(summary["step_cost_usd"]) if summary["steps"] else "no step",
            usd_text(made.step_cost_usd),
            ", ".join(f"{name} {usd_text(usd / steps)}" for name, usd in split.items()),
        ),
        (
            "staleness, mean",
            f"{stale['mean']:.2f}",
            "",
            f"p50 {stale['p50']:g}, p99 {stale['p99']:g}, max {stale['max']:g} of S = {made.S}; dropped "
            f"{summary['dropped_share']:.2%}",
        ),
        (
            "broadcast tail, p50",
            f"{tail['p50']:.1f} s",
            f"{made.t_bcast_s:.1f} s",
            f"p99 {tail['p99']:.1f} s; {made.broadcast['topology']}, {summary['published']} snapshots",
        ),
        (
            "trained tokens, mean",
            f"{tokens['trained_mean']:,.0f}",
            "",
            f"dispatched {tokens['dispatched_mean']:,.0f}",
        ),
        (
            "worker utilisation",
            f"{summary['worker_utilisation']:.1%}",
            "",
            f"{summary['preemptions']} preemptions",
        ),
        (
            "simulated in",
            f"{summary['elapsed_s']:.2f} s",
            "",
            f"{events['facts']:,} facts, {events['decisions']:,} decisions",
        ),
    ]


def _by_pool(workers: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    pools: dict[str, list[dict[str, Any]]] = {}
    for worker in workers:
        pools.setdefault(worker["pool"], []).append(worker)
    rows: list[tuple[str, ...]] = []
    for pool, members in pools.items():
        paid = sum(m["paid_s"] for m in members)
        busy = sum(m["busy_share"] * m["paid_s"] for m in members)
        rows.append(
            (
                pool,
                members[0]["gpu"],
                str(len(members)),
                f"{paid / 3600:.1f}",
                f"{busy / paid:.0%}",
                f"{sum(m['rollouts'] for m in members):,}",
                usd_text(sum(m["usd"] for m in members), 2),
                usd_text(sum(m["egress_usd"] for m in members), 2),
            )
        )
    return rows
