"""The market: which workers can be had when, at what price. Replays availability traces and price changes.

Workers of a pool replay the slots of one trace with one offset, so a zone's outage takes its workers
together. A trace shorter than the run begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import simpy

from echo2.sim.inputs import Availability, PriceChange, SimWorker

OnOffer = Callable[[SimWorker], None]
OnGone = Callable[[SimWorker], None]


def intervals_from(availability: Availability) -> Iterator[tuple[float, float]]:
    """Up intervals in run time, endless, merged where one ends as the next begins."""
    shift = -availability.offset_s
    lap = 0
    pending: tuple[float, float] | None = None
    while True:
        for start, end in availability.up:
            begin = start + shift + lap * availability.period_s
            finish = end + shift + lap * availability.period_s
            if finish <= 0:
                continue
            begin = max(0.0, begin)
            if pending is not None and begin <= pending[1] + 1e-9:
                pending = (pending[0], finish)
                if finish - pending[0] > 1e9:
                    break
                continue
            if pending is not None:
                yield pending
            pending = (begin, finish)
        if not availability.up:
            return
        if pending is not None and pending[1] - pending[0] > 1e9:
            yield pending
            return
        lap += 1


def replay_availability(
    env: simpy.Environment, worker: SimWorker, on_offer: OnOffer, on_gone: OnGone
) -> Generator[simpy.Event, Any, None]:
    """Offer a worker at the start of each up interval and take it away at the end."""
    assert worker.availability is not None
    for start, end in intervals_from(worker.availability):
        if start > env.now:
            yield env.timeout(start - env.now)
        on_offer(worker)
        yield env.timeout(end - env.now)
        on_gone(worker)


def replay_prices(
    env: simpy.Environment, changes: tuple[PriceChange, ...], apply: Callable[[PriceChange], None]
) -> Generator[simpy.Event, Any, None]:
    """Apply price changes at their times."""
    for change in sorted(changes, key=lambda c: c.t_s):
        yield env.timeout(max(0.0, change.t_s - env.now))
        apply(change)
