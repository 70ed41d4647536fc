"""Exit codes, and the exception of a run that was stopped with something to say about it."""

from __future__ import annotations

OK, DIFFERS, MISTAKE, INFEASIBLE, INTERRUPTED = 0, 1, 2, 3, 130


class StoppedError(Exception):
    """Ctrl-C, with one line on what is kept. Exit code 130."""
