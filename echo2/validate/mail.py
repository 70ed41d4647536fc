"""What the first part of a run shows of a worker's mail: how uploads wait for answers, how orders part.

Called by `calibrate`. A log has no uploads, but rollouts that came in one were counted at one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from echo2.validate.first_part import FirstPart

AT_ONCE_S = 2.5e-3
PRIOR_PAIRS = 10.0
LEAST_ANSWER_S, MOST_ANSWER_S = 0.01, 0.15
LEAST_GAPS, NARROW = 8, 1 / 8


def apart_of(seen: FirstPart, groups: Mapping[int, list[tuple[float, int]]]) -> float:
    """Of pairs of equally long groups ordered from a worker at one moment, the share that did not end at one.

    Begun with one pair in ten: few pairs say little (ours).
    """
    pairs, parted = PRIOR_PAIRS, 1.0
    for first, second in pairwise(sorted(groups)):
        (worker, start_s, _), (other, then_s, _) = seen.ordered[first], seen.ordered[second]
        alike = sorted(n for _, n in groups[first]) == sorted(n for _, n in groups[second])
        if worker == other and then_s - start_s < AT_ONCE_S and alike:
            pairs += 1
            parted += abs(groups[first][-1][0] - groups[second][-1][0]) > AT_ONCE_S
    return parted / pairs


def answer_of(seen: FirstPart) -> float:
    """Seconds an upload takes to be answered; 0 where it does not show.

    What ends meanwhile waits for it, so the gaps between a worker's uploads heap up there: the middle of the
    narrowest third of those that could be one, where it is narrow and has enough of them (ours).
    """
    told: dict[str, list[float]] = {}
    for group_id, ends in seen.ends.items():
        if group_id in seen.ordered:
            told.setdefault(seen.ordered[group_id][0], []).extend(t_s for t_s, _ in ends)
    all_gaps = [later - sooner for times in told.values() for sooner, later in pairwise(sorted(times))]
    gaps = sorted(gap for gap in all_gaps if LEAST_ANSWER_S < gap < MOST_ANSWER_S)
    part = len(gaps) // 3
    if part < LEAST_GAPS:
        return 0.0
    low = min(range(len(gaps) - part), key=lambda k: gaps[k + part] - gaps[k])
    narrow = gaps[low + part] - gaps[low] < NARROW * (MOST_ANSWER_S - LEAST_ANSWER_S)
    return median(gaps[low : low + part + 1]) if narrow else 0.0
