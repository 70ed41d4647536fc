"""The sessions of docs/studies.md: one after another in a folder of their own, as a reader would run them.

Each works on the files of the ones before it. Called by `scripts/docs.py`; `tests/test_study_docs.py` holds
the page to the commands here.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from docs_sessions import Session, shown

WIDTH = 100
SESSIONS = (
    Session(
        "sweep",
        (
            "sweep", "experiments/datacentre.toml", "--set", "run.steps=40",
            "--grid", "run.staleness=1,2,3", "--grid", "run.publish_period=1,2",
            "--seeds", "3", "--out", "sweep.csv", "--jobs", "2",
        ),
    ),
    Session("pareto", ("pareto", "sweep.csv", "--out", "front")),
    Session(
        "compare",
        ("compare", "sweep.csv:run.staleness=1,kappa=1", "sweep.csv:run.staleness=2,kappa=1"),
    ),
    Session(
        "compare-noise",
        ("compare", "sweep.csv:run.staleness=2,kappa=1", "sweep.csv:run.staleness=3,kappa=1"),
    ),
    Session(
        "optimise",
        (
            "optimise", "experiments/qwen3-32b.toml", "--set", "run.steps=40",
            "--simulations", "8", "--out", "best.toml",
        ),
    ),
)  # fmt: skip


def blocks(root: Path) -> dict[str, str]:
    """Each session as the page shows it, by name. RuntimeError for a command that fails."""
    with tempfile.TemporaryDirectory(prefix="echo2-docs-") as folder:
        (Path(folder) / "experiments").symlink_to(root / "experiments")
        with contextlib.chdir(folder):
            return {session.name: folded(shown(session)) for session in SESSIONS}


def folded(block: str) -> str:
    """The block with its command line broken before options where it is too long."""
    fence, command, rest = block.split("\n", 2)
    lines = [""]
    for part in command.replace(" --", "\n--").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > WIDTH - 3:
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join([fence, *lines, rest])
