"""How long the learner's steps took in the first part of a run, as a distribution to draw from.

A step that publishes copies the weights, one that writes a checkpoint waits for the disk, and one that runs
while a snapshot spreads shares the machine with that: each kind has a median of its own. Called by
`calibrate` and the calibrated world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP = 2
SETTLING = 0.25
"""Share of what was seen that is left out where the beginning differs: hand-overs and snapshots (ours)."""
LEAST_FIT = 10
TELLING = 0.3
OUTLIER = 3.0
"""Times above this many times the median of their kind are taken as that: one hiccup is no pattern."""


@dataclass(frozen=True)
class SeenStep:
    """A step as the log shows it: the version it made, its seconds, the tokens it trained on.

    `turn_s`: from the decision to train until the step began, and from its end until it was told.
    `spreading`: whether a snapshot was on its way to some worker when it was decided.
    """

    version: int
    train_s: float
    tokens: int
    turn_s: float = 0.0
    spreading: bool = False


@dataclass(frozen=True)
class StepKinds:
    """Which versions are published and which are written as a checkpoint."""

    publish_period: int
    checkpoint_every: int
    total_steps: int

    def of(self, version: int) -> tuple[bool, bool]:
        """(published, checkpoint)."""
        last = version >= self.total_steps
        return version % self.publish_period == 0 and not last, version % self.checkpoint_every == 0 or last


Kind = tuple[bool, bool, bool]


@dataclass(frozen=True)
class StepModel:
    """Seconds of a step: the median of its kind (published, checkpoint, begun while a snapshot spread), plus
    `per_token_s` for each token above `mean_tokens`, plus one of the deviations that steps had, by whether a
    snapshot spread.

    `spread_share`: of the steps seen, those begun while a snapshot spread. `turns_s`: what passed beside,
    from the decision to train until the step began and after it.
    """

    kinds: StepKinds
    medians_s: dict[Kind, float]
    deviations_s: dict[bool, tuple[float, ...]]
    mean_tokens: float
    per_token_s: float
    spread_share: float = 0.0
    turns_s: tuple[float, ...] = (0.0,)

    @property
    def mean_s(self) -> float:
        """Mean seconds over the kinds as often as they come."""
        steps = range(1, self.kinds.total_steps + 1)
        shares = {True: self.spread_share, False: 1.0 - self.spread_share}
        return sum(
            share * float(np.mean([self.median_s(v, spreading) for v in steps]) + self._deviation(spreading))
            for spreading, share in shares.items()
            if share > 0
        )

    @property
    def cv(self) -> float:
        """Coefficient of variation of steps of a kind."""
        return float(np.std([one for part in self.deviations_s.values() for one in part])) / max(
            self.mean_s, 1e-12
        )

    def draw(self, version: int, tokens: float, rng: np.random.Generator, spreading: bool = False) -> float:
        """Seconds of the step that makes `version`."""
        longer = self.per_token_s * (tokens - self.mean_tokens)
        drawn = float(rng.choice(self._of(spreading)))
        return max(1e-4, self.median_s(version, spreading) + longer + drawn)

    def median_s(self, version: int, spreading: bool = False) -> float:
        """The median of the version's kind, or of the one most like it that was seen."""
        published, saved = self.kinds.of(version)
        order = [(p, s) for s in dict.fromkeys((saved, False, True)) for p in (published, not published)]
        for like in [(*one, spreading) for one in order] + [(*one, not spreading) for one in order]:
            if like in self.medians_s:
                return self.medians_s[like]
        raise ValueError("a step model needs at least one step")

    def _of(self, spreading: bool) -> tuple[float, ...]:
        return self.deviations_s.get(spreading) or self.deviations_s[not spreading]

    def _deviation(self, spreading: bool) -> float:
        return float(np.mean(self._of(spreading)))


def fit_steps(steps: Sequence[SeenStep], kinds: StepKinds) -> StepModel:
    """The model of steps seen. The first ones are warm-up and left out where there are enough others."""
    used = steps[WARM_UP:] if len(steps) > 2 * WARM_UP else steps
    tokens = np.array([step.tokens for step in used], dtype=float)
    seconds = np.array([step.train_s for step in used])
    plain = np.array([not kinds.of(step.version)[1] for step in used])
    slope, mean = _slope(tokens[plain], seconds[plain]), float(tokens.mean())
    seen: dict[Kind, list[float]] = {}
    for step in used:
        kind = (*kinds.of(step.version), step.spreading)
        seen.setdefault(kind, []).append(step.train_s - slope * (step.tokens - mean))
    medians = {kind: float(np.median(times)) for kind, times in seen.items()}
    deviations: dict[bool, tuple[float, ...]] = {}
    for kind, times in seen.items():
        deviations[kind[2]] = deviations.get(kind[2], ()) + tuple(
            min(one, OUTLIER * medians[kind]) - medians[kind] for one in times
        )
    turns = tuple(max(0.0, step.turn_s) for step in used[int(SETTLING * len(used)) :])
    share = float(np.mean([step.spreading for step in used]))
    return StepModel(kinds, medians, deviations, mean, slope, share, turns)


def _slope(tokens: np.ndarray, seconds: np.ndarray) -> float:
    """Seconds a token, where length explains a good part of the spread; else 0."""
    if len(tokens) < LEAST_FIT or tokens.std() == 0 or seconds.std() == 0:
        return 0.0
    share = float(np.corrcoef(tokens, seconds)[0, 1])
    return share * float(seconds.std() / tokens.std()) if share > 0 and share**2 > TELLING else 0.0
