"""The timeline of a run, exported as a Chrome trace (opens in Perfetto or chrome://tracing)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


class Timeline:
    """Spans by kind and actor. `enabled=False` makes every call cost next to nothing."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.spans: list[tuple[str, str, float, float, int]] = []
        self._open: dict[tuple[str, str], tuple[float, int]] = {}

    def span(self, kind: str, actor: str, t_s: float, seconds: float, number: int = -1) -> None:
        """A span whose length is known."""
        if self.enabled:
            self.spans.append((kind, actor, t_s, seconds, number))

    def began(self, kind: str, actor: str, t_s: float, number: int = -1) -> None:
        """A span begins; a second beginning of the same kind replaces the first."""
        if self.enabled:
            self._open[kind, actor] = (t_s, number)

    def ended(self, kind: str, actor: str, t_s: float) -> None:
        """A span ends; nothing happens if it never began."""
        if self.enabled and (begun := self._open.pop((kind, actor), None)) is not None:
            self.spans.append((kind, actor, begun[0], t_s - begun[0], begun[1]))

    def chrome_trace(self) -> str:
        """The Chrome trace event format: one process per kind of actor, one thread per actor."""
        actors = sorted({actor for _, actor, *_ in self.spans}, key=lambda a: (a != "learner", a))
        threads = {actor: i for i, actor in enumerate(actors)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": actor}}
            for actor, tid in threads.items()
        ]
        events += self._events(threads)
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))

    def _events(self, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
        for kind, actor, t_s, seconds, number in self.spans:
            yield {
                "ph": "X",
                "name": kind if number < 0 else f"{kind} {number}",
                "cat": kind,
                "pid": 1,
                "tid": threads[actor],
                "ts": round(t_s * 1e6, 3),
                "dur": round(seconds * 1e6, 3),
            }
