"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from echo2.errors import UserError


def whole(option: str, least: int, most: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers from `least` (to `most`) that names option, value and range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            limit = f" and <= {most:,}" if most is not None else ""
            raise UserError(f"{option} {text}: must be a whole number >= {least}{limit}")
        return value

    return parse


ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration, a TOML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", parser=whole("--seed", 0, 2**32 - 1), help="Seed, not the file's."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a key: run.staleness=4, pool.NAME.count=8, pool.*.speed=2."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")]
