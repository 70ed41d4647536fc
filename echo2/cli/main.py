"""The entry point: `echo2 COMMAND ...`. Loads the commands where Ctrl-C is already answered for."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from echo2.cli.exits import INTERRUPTED


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises for a user's mistake."""
    try:
        from echo2.cli.app import run as run_command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return run_command(arguments)


def main() -> None:
    """Console script `echo2`."""
    try:
        # A name that the terminal cannot show is no reason to fail.
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was answered
        code = INTERRUPTED
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the process is near: nothing to interrupt
    sys.exit(code)


if __name__ == "__main__":
    main()
