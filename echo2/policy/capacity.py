"""How much generation a learner needs, what staleness allows, and what no run can beat.

Closed forms read by the planner, by the scheduler when membership changes, and by the tests of the
simulator. Seconds, rollouts and versions in, plain numbers out. Symbols: `S` staleness bound, `kappa`
publication period in learner steps, `B` rollouts a step, and in learner steps `b` broadcast, `g`
generation and `q` queue wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from echo2.errors import UserError
from echo2.policy.generation import TokenLengths

Reading = Literal["stall", "overlap"]
Term = Literal["learner", "broadcast", "swap"]
BoundTerm = Literal["learner", "rollouts", "freshness"]

# Ratios of measured seconds that are meant to be whole (600 s / 200 s) may come out as 2.9999999996: what is
# this close to an integer counts as the integer.
WHOLE = 1e-9


@dataclass(frozen=True)
class Requirement:
    """Rollouts/s that keep the learner busy, or why no rate can.

    `rollouts_per_s` is infinite when infeasible. `term` is what adds to the plain B/T_train ("learner": no
    other) or what breaks the plan; `slack_s` the seconds per period left before it does (negative: missing).
    """

    feasible: bool
    rollouts_per_s: float
    term: Term
    slack_s: float
    reason: str


@dataclass(frozen=True)
class FreshShare:
    """What ends within the freshness budget: share of rollouts, share of generated tokens, and of rate.

    `useful_rate` is useful rollouts/s over the rate without a cut. It can exceed 1: late rollouts are cut
    at the budget, so the worker makes more, shorter ones, and the batch is biased to short answers.
    """

    rollouts: float
    tokens: float
    useful_rate: float


def required_rate(
    reading: Reading, B: float, kappa: int, train_s: float, broadcast_s: float, swap_pause_s: float = 0.0
) -> Requirement:
    """Rollouts/s the active workers must make together so that the learner never waits (paper for "stall").

    stall:   kappa*B / (kappa*T_train - T_bcast), feasible if kappa*T_train > T_bcast;
    overlap: (B/T_train) / (1 - p/(kappa*T_train)), feasible if T_bcast <= kappa*T_train and p < kappa*T_train
    (ours).
    """
    if not (B > 0 and kappa >= 1 and train_s > 0 and broadcast_s >= 0 and swap_pause_s >= 0):
        raise ValueError("needs B > 0, kappa >= 1, train_s > 0, broadcast_s >= 0, swap_pause_s >= 0")
    period = kappa * train_s
    stall = reading == "stall"
    if broadcast_s >= period * (1 - WHOLE) if stall else broadcast_s > period * (1 + WHOLE):
        return _infeasible("broadcast", "T_bcast", broadcast_s, kappa, period, strict=stall)
    if not stall and swap_pause_s >= period * (1 - WHOLE):
        return _infeasible("swap", "swap pause", swap_pause_s, kappa, period, strict=True)
    stopped_s = broadcast_s if stall else swap_pause_s
    slack_s = period - max(broadcast_s, stopped_s)
    rate = B / train_s / (1.0 - stopped_s / period)
    if stopped_s == 0:
        return Requirement(True, rate, "learner", slack_s, f"B/T_train = {rate:.4g} rollouts/s")
    term: Term = "broadcast" if stall else "swap"
    reason = (
        f"workers stop {stopped_s:.4g} s ({term}) in each kappa*T_train {period:.4g} s: {rate:.4g} "
        f"rollouts/s, {rate * train_s / B:.3g}x B/T_train"
    )
    return Requirement(True, rate, term, slack_s, reason)


def _infeasible(
    term: Term, name: str, takes_s: float, kappa: int, period_s: float, strict: bool
) -> Requirement:
    """Say by how much it is too slow and the kappa that would fit (`strict`: equal does not fit either)."""
    periods = takes_s / period_s * kappa
    fits = math.floor(periods + WHOLE) + 1 if strict else math.ceil(periods - WHOLE)
    slow = (
        f"{takes_s / period_s:.3g}x too slow" if periods > kappa * (1 + WHOLE) else "no time left to generate"
    )
    sign = ">=" if strict else ">"
    reason = (
        f"{name} {takes_s:.4g} s {sign} kappa*T_train {period_s:.4g} s: {slow}; kappa >= {fits} would fit"
    )
    return Requirement(False, math.inf, term, period_s - takes_s, reason)


def worst_lag(kappa: int, b: float, g: float, q: float) -> int:
    """Staleness of the oldest rollout trained, in versions: floor(kappa + b + g + q) (ours)."""
    return kappa + math.floor(b + g + q + WHOLE)


def largest_publish_period(S: int, b: float, g: float, q: float) -> int:
    """The largest kappa with `worst_lag` <= S; 0 if not even kappa = 1 keeps the bound."""
    return max(0, S - math.floor(b + g + q + WHOLE))


def smallest_feasible_staleness(b: float, g: float, q: float, reading: Reading = "overlap") -> int:
    """The smallest S that some kappa >= 1 keeps without snapshots queueing up (ours).

    A snapshot must be out before the next: b <= kappa when sent while generating, b < kappa when workers
    stop for it. The smallest such kappa, plus floor(b + g + q).
    """
    kappa = math.ceil(b - WHOLE) if reading == "overlap" else math.floor(b + WHOLE) + 1
    return worst_lag(max(1, kappa), b, g, q)


def check_publish_period(S: int, kappa: int) -> None:
    """Refuse a publication period that deadlocks under the admission gate.

    Batch k (from 0) may only hold rollouts of version >= k - S, and versions that are multiples of kappa
    exist for the workers; without one in k-S..k the learner waits for a version that only it could make.
    S + 1 versions in a row hold a multiple of kappa for every k exactly if kappa <= S + 1.
    """
    if kappa < 1:
        raise UserError(f"publication period kappa = {kappa}: must be between 1 and S + 1 = {S + 1}")
    if kappa > S + 1:
        raise UserError(
            f"publication period kappa = {kappa} deadlocks with staleness bound S = {S}: kappa must be at "
            f"most S + 1 = {S + 1}; lower kappa to {S + 1} or raise S to {kappa - 1}"
        )


def effective_rate(
    rate: float, fresh_share: float = 1.0, up_share: float = 1.0, pause_share: float = 0.0
) -> float:
    """mu_eff in rollouts/s: what of a worker's rate is fresh, while it is up and not paused."""
    return rate * fresh_share * up_share * max(0.0, 1.0 - pause_share)


def fresh_share(lengths: TokenLengths, seconds_per_token: float, budget_s: float) -> FreshShare:
    """What a worker makes that still ends within `budget_s` of its start, late rollouts being cut there.

    With x = budget_s / seconds_per_token tokens: rollouts P(L <= x); tokens E[L; L <= x] / E[min(L, x)];
    useful_rate P(L <= x) E[L] / E[min(L, x)] (ours; renewal reward, a slot is taken for min(L, x) tokens).
    """
    if not seconds_per_token > 0:
        raise ValueError(f"seconds_per_token must be > 0, got {seconds_per_token}")
    cut = budget_s / seconds_per_token
    if cut <= 0:
        return FreshShare(0.0, 0.0, 0.0)
    mass = lengths.mass / lengths.mass.sum()
    top = np.clip(cut, lengths.lo, lengths.hi)
    width = lengths.hi - lengths.lo
    point = width <= 0
    below = np.where(point, lengths.hi <= cut * (1 + WHOLE), (top - lengths.lo) / np.where(point, 1.0, width))
    ends = float(mass @ below)
    tokens_of_ended = float(mass @ (below * (lengths.lo + top) / 2))
    slot_tokens = tokens_of_ended + (1.0 - ends) * cut
    return FreshShare(ends, tokens_of_ended / slot_tokens, ends * lengths.mean / slot_tokens)


def safety_margin(
    rate_cv: float,
    batch_rollouts: float,
    length_cv: float,
    up_share: float,
    workers: int,
    quantile: float = 0.95,
) -> float:
    """Factor >= 1 on the needed rate so that supply meets demand in a share `quantile` of the periods (ours).

    `batch_rollouts` is what a period consumes (kappa*B). Three independent fluctuations, as squared CVs:
    tokens of the period's rollouts, length_cv^2 / batch_rollouts; measured rate of each worker,
    rate_cv^2 / workers; workers up, and with a link that works, binomial with share a = `up_share`,
    (1 - a) / (a * workers). Demand over supply is taken as lognormal, so the factor is exp(z * sigma) with
    sigma^2 = ln(1 + sum of squared CVs). The mean loss 1 - a is not in it: it belongs to `effective_rate`.
    """
    if workers < 1 or batch_rollouts < 1:
        raise ValueError(f"needs workers >= 1 and batch_rollouts >= 1, got {workers}, {batch_rollouts}")
    if not 0.5 <= quantile < 1:
        raise ValueError(f"quantile must be in [0.5, 1), got {quantile}")
    if not 0 < up_share <= 1:
        raise ValueError(f"up_share must be in (0, 1], got {up_share}")
    squares = length_cv**2 / batch_rollouts + rate_cv**2 / workers + (1.0 - up_share) / (up_share * workers)
    return math.exp(NormalDist().inv_cdf(quantile) * math.sqrt(math.log1p(squares)))


def upper_bound_steps_per_s(
    S: int,
    B: float,
    train_s: float,
    total_rate: float,
    fastest_broadcast_s: float,
    generation_tail_s: float,
) -> tuple[float, BoundTerm]:
    """Learner steps/s no run can exceed, and the term that says so (ours).

    min(1/T_train, sum mu / B, (S+1) / (T_bcast of the fastest worker + generation tail + T_train)): batch k
    needs version k - S, so S + 1 steps take at least one round of broadcast, generation and training. With
    drops, give the shortest generation time of a batch in place of its tail.
    """
    round_s = fastest_broadcast_s + generation_tail_s + train_s
    terms: list[tuple[float, BoundTerm]] = [
        (1.0 / train_s, "learner"),
        (total_rate / B, "rollouts"),
        ((S + 1) / round_s, "freshness"),
    ]
    return min(terms, key=lambda term: term[0])


def serial_step_s(broadcast_s: float, drain_s: float, train_s: float) -> float:
    """Seconds of a strictly on-policy step (S = 0): broadcast, then generate the batch, then train."""
    return broadcast_s + drain_s + train_s
