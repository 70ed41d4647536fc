"""`echo2 train`: GRPO live, scheduled by the policy that was planned and simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.cli.options import ConfigPath, DryRun, Seed, Set

if TYPE_CHECKING:
    from collections.abc import Callable

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="The run's folder; runs/NAME by default."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="ECHO2_TOKEN", help="What workers must know; made up by default."),
]


def train(
    config: ConfigPath,
    out: Out = None,
    resume: Resume = False,
    set_: Set = None,
    seed: Seed = None,
    token: Token = None,
    dry_run: DryRun = False,
) -> int:
    """Train live: learner, scheduler and HTTP API here; workers here or dialling in. Ctrl-C keeps the run."""
    from echo2.cli.prepare import configuration, print_resolved, scenario

    loaded = configuration(config, set_, seed)
    if dry_run:
        print_resolved(loaded)
        return 0
    from echo2.config import dumps
    from echo2.policy.planner import plan_run, settings_for
    from echo2.runtime.driver.environment import prepare

    prepare()
    built = scenario(loaded)
    settings = settings_for(built.problem, plan_run(built.problem))
    from echo2.runtime.driver import run_dir
    from echo2.runtime.driver.setup import check_setup

    setup = check_setup(built, settings, loaded.base_dir)
    folder = out or Path("runs") / loaded.config.name
    begin: Callable[[Path, str], Any] = run_dir.resume if resume else run_dir.begin
    return _train(setup, begin(folder, dumps(loaded.config)), resume, token)


def _train(setup: Any, run: Any, resume: bool, token: str | None) -> int:
    import asyncio

    from echo2.cli.exits import INTERRUPTED, StoppedError
    from echo2.cli.live_view import LiveView
    from echo2.runtime.driver.run import train as run_live

    with LiveView(setup.settings.total_steps) as view:
        ended = asyncio.run(run_live(setup, run, resume, token, view.step, view.say))
    view.summary(ended.summary, run.path)
    if ended.error is not None:
        raise ended.error
    if ended.interrupted:
        raise StoppedError(
            f"interrupted at version {ended.summary['version']}; go on with: --resume --out {run.path}"
        )
    return INTERRUPTED if ended.interrupted else 0
