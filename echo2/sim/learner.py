"""The simulated learner: how long a step takes."""

from __future__ import annotations

import math

import numpy as np

from echo2.sim.inputs import LearnerModel


class StepTimes:
    """Draws step times: fixed or in proportion to the batch's tokens, times a lognormal factor of mean 1."""

    def __init__(self, learner: LearnerModel, prompt_tokens: float, seed: int) -> None:
        self._learner = learner
        self._prompt_tokens = prompt_tokens
        self._rng = np.random.default_rng((seed, 2))

    def draw(self, rollouts: int, tokens: float) -> float:
        """Seconds to train on a batch of `rollouts` with `tokens` generated in all."""
        learner = self._learner
        seconds = learner.train_s
        if learner.tokens_per_s:
            seconds = (tokens + rollouts * self._prompt_tokens) / learner.tokens_per_s
        if learner.cv:
            sigma = math.sqrt(math.log1p(learner.cv**2))
            seconds *= math.exp(self._rng.normal(-sigma * sigma / 2.0, sigma))
        return seconds
