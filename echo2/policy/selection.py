"""Which workers to switch on: the cost-aware rule, and the plain rules it is compared with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal

from echo2.policy.activation import Activation, Candidate, choose, lp_bound

ActivationRule = Literal["cost", "all", "fastest", "random"]


def select(rule: ActivationRule, options: Sequence[Candidate], needed: float) -> Activation:
    """Activate by `rule` until `needed` rollouts/s are covered.

    `cost`: least USD/h (exact while that is fast). Baselines: `all` switches everything on, `fastest`
    takes the fastest first, `random` an order that looks random but is fixed by the worker's name.
    """
    if rule == "cost":
        return choose(options, needed)
    order = {
        "all": sorted(options, key=lambda c: c.worker_id),
        "fastest": sorted(options, key=lambda c: (-c.rate, c.worker_id)),
        "random": sorted(options, key=lambda c: (zlib.crc32(c.worker_id.encode()), c.worker_id)),
    }[rule]
    return take_in_order(order, needed, rule, everything=rule == "all")


def take_in_order(
    order: Sequence[Candidate], needed: float, method: str, everything: bool = False
) -> Activation:
    """Take candidates in this order until the need is covered, or all of them."""
    chosen: list[Candidate] = []
    rate = 0.0
    for candidate in order:
        if rate >= needed and not everything:
            break
        chosen.append(candidate)
        rate += candidate.rate
    cost = sum(candidate.cost_usd_per_h for candidate in chosen)
    bound = lp_bound(order, needed)
    return Activation(
        chosen=tuple(sorted(candidate.worker_id for candidate in chosen)),
        cost_usd_per_h=cost,
        rate=rate,
        needed=needed,
        bound_usd_per_h=bound,
        ratio=cost / bound if bound > 0 else 1.0,
        method=method,
        feasible=rate >= needed * (1.0 - 1e-9),
        reasons=tuple((candidate.worker_id, f"next in the order '{method}'") for candidate in chosen),
        shortfall=max(0.0, needed - rate),
    )
