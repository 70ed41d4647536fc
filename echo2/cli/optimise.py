"""`echo2 optimise`: search S, kappa, pools, topology and codec for the cheapest run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from echo2.cli.options import ConfigPath, Json, Seed, Set, whole
from echo2.config.model import MAX_SEED
from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.config import LoadedConfig
    from echo2.study.candidate import Planned, Plans, Ratio
    from echo2.study.objective import Outcome
    from echo2.study.optimise import Search, Tried

# What a line is on the front of, in the table.
MARKS = {"staleness wall": "both", "staleness": "stale"}
COLUMNS = ("USD/step", "USD/h", "wall h", "stale", "front")
MEASURED: Literal["measured"] = "measured"
MOST_S, MOST_RATIO = 1000, 10_000
Objective = Annotated[
    str,
    typer.Option("--objective", metavar="NAME", help="step: USD per step. wall-hour: USD per wall hour."),
]
Deadline = Annotated[
    float | None,
    typer.Option("--deadline-h", metavar="HOURS", help="The whole run must end within this."),
]
Staleness = Annotated[
    str | None,
    typer.Option("--staleness", metavar="A,B,C", help="Values of S; by default up to the configuration's."),
]
Ratios = Annotated[
    str | None,
    typer.Option(
        "--delta-ratio",
        metavar="A,B,C",
        help="Codecs: 1 is full snapshots, 50 deltas 50x smaller, or measured; default: all of these.",
    ),
]
Simulations = Annotated[
    int,
    typer.Option(
        "--simulations", metavar="N", parser=whole("--simulations", 1, 10_000), help="Simulated runs at most."
    ),
]
Seeds = Annotated[
    int,
    typer.Option("--seeds", metavar="N", parser=whole("--seeds", 1, 1000), help="Seeds of each finalist."),
]
Jobs = Annotated[
    int,
    typer.Option("--jobs", metavar="N", parser=whole("--jobs", 1, 1024), help="Simulations at a time."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The winner's configuration, TOML.")]


def optimise(
    config: ConfigPath,
    objective: Objective = "step",
    deadline_h: Deadline = None,
    staleness: Staleness = None,
    delta_ratio: Ratios = None,
    simulations: Simulations = 12,
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    set_: Set = None,
    seed: Seed = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Search the cheapest run: every choice by its plan, then the finalists in simulation."""
    from echo2.cli.prepare import configuration
    from echo2.study.candidate import Plans, given
    from echo2.study.neighbours import Space, staleness_choices
    from echo2.study.objective import objective as chosen
    from echo2.study.optimise import search

    loaded = configuration(config, set_, seed)
    start = given(loaded.config)
    _check_seeds(seeds, simulations, loaded.config.seed)
    if out is not None:
        _check_out(out)
    space = Space(
        staleness_choices(start.staleness, _numbers("--staleness", staleness, 0, MOST_S, int)),
        _ratios(start.delta_ratio, delta_ratio),
        start.pools,
    )
    plans = Plans(loaded)
    goal = chosen(objective, deadline_h, plans.problem(start))
    batch = max(1, jobs // seeds)
    found = search(
        plans, space, start, goal, _evaluate(plans, loaded, seeds, jobs), simulations // seeds, batch, _say
    )
    if out is not None:
        _write(found, plans, loaded, out)
    if json:
        from echo2.cli.output import print_json

        print_json(_as_json(found, plans, seeds))
    else:
        _show(found, plans, loaded, seeds, out)


def _check_seeds(seeds: int, simulations: int, first: int) -> None:
    if seeds > simulations:
        raise UserError(
            f"--seeds {seeds}: must be <= --simulations {simulations}, or no finalist is simulated"
        )
    if first + seeds - 1 > MAX_SEED:
        raise UserError(f"--seeds {seeds}: seeds must be <= {MAX_SEED:,}; give a smaller first seed")


def _check_out(out: Path) -> None:
    """Refuse before the search, which takes minutes, what could not be written after it."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; give the name of a file")
    if not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise UserError(f"--out {out}: cannot be written; make its folder, or choose another place")


def _numbers(option: str, text: str | None, least: float, most: float, kind: type) -> list[Any]:
    if text is None:
        return []
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = [least - 1]
    if not all(least <= value <= most for value in found):
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{option} {text}: must be {what} of {least:g} to {most:,}, like 1,2,4")
    return found


def _ratios(own: Ratio, text: str | None) -> tuple[Ratio, ...]:
    """Full snapshots, the configuration's own and what was measured, unless others are wanted."""
    if text is None:
        return tuple(dict.fromkeys((1.0, own, MEASURED)))
    numbers = ",".join(part for part in text.split(",") if part.strip() != MEASURED)
    found: list[Ratio] = [MEASURED] if MEASURED in text else []
    if numbers or not found:
        found += _numbers("--delta-ratio", numbers, 1, MOST_RATIO, float)
    return tuple(dict.fromkeys(found))


def _evaluate(
    plans: Plans, loaded: LoadedConfig, seeds: int, jobs: int
) -> Callable[[Sequence[Planned]], list[Outcome]]:
    """What simulates candidates: each with every seed, in `jobs` processes."""
    from dataclasses import replace

    from echo2.cli.sweep_pool import results
    from echo2.study.simulated import mean_of, run_one

    def evaluate(chosen: Sequence[Planned]) -> list[Outcome]:
        tasks: list[tuple[int, LoadedConfig]] = []
        for planned in chosen:
            config = plans.config(planned)
            for seed in range(config.seed, config.seed + seeds):
                tasks.append((len(tasks), replace(loaded, config=config.replaced(seed=seed))))
        done = dict(results(run_one, tasks, min(jobs, len(tasks))))
        return [mean_of([done[i * seeds + j] for j in range(seeds)]) for i in range(len(chosen))]

    return evaluate


def _say(line: str) -> None:
    """Progress, on standard error where that is a terminal."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


def _write(found: Search, plans: Plans, loaded: LoadedConfig, out: Path) -> None:
    from echo2.cli.output import write_text
    from echo2.config import dumps
    from echo2.study.candidate import rebased

    config = rebased(plans.config(found.winner.planned), loaded.base_dir, out.parent)
    write_text(out, dumps(config))


def _as_json(found: Search, plans: Plans, seeds: int) -> dict[str, Any]:
    from dataclasses import asdict

    from echo2.study.reasons import reasons

    marks = _front(found)
    rows = [
        {
            "S": t.planned.candidate.staleness,
            "kappa": t.planned.candidate.publish_period,
            "topologies": list(t.planned.candidate.topologies),
            "delta_ratio": t.planned.candidate.delta_ratio,
            "margin": t.planned.candidate.margin or "auto",
            "pools": dict(t.planned.candidate.pools),
            "broadcast": t.planned.plan.broadcast["topology"],
            "plan_usd_per_step": t.planned.plan.step_cost_usd,
            "value": found.goal.of_outcome(t.outcome) if _counts(found, t) else None,
            **asdict(t.outcome),
            "front": mark,
        }
        for t, mark in zip(found.tried, marks)
    ]
    return {
        "objective": found.goal.unit,
        "plans": found.plans,
        "simulations": len(found.tried) * seeds,
        "winner": rows[0],
        "simulated": rows,
        "reasons": list(reasons(found, plans)),
    }


def _counts(found: Search, tried: Tried) -> bool:
    return found.goal.of_outcome(tried.outcome) < float("inf")


def _front(found: Search) -> list[str]:
    """For each simulated candidate the fronts it is on, of those that count."""
    from echo2.study.pareto import front

    fine = [t for t in found.tried if _counts(found, t)]
    value = found.goal.of_outcome
    stale = front([(t.outcome.staleness_mean, value(t.outcome)) for t in fine])
    wall = front([(t.outcome.wall_h, value(t.outcome)) for t in fine])
    marks = {
        id(t): " ".join(name for name, on in (("staleness", a), ("wall", b)) if on)
        for t, a, b in zip(fine, stale, wall)
    }
    return [marks.get(id(t), "") for t in found.tried]


def _show(found: Search, plans: Plans, loaded: LoadedConfig, seeds: int, out: Path | None) -> None:
    from echo2.cli.tables import console, lines, table
    from echo2.study.reasons import reasons, said

    screen = console()
    rows = []
    for tried, mark in zip(found.tried, _front(found)):
        c, o, plan = tried.planned.candidate, tried.outcome, tried.planned.plan
        rows.append(
            [
                c.staleness,
                c.publish_period,
                plan.broadcast["topology"],
                said(c, "delta_ratio"),
                said(c, "margin"),
                len(plan.chosen),
                f"{plan.step_cost_usd:.3f}",
                f"{o.usd_per_step:.3f}",
                f"{o.usd_per_h:.2f}",
                f"{o.wall_h:.2f}",
                f"{o.staleness_mean:.2f}",
                MARKS.get(mark, mark) if _counts(found, tried) else "late",
            ]
        )
    columns = ["S", "kappa", "topology", "codec", "margin", "workers", "planned", *COLUMNS]
    runs = len(found.tried) * seeds
    title = f"{loaded.config.name}: best of {found.plans} plans and {runs} simulated runs, {found.goal.unit}"
    screen.print(table(title, columns, rows))
    screen.print()
    lines(screen, "Why the first", reasons(found, plans))
    if out is not None:
        typer.echo(f"wrote {out}; run it with: echo2 simulate {out}")
