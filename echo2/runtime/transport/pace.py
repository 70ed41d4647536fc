"""Whether a source of chunks keeps up. Filled by the gatherer, one for each source of a payload; no I/O.

Three ways to fall short, each with a limit that grows with what the plan expects of the source (ours):
*silent*: a request is out and not a byte has come, not even "not yet"; *starving*: it answers, but no chunk
has come for very long; *behind*: of what the plan expects it sent less than half of what the other sources
do at the median, or less than a quarter where there are no others. Time in which this machine's own link
held things back, or in which this process itself stood still, counts for none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

LEAST_SHARE = 0.5
CHUNKS = 2.0
"""A source may be silent for as long as this many of its chunks take by the plan."""
STOOD_STILL_S = 2.0
"""Of so long a time between two ticks, a few a second, this process had none: sources are not to blame."""


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """Floors in seconds: of silence, of starving, and of the window in which a rate is judged."""

    silent_s: float = 5.0
    starving_s: float = 60.0
    window_s: float = 3.0


class Pace:
    """One source. `bps`: what the plan expects of it, 0 when nobody knows; `chunk_bytes`: its largest."""

    def __init__(self, bps: float, chunk_bytes: int, limits: PaceLimits, clock: Callable[[], float]) -> None:
        self._clock, self._limits, self._bps = clock, limits, bps
        self._chunk_s = 8.0 * chunk_bytes / bps if bps > 0 else 0.0
        self._window_s = max(limits.window_s, CHUNKS * self._chunk_s)
        self._heard_s = self._chunk_at_s = self._tick_s = clock()
        self._sending_s, self._bytes = 0.0, 0
        self._samples: deque[tuple[float, int]] = deque([(0.0, 0)])

    def asked(self) -> None:
        """A request goes out and no other is out."""
        self._heard_s = self._clock()

    def owes(self) -> None:
        """It has chunks to give again after it had none."""
        self._heard_s = self._chunk_at_s = self._clock()

    def heard(self, n_bytes: int) -> None:
        """Something came: a head (0) or bytes of a chunk."""
        self._heard_s = self._clock()
        self._bytes += n_bytes

    def finished(self) -> None:
        """A whole chunk has come."""
        self._chunk_at_s = self._clock()

    def tick(self, waiting: bool, sending: bool, held_up: bool) -> None:
        """To be called a few times a second. `waiting`: a request is out; `sending`: the source is in the
        middle of a chunk; `held_up`: this machine's own link is what is slow."""
        now = self._clock()
        passed_s, self._tick_s = now - self._tick_s, now
        if held_up or not waiting or passed_s >= STOOD_STILL_S:
            self._heard_s = min(now, self._heard_s + passed_s)
            self._chunk_at_s = min(now, self._chunk_at_s + passed_s)
        elif sending:
            self._sending_s += passed_s
            self._samples.append((self._sending_s, self._bytes))
            while len(self._samples) > 2 and self._sending_s - self._samples[1][0] >= self._window_s:
                self._samples.popleft()

    @property
    def share(self) -> float | None:
        """What the source sent in the last window as a share of what the plan expects; None: too early."""
        since_s, had = self._samples[0]
        span_s = self._sending_s - since_s
        if self._bps <= 0 or span_s < self._window_s:
            return None
        return 8.0 * (self._bytes - had) / span_s / self._bps

    def verdict(self, sending: bool, poll_s: float, others: Sequence[float]) -> str:
        """Why the source is too slow; "" while it is not.

        It may hold a request open for `poll_s`. `others`: the `share` of the other sources, for a plan that
        was too hopeful for all is no fault of one.
        """
        now = self._clock()
        silent_s = max(self._limits.silent_s, CHUNKS * self._chunk_s) + (0.0 if sending else poll_s)
        if now - self._heard_s > silent_s:
            return f"nothing came for {now - self._heard_s:.1f} s"
        starving_s = max(self._limits.starving_s, 4 * CHUNKS * self._chunk_s)
        if now - self._chunk_at_s > starving_s:
            return f"no chunk came for {now - self._chunk_at_s:.0f} s"
        share, usual = self.share, min(1.0, median(others)) if others else 0.5
        if share is None or share >= LEAST_SHARE * usual:
            return ""
        return f"it sends {share * self._bps / 1e6:.3g} Mbit/s where the plan expects {self._bps / 1e6:.3g}"
