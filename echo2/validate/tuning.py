"""The delays of the control plane, moved until simulated groups are turned around as fast as the live ones.

`engine_fit` sees each worker alone, so the delay it finds holds the queueing at the learner as well, which
the simulated ledger then makes again. What is matched is one number of the first part, the mean time from
the order of a group to the fact of its last rollout; nothing of the rest of the run is looked at (ours).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.sim.log import Entry
from echo2.validate.calibrate import Calibration

ROUNDS = 4
CLOSE = 0.01
LEAST, MOST = 0.1, 4.0
WARM_UP = 0.2

FirstPart = Callable[[Calibration], Sequence[Sequence[Entry]]]


def tuned(calibration: Calibration, live: Sequence[Entry], simulate: FirstPart) -> Calibration:
    """The calibration with its delays times a factor. `simulate` gives logs of the first part."""
    wanted = turnaround_s(live, calibration.steps)
    low, high = LEAST, MOST
    best, best_gap, factor = calibration, float("inf"), 1.0
    for _ in range(ROUNDS):
        trial = replace(calibration, delays=calibration.delays.scaled(factor))
        gap = fmean(turnaround_s(log, calibration.steps) for log in simulate(trial)) / wanted - 1.0
        if abs(gap) < best_gap:
            best, best_gap = trial, abs(gap)
        if abs(gap) < CLOSE:
            break
        low, high = (factor, high) if gap < 0 else (low, factor)
        factor = _next(factor, gap, wanted, calibration, low, high)
    return best


def _next(
    factor: float, gap: float, wanted: float, calibration: Calibration, low: float, high: float
) -> float:
    """The factor that would close the gap if a group's time had the delay in it once, inside the bracket."""
    hop_s = fmean(calibration.delays.hop_s.values())
    delay_s = 3 * calibration.delays.write_s + 2 * hop_s
    guess = factor - gap * wanted / max(delay_s, 1e-6)
    return guess if low < guess < high else (low * high) ** 0.5


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
