"""What no march can exceed, in closed form: it spares the planner the marches that cannot succeed.

Called by `smallest`; `march` counts its steps with the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass

# The largest S marched step by step; beyond it several steps are taken as one.
LARGEST_S = 24
EQUAL_LENGTHS_CV = 0.02
MIN_STEPS = 12
# Equal rollouts come in bursts that repeat after many steps; only a long measurement averages over them.
MIN_STEPS_EQUAL = 60


@dataclass(frozen=True)
class MarchedSteps:
    """How S and kappa are marched: `scale` steps as one, `warm` of those before `measured` ones."""

    scale: int
    S: int
    kappa: int
    warm: int
    measured: int


def marched_steps(S: int, kappa: int, lengths_cv: float) -> MarchedSteps:
    """Whole publication cycles: at least S + 4 steps of warm-up, then at least 2 (S + 1) measured."""
    scale = -(-S // LARGEST_S) if S else 1
    if scale > 1:
        S, kappa = S // scale, -(-kappa // scale)
        kappa = min(S + 1, kappa)
    least = MIN_STEPS_EQUAL if lengths_cv < EQUAL_LENGTHS_CV else MIN_STEPS
    warm = kappa * -(-(S + 4) // kappa)
    return MarchedSteps(scale, S, kappa, warm, kappa * -(-max(2 * (S + 1), least) // kappa))


def most_utilisation(S: int, kappa: int, train_s: float, soonest_s: float, lengths_cv: float) -> float:
    """The learner utilisation that `predict` cannot exceed if no snapshot is live before `soonest_s` (ours).

    Batch `w + S - kappa + 1` may hold nothing older than snapshot `w`, a multiple of kappa. So it is trained
    `S + 2 - kappa` steps after `w` was published, and no sooner than `soonest_s + T_train`. From there to
    the next multiple of kappa, where that begins anew, each step takes `T_train`.
    """
    march = marched_steps(S, kappa, lengths_cv)
    train_s *= march.scale
    waits = march.S + 2 - march.kappa
    round_steps = march.kappa * -(-waits // march.kappa)
    round_s = max(round_steps * train_s, soonest_s + (1 + round_steps - waits) * train_s)
    rounds, rest = divmod(march.measured, round_steps)
    return march.measured * train_s / (rounds * round_s + rest * train_s)
