"""The errors a user can cause, each with the exit code the command line ends with.

A message names the thing, its value, the allowed range and the fix. The command line prints it as one
line, without a traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """The user's mistake: a bad configuration, file, name or value. Exit code 2."""

    exit_code = 2


class InfeasibleError(UserError):
    """The plan cannot be met. Exit code 3. `facts` holds what would make it feasible."""

    exit_code = 3

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts
