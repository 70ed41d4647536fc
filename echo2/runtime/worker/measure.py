"""What a worker measures of itself: mu_i, its rate with all slots taken. No clock of its own.

Fed by the running groups; what it returns is reported to the learner, whose scheduler uses it as a fact.
"""

from __future__ import annotations

from collections.abc import Callable

from echo2.runtime.transport.messages import Link, Rate

EVERY_S = 10.0
"""Full seconds in a window, and the least time between two reports."""
LEAST_ROLLOUTS = 16
CHANGE = 0.1
TOGETHER_S = 0.05
"""Rollouts that end so soon after the first ended in the full time too: engines end whole groups at once."""
LEAST_BYTES = 64 << 10
"""A smaller transfer measures latency, not rate."""


class RateMeter:
    """Rollouts/s and tokens/s over the time in which all `slots` were taken.

    Time with free slots is left out, as are the first `slots` rollouts: they all began at once, so the
    first end late and then all together. A window has `EVERY_S` full seconds and `LEAST_ROLLOUTS` ends.
    """

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self._slots, self._clock = slots, clock
        self._taken = 0
        self._skip = slots
        self._since_s: float | None = None  # when the running full span was last accounted
        self._until_s = float("-inf")  # an ending up to then still belongs to the full span before it
        self._full_s = self._open_s = 0.0  # full time with its ends, and since the last end
        self._rollouts = self._tokens = 0
        self._told: Rate | None = None

    @property
    def taken(self) -> int:
        """Rollouts that run or wait in the engine."""
        return self._taken

    def began(self, rollouts: int) -> None:
        """A group of so many rollouts has begun."""
        self._account()
        self._taken += rollouts
        self._restart()

    def left(self, rollouts: int) -> None:
        """So many rollouts will not be finished: cancelled or failed."""
        self._account()
        self._taken -= rollouts
        self._restart()

    def finished(self, tokens: int) -> Rate | None:
        """One rollout has ended; a rate when there is a new one to report."""
        # a window ends before the full span that this one ends: the others of its group come with it
        rate = self._window() if self._since_s is not None else None
        if self._account():
            self._until_s = self._clock() + TOGETHER_S
        full = self._clock() <= self._until_s
        self._full_s += self._open_s
        self._open_s = 0.0
        self._taken -= 1
        if self._skip:
            self._skip -= 1
            self._full_s = 0.0
        elif full:
            self._rollouts += 1
            self._tokens += tokens
        self._restart()
        return rate

    def _account(self) -> bool:
        """Add the full span up to now; whether all slots were taken."""
        full = self._since_s is not None
        if self._since_s is not None:
            self._open_s += self._clock() - self._since_s
            self._since_s = None
        return full

    def _restart(self) -> None:
        if self._taken >= self._slots:
            self._since_s = self._clock()

    def _window(self) -> Rate | None:
        if self._full_s < EVERY_S or self._rollouts < LEAST_ROLLOUTS:
            return None
        rate = Rate(
            rollouts_per_s=self._rollouts / self._full_s,
            tokens_per_s=self._tokens / self._full_s,
            window_s=self._full_s,
        )
        self._full_s, self._rollouts, self._tokens = 0.0, 0, 0
        if self._told is not None and not _differs(rate.rollouts_per_s, self._told.rollouts_per_s):
            return None
        self._told = rate
        return rate


def link_of(transferred: int, transfer_s: float, uplink_bps: float = 0.0) -> Link | None:
    """What a transfer of so many bytes has shown of the links; None when it was too small to tell.

    Of the downlink it shows a lower bound: what came may have been held back by the plan, by those who sent
    it or on the way, which this end cannot tell apart (ours). `uplink_bps` is the relay's reading, taken
    only while the uplink was the limit (see `transport.uplink`).
    """
    downlink_bps = 8 * transferred / transfer_s if transferred >= LEAST_BYTES and transfer_s > 0 else 0.0
    if not (downlink_bps or uplink_bps):
        return None
    return Link(downlink_bps=downlink_bps, uplink_bps=uplink_bps, uplink_limited=uplink_bps > 0)


def _differs(rate: float, told: float) -> bool:
    return abs(rate - told) > CHANGE * told
