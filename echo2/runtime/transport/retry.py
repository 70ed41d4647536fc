"""When to try again and when to give up. Used by the client and the receiver."""

from __future__ import annotations

import asyncio
import random
import time

from echo2.errors import UserError

FIRST_S, LONGEST_S = 0.1, 5.0


class Unreachable(UserError):  # noqa: N818 - says what happened
    """The learner did not answer for as long as the caller was ready to wait."""


class Patience:
    """Waits longer after every failure in a row (jittered, doubling to 5 s), and gives up in the end.

    `give_up_s` counts from the first failure since something last worked.
    """

    def __init__(self, what: str, give_up_s: float) -> None:
        self._what, self._give_up_s = what, give_up_s
        self._failures, self._since_s = 0, 0.0

    def progress(self) -> None:
        """Something worked: start counting anew."""
        self._failures = 0

    async def failed(self, reason: str) -> None:
        """Wait before the next attempt. Raises Unreachable when the time is over."""
        now = time.monotonic()
        if not self._failures:
            self._since_s = now
        self._failures += 1
        left_s = self._since_s + self._give_up_s - now
        if left_s <= 0:
            raise Unreachable(
                f"{self._what} failed for {self._give_up_s:g} s ({self._failures} attempts): {reason}; check "
                "that the learner runs and that this machine reaches it"
            )
        most = min(LONGEST_S, FIRST_S * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(min(left_s, most * random.uniform(0.5, 1.0)))
