"""`echo2 figures`: the paper's figures from the repository's own runs and records."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from echo2.errors import UserError

# In the order of the gallery.
FIGURES = (
    "architecture",
    "overlap_timeline",
    "provisioning_knee",
    "cost_per_step",
    "live_staleness",
    "dissemination_tail",
    "delta_sizes",
    "dissemination_deltas",
    "activation_rules",
    "staleness_histograms",
    "churn",
    "fidelity_scatter",
)
DEADLINE_S = 1200.0
"""Longest one figure may take: all of them take less on two cores."""

SHARED = "ECHO2_FIGURES_SHARED"
"""Environment variable: the folder in which figures drawn together keep runs that several of them show."""

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Which (default: all); see --list.")
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where PNG, PDF and caption go.")]
Listed = Annotated[bool, typer.Option("--list", help="Only print what each figure shows.")]


def figures(names: Names = None, out: Out = Path("out/figures"), listed: Listed = False) -> None:
    """Draw the paper's figures from committed records and runs of stated length; needs a checkout."""
    root = _checkout()
    wanted = [_known(name) for name in names or FIGURES]
    with sharing():
        for name in wanted:
            what = about(root / "paper_figures" / f"{name}.py")
            if listed:
                typer.echo(f"{name:22} {what}")
                continue
            typer.echo(f"{name}: {what}")
            draw(name, root, out.absolute())


@contextmanager
def sharing() -> Iterator[None]:
    """Figures drawn inside this do no run twice that two of them show. Nothing is kept after it."""
    with tempfile.TemporaryDirectory(prefix="echo2-figures-") as folder:
        os.environ[SHARED] = folder
        try:
            yield
        finally:
            del os.environ[SHARED]


def about(script: Path) -> str:
    """What a figure shows, as its script says."""
    try:
        return script.read_text(encoding="utf-8").splitlines()[0].strip('"')
    except (OSError, ValueError, IndexError):
        raise UserError(f"figure {script.stem}: {script} cannot be read; is the checkout whole?") from None


def draw(name: str, root: Path, out: Path) -> None:
    """Run a figure's script, within the deadline. Raises UserError with its last words."""
    command = [sys.executable, "-m", f"paper_figures.{name}", "--out", str(out)]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"figure {name} was not drawn within {DEADLINE_S:.0f} s; is the machine busy?"
        ) from None
    if done.returncode:
        last = next(reversed(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
        last = last.removeprefix(f"{UserError.__module__}.{UserError.__name__}: ")
        raise UserError(f"figure {name} could not be drawn: {last}")
    typer.echo("".join(f"  wrote {line}\n" for line in done.stdout.splitlines() if line), nl=False)


def _known(name: str) -> str:
    if name in FIGURES:
        return name
    from difflib import get_close_matches

    near = get_close_matches(name, FIGURES, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"figure {name!r} is not known; {hint}`echo2 figures --list` shows all")


def _checkout() -> Path:
    """The repository this package is part of: the scripts and records of the figures are not installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "paper_figures" / "output.py").is_file():
        raise UserError(
            "the figures' scripts and records are in the repository, not in the installed package; clone it, "
            "`pip install -e .` there, and run this again"
        )
    return root
