"""`echo2 train`: GRPO live, scheduled by the policy that was planned and simulated."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from echo2.cli.exits import INTERRUPTED, MISTAKE, StoppedError
from echo2.cli.options import ConfigPath, DryRun, Seed, Set
from echo2.errors import UserError

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
    from echo2.runtime.driver.setup import check_setup

    setup = check_setup(built, settings, loaded.base_dir)
    from echo2.runtime.driver.torchrun import place

    where = place()
    if where is not None and where.rank > 0:
        from echo2.runtime.driver.follower import follow

        follow(setup, where)
        return 0
    from echo2.runtime.driver.run import Order

    order = Order(out or Path("runs") / loaded.config.name, dumps(loaded.config), resume, token)
    return _train(setup, order)


def _train(setup: Any, order: Any) -> int:
    import asyncio

    from echo2.cli.live_view import LiveView
    from echo2.runtime.driver.ending import busy_threads, end_at_once
    from echo2.runtime.driver.run import train as run_live

    threading.excepthook = _in_a_thread
    with LiveView(setup.settings.total_steps) as view:
        ended = asyncio.run(run_live(setup, order, view.step, view.say))
    if ended.summary:
        view.summary(ended.summary, order.folder)
    else:
        view.say(f"the run is complete at version {ended.version}; raise run.steps to go on with it")
    trouble = _trouble(ended, order.folder)
    if busy := busy_threads():
        code = 0 if trouble is None else INTERRUPTED if ended.interrupted else MISTAKE
        end_at_once(code, f"{trouble or 'done'} ({', '.join(busy)}: still at work, not waited for)")
    if trouble is not None:
        raise trouble
    return 0


def _in_a_thread(what: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread of its own, which cannot tell anyone that the disk is full."""
    if isinstance(what.exc_value, OSError):
        sys.stderr.write(f"while writing: {what.exc_value.strerror or what.exc_value}\n")
    else:
        threading.__excepthook__(what)


def _trouble(ended: Any, folder: Path) -> Exception | None:
    """What the command ends with where it is not well: one line, and how to go on."""
    if ended.error is None:
        again = f"interrupted at version {ended.version}; go on with: --resume --out {folder}"
        return StoppedError(again) if ended.interrupted else None
    if isinstance(ended.error, UserError):
        return ended.error
    import traceback

    text = "".join(traceback.format_exception(ended.error))
    place = folder / "error.txt"
    with contextlib.suppress(OSError):
        place.write_text(text, encoding="utf-8")
    kind = type(ended.error).__name__
    return UserError(f"{kind}: {ended.error}; a fault of echo2 or of the task, see {place}; --resume goes on")
