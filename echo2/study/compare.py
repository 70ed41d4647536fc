"""Two configurations side by side: which is better, and is the gap more than the noise of their seeds.

Paired over the seeds that both have: one seed gives both the same lengths, preemptions and prices, so most of
the noise is in both and falls out of the difference. Student's paired t-test, two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echo2.errors import UserError
from echo2.study.intervals import LEVEL, Interval, t_interval
from echo2.study.results import Group, Run
from echo2.study.workload import check_comparable


@dataclass(frozen=True)
class Measure:
    """One thing compared: its name, how it is read off a run, and whether more of it is better."""

    name: str
    of: Callable[[Run], float]
    more_is_better: bool
    form: str


MEASURES = (
    Measure("USD/step", lambda run: run.measures["step_cost_usd"], False, ".4f"),
    Measure("steps/h", lambda run: 3600.0 * run.measures["steps_per_s"], True, ".2f"),
    Measure("learner utilisation", lambda run: run.measures["learner_utilisation"], True, ".4f"),
)


@dataclass(frozen=True)
class Gap:
    """One measure of A and B over `n` common seeds. `difference` is of B - A; `p` is NaN for one seed.

    `better` is "A", "B" or "" for no more than noise (or unknown, for one seed).
    """

    measure: Measure
    a: Interval
    b: Interval
    difference: Interval
    p: float
    better: str

    @property
    def relative(self) -> float:
        """The difference as a share of A."""
        return self.difference.mean / self.a.mean if self.a.mean else math.inf

    @property
    def verdict(self) -> str:
        """In words."""
        n = self.difference.n
        if n == 1:
            return "one common seed: noise unknown"
        if self.p == 1.0 and not self.difference.half:
            return f"the same (n = {n})"
        if not self.better:
            return f"no more than noise (n = {n})"
        return f"{self.better} is better (n = {n})"


def common_seeds(a: Group, b: Group, names: tuple[str, str]) -> list[int]:
    """The seeds that both have. None: UserError."""
    seeds = sorted(set(a.seeds) & set(b.seeds))
    if not seeds:
        raise UserError(
            f"{names[0]} and {names[1]}: cannot be compared: no common seed ({_listed(a.seeds)} against "
            f"{_listed(b.seeds)}); run both with the same --seed and --seeds"
        )
    return seeds


def compare(a: Group, b: Group, names: tuple[str, str], despite: Sequence[str] = ()) -> list[Gap]:
    """Every measure compared. Of different workloads, or without a common seed: UserError."""
    check_comparable([*a.runs, *b.runs], f"{names[0]} and {names[1]}", despite)
    seeds = common_seeds(a, b, names)
    of_a, of_b = ({run.seed: run for run in group.runs} for group in (a, b))
    return [_gap(m, [m.of(of_a[s]) for s in seeds], [m.of(of_b[s]) for s in seeds]) for m in MEASURES]


def _gap(measure: Measure, a: list[float], b: list[float]) -> Gap:
    differences = [y - x for x, y in zip(a, b)]
    found = t_interval(differences)
    p = p_value(differences)
    better = ""
    if p < 1 - LEVEL:
        better = "B" if (found.mean > 0) == measure.more_is_better else "A"
    return Gap(measure, t_interval(a), t_interval(b), found, p, better)


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p of Student's t-test that the mean is 0; NaN for one value.

    Where all values are the same there is no noise: 1 if they are 0, else 0.
    """
    if len(differences) < 2:
        return math.nan
    found = t_interval(differences)
    if found.half == 0.0:
        return 0.0 if found.mean else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def _listed(seeds: Sequence[int]) -> str:
    return "seeds " + ", ".join(map(str, seeds[:6])) + (", ..." if len(seeds) > 6 else "")
