"""All commands, and how errors become one line and an exit code. Called by `main`.

Exit codes: 0 fine, 2 the user's mistake (or a file that cannot be written), 3 an infeasible plan,
130 interrupted. Commands import what they need when they run, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import echo2
from echo2.cli import (
    compare,
    export,
    figures,
    init,
    optimise,
    pareto,
    plan,
    replay,
    report,
    simulate,
    sweep,
    topology,
    traces,
    train,
    validate,
    worker,
)
from echo2.cli.exits import INFEASIBLE, INTERRUPTED, MISTAKE, OK, StoppedError
from echo2.cli.output import remedy
from echo2.errors import InfeasibleError, UserError

app = typer.Typer(
    name="echo2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan, simulate and run RL training of language models on scattered, cheap GPUs.",
)
app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("simulate")(simulate.simulate)
app.command("train")(train.train)
app.command("worker")(worker.worker)
app.command("sweep")(sweep.sweep)
app.command("pareto")(pareto.pareto)
app.command("compare")(compare.compare)
app.command("optimise")(optimise.optimise)
app.command("topology")(topology.topology)
app.command("replay")(replay.replay)
app.command("report")(report.report)
app.command("figures")(figures.figures)
app.command("validate")(validate.validate)
app.add_typer(traces.app, name="traces")
app.add_typer(export.app, name="export")


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"echo2 {echo2.__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises for a user's mistake."""
    streams = sys.stdout, sys.stderr
    try:
        result = app(list(arguments), prog_name="echo2", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as end:  # typer and rich end with 1 where the reader of the output has gone
        if end.code != 1:
            raise
        sys.stdout, sys.stderr = streams
        return _closed_pipe()
    except typer.Exit as end:
        return end.exit_code
    except StoppedError as stop:
        return _complain(str(stop), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except InfeasibleError as error:
        return _complain(str(error), INFEASIBLE)
    except UserError as error:
        return _complain(str(error), MISTAKE)
    except typer.TyperException as error:
        return _complain(_usage(error), MISTAKE)
    except BrokenPipeError:
        return _closed_pipe()
    except MemoryError:
        return _complain("out of memory; lower the pools' counts, run.steps or --jobs", MISTAKE)
    except OSError as error:
        return _complain(
            f"{error.filename or 'output'}: {error.strerror or error}; {remedy(error)} with --out", MISTAKE
        )
    if result == INTERRUPTED:  # typer has swallowed a KeyboardInterrupt
        return _complain("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else OK


def _complain(message: str, code: int) -> int:
    """One line on stderr, whatever the message holds."""
    line = " ".join(message.split())
    sys.stderr.write(line + "\n" if code == INTERRUPTED else f"error: {line}\n")
    return code


def _usage(error: typer.TyperException) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "echo2"
    return f"{message.rstrip('.') or 'no command given'}; see `{where} --help`"


def _closed_pipe() -> int:
    """The reader of our output has gone (`| head`): that is its right. Python must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK
