"""How a quantity and a worker went over a run, in memory that does not grow with the run.

`Course` keeps a step function as means over equal bins; `WorkerCourse` is all the report says of one worker.
Filled by `reader`, drawn by the page's timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FIRST_WIDTH_S = 0.0625
BINS = 8192


class Course:
    """Time-weighted means of a step function in at most `most` bins; their width doubles as time goes on.

    Two courses of the same `most` that are followed to the same time have the same width.
    """

    def __init__(self, most: int = BINS) -> None:
        self.most, self.width_s, self.value = most, FIRST_WIDTH_S, 0.0
        self._area: list[float] = []
        self._now = 0.0

    def step(self, t_s: float, change: float) -> None:
        """The value changes by `change` at `t_s`, which is not before the last change."""
        self.follow(t_s)
        self.value += change

    def follow(self, t_s: float) -> None:
        """The value stays as it is until `t_s`."""
        while t_s > self.most * self.width_s:
            self._halve()
        at = self._now
        while at < t_s:
            i = int(at / self.width_s)
            end = min(t_s, (i + 1) * self.width_s)
            if end <= at:  # rounding has put `at` on the far edge of its bin
                i, end = i + 1, min(t_s, (i + 2) * self.width_s)
            if i >= self.most:
                break
            while len(self._area) <= i:
                self._area.append(0.0)
            self._area[i] += self.value * (end - at)
            at = end
        self._now = max(self._now, t_s)

    def means(self) -> list[float]:
        """Mean of every bin; the last one may be shorter than the others."""
        return [
            area / max(min(self.width_s, self._now - i * self.width_s), 1e-12)
            for i, area in enumerate(self._area)
        ]

    def _halve(self) -> None:
        area = self._area
        self._area = [sum(area[i : i + 2]) for i in range(0, len(area), 2)]
        self.width_s *= 2.0


@dataclass
class WorkerCourse:
    """One worker: its offer, when it was up and why it came and went, what it received and ran.

    `up`: (from s, to s, cause of the end); `receiving`: (from s, to s, version, outcome); `story`: (s,
    what happened, why); `prices_usd_per_h`: (s, price from then on).
    """

    worker_id: str
    offer: dict[str, Any] = field(default_factory=dict)
    up: list[tuple[float, float, str]] = field(default_factory=list)
    receiving: list[tuple[float, float, int, str]] = field(default_factory=list)
    story: list[tuple[float, str, str]] = field(default_factory=list)
    prices_usd_per_h: list[tuple[float, float]] = field(default_factory=list)
    measured_rollouts_per_s: float | None = None
    uplink_bps: float = 0.0
    downlink_bps: float = 0.0
    running: Course = field(default_factory=Course)
    up_since_s: float | None = None
    inbound: tuple[float, int] | None = None

    def offered(self, t_s: float, offer: dict[str, Any]) -> None:
        """It can be had, or its offer has changed."""
        self.offer = offer
        self.priced(t_s, float(offer["price_usd_per_h"]))
        self.linked(float(offer["uplink_bps"]), float(offer["downlink_bps"]))

    def linked(self, uplink_bps: float, downlink_bps: float) -> None:
        """Its access rates; 0 means that one was not measured."""
        self.uplink_bps = uplink_bps or self.uplink_bps
        self.downlink_bps = downlink_bps or self.downlink_bps

    def priced(self, t_s: float, usd_per_h: float) -> None:
        """Its price from now on."""
        if not self.prices_usd_per_h or self.prices_usd_per_h[-1][1] != usd_per_h:
            self.prices_usd_per_h.append((t_s, usd_per_h))

    def joined(self, t_s: float) -> None:
        """It has come up."""
        if self.up_since_s is None:
            self.up_since_s = t_s

    def left(self, t_s: float, cause: str) -> None:
        """It is gone."""
        if self.up_since_s is not None:
            self.up.append((self.up_since_s, t_s, cause))
            self.up_since_s = None

    def sent(self, t_s: float, version: int) -> None:
        """A snapshot is on its way to it."""
        self.received(t_s, "replaced by a newer one")
        self.inbound = (t_s, version)

    def received(self, t_s: float, outcome: str) -> None:
        """What was on its way has come to an end."""
        if self.inbound is not None:
            self.receiving.append((self.inbound[0], t_s, self.inbound[1], outcome))
            self.inbound = None

    def close(self, t_s: float) -> None:
        """The log ends."""
        self.left(t_s, "")
        self.received(t_s, "under way at the end")
        self.running.follow(t_s)
