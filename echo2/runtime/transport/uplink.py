"""What a worker's uplink gives, measured while it relays. Filled by the relay, read by the worker's swaps.

The uplink was the limit in the time in which data was waiting for at least two other workers at once: one
receiver alone may be held back by its own link, and a relay that has nothing to send waits for its own
source. Only such time counts (ours).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LEAST_S = 1.0
LEAST_BYTES = 1 << 20
TOGETHER = 2


class UplinkMeter:
    """Bytes and seconds with data waiting for several receivers, since the last `reading`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sends: Counter[str] = Counter()
        self._since_s: float | None = None
        self._busy_s, self._bytes = 0.0, 0

    @contextmanager
    def sending(self, receiver: str) -> Iterator[None]:
        """While a chunk is on its way to `receiver`."""
        self._sends[receiver] += 1
        self._account()
        try:
            yield
        finally:
            self._sends[receiver] -= 1
            if not self._sends[receiver]:
                del self._sends[receiver]
            self._account()

    def sent(self, n_bytes: int) -> None:
        """So much has gone out."""
        if self._since_s is not None:
            self._bytes += n_bytes

    def reading(self) -> float:
        """Bit/s of the uplink, and begin anew; 0.0 while there is too little to tell."""
        self._account()
        if self._busy_s < LEAST_S or self._bytes < LEAST_BYTES:
            return 0.0
        rate = 8.0 * self._bytes / self._busy_s
        self._busy_s, self._bytes = 0.0, 0
        return rate

    def _account(self) -> None:
        now = self._clock()
        if self._since_s is not None:
            self._busy_s += now - self._since_s
        self._since_s = now if len(self._sends) >= TOGETHER else None
