"""Which workers are marched one by one and which together, so that the march stays short.

Single workers matter while they are few: each takes whole prompt groups, and the one with a group more
ends last. In a large fleet that evens out, and alike workers are marched as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from echo2.policy.steady.problem import SteadyProblem, WorkerGroup

MAX_SINGLE = 16
MAX_UNITS = 64


def march_units(problem: SteadyProblem) -> list[WorkerGroup]:
    """Single workers up to `MAX_SINGLE`; else the groups as given, the alike merged beyond `MAX_UNITS`.

    Merged are neighbours in rate: at a small S the slowest worker ends the batch, and must stay slow.
    """
    groups = problem.workers
    if sum(group.count for group in groups) <= MAX_SINGLE:
        return [replace(group, count=1) for group in groups for _ in range(group.count)]
    if len(groups) <= MAX_UNITS:
        return list(groups)
    ordered = sorted(groups, key=lambda group: (problem.worker_rate(group), group.broadcast_s))
    size = -(-len(ordered) // MAX_UNITS)
    return [_merged(problem, ordered[at : at + size]) for at in range(0, len(ordered), size)]


def _merged(problem: SteadyProblem, groups: Sequence[WorkerGroup]) -> WorkerGroup:
    """One group of the same count and total rate; broadcast time and slots are averages by rate and count."""
    count = sum(group.count for group in groups)
    rates = [group.count * problem.worker_rate(group) for group in groups]
    total = math.fsum(rates)
    typical = groups[len(groups) // 2]
    slots = max(1, round(sum(group.count * group.slots for group in groups) / count))
    broadcast_s = math.fsum(rate * group.broadcast_s for rate, group in zip(rates, groups)) / total
    merged = replace(typical, count=count, slots=slots, broadcast_s=broadcast_s)
    factor = total / (count * problem.worker_rate(merged))
    return replace(merged, model=replace(merged.model, speedup=merged.model.speedup * factor))
