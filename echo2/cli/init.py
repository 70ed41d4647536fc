"""`echo2 init`: write a configuration to start from, every key explained."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="Where to write it.")] = Path("echo2.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented configuration that works as it is."""
    from echo2.cli.output import write_text
    from echo2.config import template
    from echo2.config.example import example
    from echo2.errors import UserError

    if path.exists() and not force:
        raise UserError(f"{path}: exists already; give another path, or --force to replace it")
    write_text(path, template(example()))
    sys.stdout.write(f"wrote {path}; next: echo2 plan {shlex.quote(str(path))}\n")
