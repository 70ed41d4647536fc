"""`echo2 validate`: how far the simulator's word on the rest of a live run is from what happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo2.cli.options import Json, whole
from echo2.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from echo2.validate.check import Row, Validation

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a live run, or a record of one.")]
Share = Annotated[
    float,
    typer.Option("--calibrate", metavar="SHARE", help="Share of the steps to calibrate from, 0.1 to 0.9."),
]
Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", parser=whole("--seeds", 1, 100), help="Simulations to average.")
]
Model = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="The model directory, where it has moved.")
]


def validate(run: Run, share: Share = 0.4, seeds: Seeds = 5, model: Model = None, json: Json = False) -> None:
    """Calibrate the simulator on a run's first part, simulate the rest, print the signed errors."""
    if not 0.1 <= share <= 0.9:
        raise UserError(f"--calibrate {share:g}: must be 0.1 to 0.9 of the steps")
    if model is not None and not model.is_dir():
        raise UserError(f"--model {model}: there is no such directory; give one that save_pretrained wrote")
    from echo2.validate.check import validate as compare

    result = compare(run, share, seeds, model)
    if json:
        from echo2.cli.output import print_json

        print_json(result.to_json())
        return
    from echo2.cli.tables import console

    show(console(), result)


def show(out: Console, result: Validation) -> None:
    """The result for people."""
    from echo2.cli.tables import lines, table

    title = f"Steps {result.first} to {result.last} of {result.name}, simulated with {result.seeds} seeds"
    columns = ["", "live", "simulated", "error", "planned", "error"]
    out.print(table(title, columns, [_cells(row) for row in result.rows], flexible=None))
    out.print()
    lines(out, "Where it comes from", [_drift(result)])
    inputs = [(m.name, f"{m.value}: {m.how}") for m in result.inputs]
    out.print(table("Inputs that must match, and do", ["", ""], inputs))
    out.print()
    out.print(table("Calibrated on the first part", ["", ""], _calibrated(result), flexible=None))
    out.print()
    lines(out, "To be doubted", result.warnings)


def _drift(result: Validation) -> str:
    """How much of the error in steps/s goes with the step times, which the machine makes."""
    row = next(row for row in result.rows if row.metric == "steps_per_s")
    train = next(row for row in result.rows if row.metric == "train_mean_s")
    return (
        f"T_train was foretold to {_error(train, train.error)}; given the live run's own step times, steps/s "
        f"would be {_error(row, row.given_error)} off"
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.text,
        _value(row, row.live),
        _value(row, row.simulated),
        _error(row, row.error),
        _value(row, row.planned),
        _error(row, row.plan_error),
    )


def _value(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if row.unit == "share" else f"{value:.4g}"


def _error(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    if row.unit == "relative":
        return f"{value:+.1%}"
    if row.unit == "share":
        return f"{100 * value:+.1f} pp"
    return f"{value:.3f}" if row.unit == "distance" else f"{value:+.2f}"


def _calibrated(result: Validation) -> list[tuple[str, str]]:
    seen = result.calibrated
    rows = [
        ("T_train", f"{seen['train_s']:.3f} s, cv {seen['train_cv']:.2f}, from {seen['steps']} steps"),
        ("rollouts", f"{seen['tokens_mean']:.1f} tokens, from {seen['groups']} groups"),
    ]
    rows.append(
        (
            "control plane",
            f"{1e3 * seen['delay_s']:.0f} ms around a group: 3 ledger writes of "
            f"{1e3 * seen['write_s']:.0f} ms, 2 hops",
        )
    )
    for name, worker in seen["workers"].items():
        rows.append(
            (
                name,
                f"decode step {1e3 * worker['step_s_of_one']:.2f} ms at 1 sequence, "
                f"+{1e3 * worker['step_s_per_sequence']:.3f} ms each; hop {1e3 * worker['hop_s']:.0f} ms; "
                f"swap {1e3 * worker['pause_s']:.0f} ms",
            )
        )
    return rows
