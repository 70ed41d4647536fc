"""docs/studies.md shows the sessions that `scripts/docs.py studies` runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from docs_blocks import blocks, fenced  # noqa: E402
from docs_sessions import Session  # noqa: E402
from docs_studies import SESSIONS, WIDTH, folded  # noqa: E402


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_the_page_shows_the_session(session: Session) -> None:
    """Under its marker the page has the command that is run for it: else run `scripts/docs.py studies`."""
    block = blocks((ROOT / "docs" / "studies.md").read_text(encoding="utf-8"))[session.name]
    command = block.replace("\\\n", " ").splitlines()[1]
    assert command.startswith("$ echo2 ")
    assert tuple(shlex.split(command)[2:]) == session.arguments


def test_a_long_command_is_broken_before_an_option_and_says_the_same() -> None:
    """Folding loses no word, and no line is too wide."""
    block = fenced("echo2 sweep x.toml " + " ".join(f"--grid run.staleness={i}" for i in range(12)), "out")
    lines = folded(block).splitlines()
    assert len(lines) > len(block.splitlines()) and max(map(len, lines)) <= WIDTH
    assert all(line.endswith(" \\") for line in lines[1:-3])
    assert shlex.split(" ".join(lines[1:-2]).replace(" \\", "")) == shlex.split(block.splitlines()[1])
