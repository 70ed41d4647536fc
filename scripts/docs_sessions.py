"""The command-line sessions that the README shows: what is run, and which part of the output is kept.

Run in this process, so that `tests/test_docs.py` can hold the README to what the commands print now.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import textwrap
from dataclasses import dataclass

from docs_blocks import fenced

from echo2.cli.main import run

CONFIG = "experiments/qwen3-8b-mixed-spot.toml"
LEFT_OUT = "[...]"
# Lines that differ from one time to the next: they are not shown.
CHANGING = ("simulated in",)
WIDTH = 100


@dataclass(frozen=True)
class Session:
    """A command line. `sections`: titles of the parts that are kept (empty: all), others become [...]."""

    name: str
    arguments: tuple[str, ...]
    sections: tuple[str, ...] = ()
    exit_code: int = 0


SESSIONS = (
    Session("plan", ("plan", CONFIG), ("Plan of", "Workers", "Answers")),
    Session("simulate", ("simulate", CONFIG), ("Simulation of", "Learner idle", "Workers used")),
    Session("infeasible", ("plan", CONFIG, "--set", "learner.uplink_mbps=200"), exit_code=3),
)


def shown(session: Session) -> str:
    """The session as the README shows it. RuntimeError when the exit code is not the expected one."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run(session.arguments)
    if code != session.exit_code:
        raise RuntimeError(f"echo2 {shlex.join(session.arguments)} ended with {code}: {out.getvalue()}")
    text = _wrapped(_trimmed(out.getvalue(), session.sections))
    if code:
        text += f"\n$ echo $?\n{code}"
    return fenced(f"echo2 {shlex.join(session.arguments)}", text)


def _trimmed(output: str, sections: tuple[str, ...]) -> str:
    """Parts (paragraphs) that begin with one of the titles; a run of others becomes one [...]."""
    parts = ["\n".join(line.rstrip() for line in part) for part in _paragraphs(output)]
    kept: list[str] = []
    inside = True
    for part in parts:
        titled = not sections or part.startswith(sections)
        # The headline table has its title in a paragraph of its own.
        if titled or (inside and kept and "\n" not in kept[-1]):
            kept.append(part)
            inside = True
        elif inside:
            kept.append(LEFT_OUT)
            inside = False
    return "\n\n".join(kept)


def _paragraphs(output: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in output.splitlines():
        if not line.strip():
            parts.append([])
        elif not line.startswith(CHANGING):
            parts[-1].append(line)
    return [part for part in parts if part]


def _wrapped(text: str) -> str:
    lines = (textwrap.wrap(line, WIDTH) if len(line) > WIDTH else [line] for line in text.splitlines())
    return "\n".join(part for wrapped in lines for part in wrapped)
