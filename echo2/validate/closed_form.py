"""The planner's word on a calibrated run: what the closed form says the rest of it looks like.

Called by `check`. The workers that were active are given; nothing is chosen anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from statistics import fmean

from echo2.errors import InfeasibleError, UserError
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths, steady_rate
from echo2.policy.plan_types import PlanProblem
from echo2.policy.planner import plan_run
from echo2.policy.settings import SchedulerSettings
from echo2.validate.calibrate import Calibration
from echo2.validate.plane import UNSHAPED_BPS
from echo2.validate.world import decode_of


def planned(
    problem: PlanProblem, settings: SchedulerSettings, calibration: Calibration, active: Collection[str]
) -> dict[str, float | None]:
    """The figures that the plan has, by the names of `compare`; empty where it cannot plan this."""
    lengths = lengths_of(calibration)
    chosen = [offer for offer in problem.offers if offer.worker_id in active]
    decode = {
        w: decode_of(m.engine, _slots(chosen, w)) for w, m in calibration.workers.items() if w in active
    }
    size = fmean(calibration.payloads)
    question = replace(
        problem,
        publish_period=settings.publish_period,
        train_s=calibration.learner.mean_s,
        train_cv=calibration.learner.cv,
        full_snapshot_bytes=settings.full_snapshot_bytes,
        snapshot_bytes=size,
        offers=tuple(_offer(o, calibration, decode, lengths, settings.group_size, size) for o in chosen),
        decode=decode,
        lengths=lengths,
        links=replace(problem.links, learner_uplink_bps=UNSHAPED_BPS, learner_downlink_bps=UNSHAPED_BPS),
        swap_pause_s=max((calibration.workers[w].pause_s for w in active), default=0.0),
        activation="all",
        topologies=("star",),
        best_effort=True,
    )
    try:
        plan = plan_run(question)
    except (InfeasibleError, UserError, ValueError):
        return {}
    return {
        "steps_per_s": plan.steps_per_s,
        "step_p50_s": 1.0 / plan.steps_per_s,
        "train_mean_s": question.train_s,
        "learner_utilisation": plan.learner_utilisation,
        "tail_p50_s": plan.t_bcast_s,
        "step_cost_usd": plan.step_cost_usd,
    }


def lengths_of(calibration: Calibration) -> TokenLengths:
    """The lengths seen, as a distribution."""
    import numpy as np

    tokens = np.array([t for group in calibration.groups for t in group], dtype=float)
    values, counts = np.unique(tokens, return_counts=True)
    return TokenLengths(values, values, counts / counts.sum(), "seen in the first part")


def _slots(offers: Collection[WorkerOffer], name: str) -> int:
    return next(offer.slots for offer in offers if offer.worker_id == name)


def _offer(
    offer: WorkerOffer,
    calibration: Calibration,
    decode: dict[str, DecodeModel],
    lengths: TokenLengths,
    group_size: int,
    size: float,
) -> WorkerOffer:
    """The offer with what was measured: rate, times with their delays, and the whole way of a snapshot."""
    rate = steady_rate(decode[offer.worker_id], lengths, 0.0, offer.slots, group_size)
    model, delays = calibration.workers[offer.worker_id], calibration.delays
    delay = 3 * delays.write_s + 2 * delays.hop_s[offer.worker_id]
    down_s = fmean(model.spread_s.values()) + 8.0 * size / min(model.downlink_bps, UNSHAPED_BPS)
    return replace(
        offer,
        rollouts_per_s=rate.rollouts_per_s,
        group_s=rate.group_s + delay,
        generation_tail_s=rate.tail_s + delay,
        downlink_bps=8.0 * size / max(down_s, 1e-6),
        can_relay=False,
    )
