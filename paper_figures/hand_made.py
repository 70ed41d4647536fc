"""A world made by hand, without traces: equal workers near the learner, so that nothing else varies.

Used by `overlap_timeline` and `provisioning_knee`.
"""

from __future__ import annotations

import numpy as np

from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths, steady_rate
from echo2.policy.links import LinkTable
from echo2.policy.plan_types import PlanProblem
from echo2.policy.provision import Reading
from echo2.policy.settings import SchedulerSettings
from echo2.sim.inputs import LearnerModel, SimWorker, WorldInputs

BATCH, GROUP, TRAIN_S = 512, 8, 60.0
SNAPSHOT_BYTES, LEARNER_BPS, UP_BPS, DOWN_BPS = 16e9, 10e9, 5e9, 5e9
SWAP_S, LEARNER_USD_PER_H = 2.0, 20.0
# Steps of 21 ms alone and 46 ms with 64 sequences: an 8B model on a GPU of the middle class, rounded.
DECODE = DecodeModel((1.0, 64.0), (0.021, 0.046), (0.0, 0.0), max_running=64)
LENGTHS = TokenLengths(
    np.array([800.0, 2000.0]), np.array([2000.0, 3600.0]), np.array([0.7, 0.3]), "two bins"
)
RATE = steady_rate(DECODE, LENGTHS, 0.0)
LINKS = LinkTable(("here",), ((1e12,),), ((0.03,),), ((0.0,),), "here", LEARNER_BPS, LEARNER_BPS, 64)


def offers(workers: int) -> tuple[WorkerOffer, ...]:
    """Equal workers."""
    return tuple(
        WorkerOffer(
            f"w{i:02d}", "pool", "GPU", "here", 1.0, RATE.rollouts_per_s, RATE.slots, RATE.mean_s,
            RATE.tail_s, UP_BPS, DOWN_BPS,
        )
        for i in range(workers)
    )  # fmt: skip


def world(workers: int, S: int, kappa: int, steps: int, reading: Reading = "overlap") -> WorldInputs:
    """What is simulated. Step times do not vary."""
    settings = SchedulerSettings(
        S, kappa, BATCH, GROUP, steps, TRAIN_S, SNAPSHOT_BYTES, SNAPSHOT_BYTES, LEARNER_USD_PER_H, LINKS,
        swap_pause_s=SWAP_S, reading=reading, activation="all",
    )  # fmt: skip
    pool = tuple(SimWorker(offer, DECODE) for offer in offers(workers))
    return WorldInputs(settings, pool, LearnerModel(TRAIN_S), LENGTHS, 0.0)


def problem(workers: int, S: int, kappa: int, steps: int) -> PlanProblem:
    """The same for the planner."""
    made = offers(workers)
    return PlanProblem(
        S, kappa, BATCH, GROUP, steps, TRAIN_S, 0.0, LEARNER_USD_PER_H, SNAPSHOT_BYTES, SNAPSHOT_BYTES, made,
        {offer.worker_id: DECODE for offer in made}, LENGTHS, 0.0, LINKS, swap_pause_s=SWAP_S,
        activation="all",
    )  # fmt: skip
