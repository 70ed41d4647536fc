"""Reports on their way to the learner, in order, each under the incarnation it was made in."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from echo2.runtime.transport import messages as m


class ReportQueue:
    """Reports without an answer, oldest first. Of one event loop."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, m.Report]] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, incarnation: int, report: m.Report) -> None:
        """Add a report. It is sent until the learner has answered."""
        self._held.append((incarnation, report))
        self._filled.set()
        self._emptied.clear()

    def clear(self) -> int:
        """Drop everything; returns how many reports."""
        count = len(self._held)
        self._drop(count)
        return count

    async def emptied(self) -> None:
        """Wait until every report has been answered."""
        await self._emptied.wait()

    async def batch(self) -> m.Reports:
        """The oldest reports of one incarnation, at least one; they stay here until `settle`."""
        while not self._held:
            await self._filled.wait()
        incarnation = self._held[0][0]
        chosen: list[m.Report] = []
        for owner, report in islice(self._held, m.MAX_REPORTS):
            if owner != incarnation:
                break
            chosen.append(report)
        return m.Reports(incarnation=incarnation, reports=tuple(chosen))

    def settle(self, reports: m.Reports) -> None:
        """Forget a batch that has been answered."""
        if self._held and self._held[0] == (reports.incarnation, reports.reports[0]):
            self._drop(len(reports.reports))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._held.popleft()
        if not self._held:
            self._filled.clear()
            self._emptied.set()
