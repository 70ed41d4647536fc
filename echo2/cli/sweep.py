"""`echo2 sweep`: plan and simulate every point of a grid, on all cores or a Ray cluster, and tabulate it."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
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
BACKENDS = ("local", "ray")
Backend = Annotated[
    str,
    typer.Option("--backend", metavar="NAME", help="local: processes of this machine. ray: a Ray cluster."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDRESS",
        help="The cluster: auto, HOST:PORT, ray://HOST:PORT; default: RAY_ADDRESS, else one started here.",
    ),
]


def sweep(
    config: ConfigPath,
    out: Out,
    grid: Grid = None,
    seeds: Seeds = 1,
    set_: Set = None,
    seed: Seed = None,
    jobs: Jobs = 0,
    backend: Backend = "local",
    ray_address: RayAddress = None,
    json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Simulate a grid of configurations. Stopped half-way, the same command goes on where it was."""
    from echo2.cli.sweep_grid import points
    from echo2.cli.sweep_point import placed
    from echo2.cli.sweep_store import Store, check_format
    from echo2.cli.sweep_table import show
    from echo2.config.load import read_table
    from echo2.study.intervals import with_intervals

    check_format(out)
    _check_backend(backend, ray_address)
    overrides = [*(set_ or ()), *([] if seed is None else [f"seed={seed}"])]
    wanted = points(read_table(config), config, overrides, grid or (), seeds)
    if dry_run:
        return _print_points(wanted)
    with closing(Store(out)) as store:
        kept = sum(point.key in store.rows for point in wanted)
        missing = list({point.key: point for point in wanted if point.key not in store.rows}.values())
        _run(missing, _rows(missing, jobs, backend, ray_address), store, kept)
        rows = with_intervals([placed(store.rows[point.key], point) for point in wanted])
        store.write_table(rows)
    if json:
        from echo2.cli.output import print_json

        print_json({"out": str(out), "points": len(wanted), "kept": kept, "rows": rows})
    else:
        show(rows, [name for name, _ in wanted[0].values], out, kept)
    return None


def _check_backend(backend: str, ray_address: str | None) -> None:
    if backend not in BACKENDS:
        raise UserError(f"--backend {backend}: must be {' or '.join(BACKENDS)}")
    if backend == "ray":
        from echo2.cli.sweep_ray import check_ray

        check_ray()
    elif ray_address is not None:
        raise UserError(f"--ray-address {ray_address}: is for --backend ray only; give that too")


def _rows(
    missing: Sequence[Point], jobs: int, backend: str, ray_address: str | None
) -> Generator[dict[str, Any], None, None]:
    """The rows of these points as they are done."""
    if backend == "ray":
        from echo2.cli.sweep_ray import ray_results

        return ray_results(missing, jobs, ray_address)
    from echo2.cli.sweep_point import run_point
    from echo2.cli.sweep_pool import results

    return results(run_point, missing, min(jobs or os.cpu_count() or 1, len(missing)))


def _run(
    missing: Sequence[Point], rows: Generator[dict[str, Any], None, None], store: Store, kept: int
) -> None:
    """Run what is missing, keeping each row at once; whatever stops it, what is done is kept."""
    done = 0
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
