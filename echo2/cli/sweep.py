"""`echo2 sweep`: plan and simulate every point of a grid, on all cores, and make a table of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.exits import StoppedError
from echo2.cli.options import ConfigPath, DryRun, Json, Seed, Set, whole
from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.cli.sweep_grid import Point
    from echo2.cli.sweep_store import Store

MOST_SEEDS, MOST_JOBS = 10_000, 1024
Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="KEY=A,B,C", help="Values of a key; repeat for more keys."),
]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds",
        metavar="N",
        parser=whole("--seeds", 1, MOST_SEEDS),
        help="Seeds of each point.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The table: .parquet or .csv.")]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", metavar="N", parser=whole("--jobs", 0, MOST_JOBS), help="Processes; 0: all cores."
    ),
]
SHOWN = 24


def sweep(
    config: ConfigPath,
    out: Out,
    grid: Grid = None,
    seeds: Seeds = 1,
    set_: Set = None,
    seed: Seed = None,
    jobs: Jobs = 0,
    json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Simulate a grid of configurations. Stopped half-way, the same command goes on where it was."""
    from echo2.cli.sweep_grid import points
    from echo2.cli.sweep_point import placed
    from echo2.cli.sweep_store import Store, check_format
    from echo2.config.load import read_table

    check_format(out)
    overrides = [*(set_ or ()), *([] if seed is None else [f"seed={seed}"])]
    wanted = points(read_table(config), config, overrides, grid or (), seeds)
    if dry_run:
        return _print_points(wanted)
    with closing(Store(out)) as store:
        kept = sum(point.key in store.rows for point in wanted)
        missing = list({point.key: point for point in wanted if point.key not in store.rows}.values())
        _run(missing, store, jobs or os.cpu_count() or 1, kept)
        rows = [placed(store.rows[point.key], point) for point in wanted]
        store.write_table(rows)
    if json:
        from echo2.cli.output import print_json

        print_json({"out": str(out), "points": len(wanted), "kept": kept, "rows": rows})
    else:
        _show(rows, [name for name, _ in wanted[0].values], out, kept)
    return None


def _run(missing: Sequence[Point], store: Store, jobs: int, kept: int) -> None:
    """Run what is missing, keeping each row at once; whatever stops it, what is done is kept."""
    from echo2.cli.sweep_point import run_point
    from echo2.cli.sweep_pool import results

    done = 0
    rows = results(run_point, missing, min(jobs, len(missing)))
    try:
        with closing(rows), _progress(len(missing)) as advance:
            for row in rows:
                store.add(row)
                done += 1
                advance()
    except KeyboardInterrupt:
        raise StoppedError(
            f"interrupted: {kept + done} of {kept + len(missing)} points are done and kept in {store.path}; "
            "the same command goes on"
        ) from None
    except MemoryError:
        raise UserError(f"out of memory; give fewer --jobs; {store.kept()}") from None
    except UserError as error:
        raise UserError(f"{error}; {store.kept()}") from None


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from echo2.cli.tables import console

    out = console(stderr=True)
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal or not total) as bar:
        task = bar.add_task("sweep", total=total)
        yield lambda: bar.advance(task)


def _print_points(wanted: Sequence[Point]) -> None:
    """The resolved configuration of the first point, and the coordinates of all as comments."""
    from echo2.config import dumps
    from echo2.config.toml import literal

    typer.echo(dumps(wanted[0].config))
    typer.echo(f"# {len(wanted)} points:")
    for point in wanted:
        values = ", ".join(f"{name} = {literal(value)}" for name, value in point.values)
        typer.echo(f"# seed = {point.config.seed}{', ' if values else ''}{values}")


def _show(rows: list[dict[str, Any]], names: list[str], out: Path, kept: int) -> None:
    from echo2.cli.tables import console, table

    columns = ["kappa", "steps/h", "bound", "utilisation", "USD/step", "staleness", "workers", "status"]
    listed = [[*(row[name] for name in names), row["seed"], *_cells(row)] for row in rows[:SHOWN]]
    more = f", the first {SHOWN}" if len(rows) > SHOWN else ""
    console().print(table(f"{len(rows)} points{more}", [*names, "seed", *columns], listed))
    troubles = sum(row["status"] == "error" for row in rows)
    typer.echo(
        f"wrote {out}: {len(rows)} rows, {kept} kept from before"
        + (f", {troubles} errors" if troubles else "")
    )


def _cells(row: dict[str, Any]) -> list[str]:
    if row["status"] == "error":
        return ["", "", "", "", "", "", "", f"error: {row['message']}"]
    return [
        str(row["kappa"]),
        f"{3600 * row['steps_per_s']:.2f}",
        f"{3600 * row['upper_bound_steps_per_s']:.2f}",
        f"{row['learner_utilisation']:.1%}",
        f"{row['step_cost_usd']:.3f}",
        f"{row['staleness_mean']:.2f}",
        str(row["plan_workers"]),
        row["status"],
    ]
