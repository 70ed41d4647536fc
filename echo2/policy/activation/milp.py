"""The covering knapsack handed to a general solver: HiGHS through `scipy.optimize.milp`.

An independent check of `cover.exact`, which solves the same problem by dynamic programming around the
break item. That one is used to decide: HiGHS takes 10 times as long, its time limit would make decisions
depend on the machine's speed, and a scheduler must replay to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from echo2.policy.activation.candidate import Activation, Candidate, make_activation


def milp(candidates: Sequence[Candidate], needed: float, rel_gap: float = 1e-6) -> Activation:
    """min sum c_i x_i with sum rate_i x_i >= needed, x binary, locked workers in. ValueError if unsolved."""
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.optimize import milp as highs

    rates = np.array([c.effective_rate for c in candidates])
    if rates.sum() < needed:
        useful = [c for c in candidates if c.effective_rate > 0 or c.locked]
        return make_activation(candidates, useful, needed, "exact", note="the pool does not cover the need")
    costs = np.array([c.cost_usd_per_h for c in candidates])
    lower = np.array([1.0 if c.locked else 0.0 for c in candidates])
    found = highs(
        costs,
        constraints=LinearConstraint(rates[None, :], needed, np.inf),
        integrality=np.ones(len(candidates), dtype=np.int64),
        bounds=Bounds(lower, np.ones(len(candidates))),
        options={"mip_rel_gap": rel_gap},
    )
    if found.x is None:
        raise ValueError(f"HiGHS found no cover of {needed}: {found.message}")
    chosen = [c for c, x in zip(candidates, found.x) if x > 0.5]
    return make_activation(candidates, chosen, needed, "exact", note="HiGHS")
