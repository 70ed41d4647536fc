"""`echo2 export skypilot`: a plan as tasks that SkyPilot launches."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from echo2.cli.options import ConfigPath, Set

app = typer.Typer(no_args_is_help=True, help="Write a plan as what other tools launch.")

Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="A new folder for the tasks.")]
Package = Annotated[
    str,
    typer.Option(
        "--package", metavar="URL", help="Where pip finds echo2: a git+https or wheel URL; default: by name."
    ),
]


@app.callback()
def _export() -> None:
    """Write a plan as what other tools launch."""


@app.command()
def skypilot(config: ConfigPath, out: Out, package: Package = "", set_: Set = None) -> None:
    """Write a SkyPilot task for the learner and each kind of worker that the plan rents, and launch.sh."""
    from echo2.cli.output import new_folder, warn
    from echo2.cli.prepare import configuration, scenario
    from echo2.export.launch import write
    from echo2.policy.planner import plan_run

    loaded = configuration(config, set_)
    made = plan_run(scenario(loaded).problem)
    with new_folder(out) as folder:
        tasks = write(folder, loaded, made, package, out)
    for task in tasks:
        for note in task.notes:
            warn(note)
    if loaded.config.train.tls_cert is None:
        warn("train.tls_cert is not set: token and rollouts travel in the clear; set it before you rent")
    workers = sum(task.copies for task in tasks[1:])
    files = ", ".join(task.file for task in tasks)
    typer.echo(f"wrote {out}: {files}; {workers} worker{'' if workers == 1 else 's'} beside the learner")
    typer.echo(
        f"nothing is rented yet; {shlex.quote(str(out / 'launch.sh'))} does it, with SkyPilot installed"
    )
