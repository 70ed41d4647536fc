"""How long the server took to answer, by route, and how late its loop ran. Filled by `door` and `running`.

Cumulative histograms in Prometheus' sense: a bucket counts what took at most its bound.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BEAT_S = 0.05
"""The loop's lag is looked at this often."""


class Histogram:
    """Seconds, counted by `BOUNDS_S`."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def within(self, share: float) -> float:
        """The smallest bound that `share` of all kept, infinite where none did; 0 when there were none."""
        wanted, seen = share * self.count, 0
        if not wanted:
            return 0.0
        for bound, count in zip(BOUNDS_S, self.counts):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")

    def lines(self, name: str, label: str = "") -> Iterator[str]:
        """Prometheus text (exposition format 0.0.4), without its HELP and TYPE."""
        comma, seen = "," if label else "", 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self.counts):
            seen += count
            yield f'{name}_bucket{{{label}{comma}le="{bound}"}} {seen}'
        braces = f"{{{label}}}" if label else ""
        yield f"{name}_sum{braces} {self.sum_s:.6f}"
        yield f"{name}_count{braces} {seen}"


class Answers:
    """The answer times of one server."""

    def __init__(self) -> None:
        self.by_route: dict[str, Histogram] = {}
        self.lag = Histogram()

    def add(self, route: str, seconds: float) -> None:
        """An answer was made, `seconds` after its request had been read to the end of its head."""
        self.by_route.setdefault(route, Histogram()).add(seconds)

    async def watch(self) -> None:
        """Look at the event loop's lag until cancelled: what a request waits before anybody sees it."""
        while True:
            due_s = time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.lag.add(max(0.0, time.monotonic() - due_s))

    def lines(self) -> Iterator[str]:
        """Prometheus text."""
        name = "echo2_answer_seconds"
        yield f"# HELP {name} From a request's head to its answer; work and pages are long polls"
        yield f"# TYPE {name} histogram"
        for route, histogram in sorted(self.by_route.items()):
            yield from histogram.lines(name, f'route="{route}"')
        name = "echo2_loop_lag_seconds"
        yield f"# HELP {name} How late the event loop ran"
        yield f"# TYPE {name} histogram"
        yield from self.lag.lines(name)
