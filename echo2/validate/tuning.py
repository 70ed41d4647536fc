"""The delays of the control plane, moved until simulated groups are turned around as fast as the live ones.

`engine_fit` sees each worker alone, so the delay it finds holds the queueing at the learner as well, which
the simulated ledger then makes again. What is matched is one number of the first part, the mean time from
the order of a group to the fact of its last rollout; nothing of the rest of the run is looked at (ours).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.sim.log import Entry
from echo2.validate.calibrate import Calibration

ROUNDS = 5
CLOSE = 0.01
LEAST, MOST = 0.1, 4.0
WARM_UP = 0.2

FirstPart = Callable[[Calibration], Sequence[Sequence[Entry]]]


def tuned(calibration: Calibration, live: Sequence[Entry], simulate: FirstPart) -> Calibration:
    """The calibration with its delays times a factor. `simulate` gives logs of the first part."""
    wanted = turnaround_s(live, calibration.steps)
    tried: dict[float, float] = {}
    factor = 1.0
    for _ in range(ROUNDS):
        trial = replace(calibration, delays=calibration.delays.scaled(factor))
        tried[factor] = fmean(turnaround_s(log, calibration.steps) for log in simulate(trial)) / wanted - 1.0
        if abs(tried[factor]) < CLOSE:
            break
        factor = _next(tried, wanted, calibration)
    best = min(tried, key=lambda one: abs(tried[one]))
    return replace(calibration, delays=calibration.delays.scaled(best))


def _next(tried: Mapping[float, float], wanted: float, calibration: Calibration) -> float:
    """The factor to try: on the line through the nearest ones on both sides, or where the gap would close if
    a group's time had the delay in it once."""
    below = max((one for one, gap in tried.items() if gap < 0), default=LEAST)
    above = min((one for one, gap in tried.items() if gap >= 0), default=MOST)
    if below in tried and above in tried:
        share = -tried[below] / (tried[above] - tried[below])
        return below + min(0.9, max(0.1, share)) * (above - below)
    hop_s = fmean(calibration.delays.hop_s.values())
    delay_s = 3 * calibration.delays.write_s + 2 * hop_s
    last, gap = list(tried.items())[-1]
    guess = last - gap * wanted / max(delay_s, 1e-6)
    return guess if min(below, above) < guess < max(below, above) else (below * above) ** 0.5


def turnaround_s(entries: Sequence[Entry], steps: int) -> float:
    """Mean seconds from a group's order to its last rollout, after a warm-up and until step `steps` ends."""
    begun: dict[int, tuple[float, int]] = {}
    took: list[float] = []
    version = 0
    for fact, answers in entries:
        if isinstance(fact, f.StepFinished):
            version = fact.version
        if version >= steps:
            break
        if isinstance(fact, f.RolloutFinished) and fact.group_id in begun:
            start_s, left = begun[fact.group_id]
            begun[fact.group_id] = (start_s, left - 1)
            if left == 1 and version >= WARM_UP * steps:
                took.append(fact.t_s - start_s)
        for answer in answers:
            if isinstance(answer, d.StartGroup):
                begun[answer.group_id] = (answer.t_s, answer.rollouts)
    return fmean(took) if took else 1.0
