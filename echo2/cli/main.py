"""The entry point: `echo2 COMMAND ...`. Loads the commands where Ctrl-C is already answered for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from echo2.cli.exits import INTERRUPTED


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises for a user's mistake."""
    from echo2.cli.app import run as run_command

    return run_command(arguments)


def main() -> None:
    """Console script `echo2`."""
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before the commands were loaded
        sys.stderr.write("interrupted\n")
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
