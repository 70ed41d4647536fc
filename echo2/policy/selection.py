"""Which workers to switch on: the cost-aware rule, and the plain rules it is compared with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal

from echo2.policy.activation import Activation, Candidate, choose
from echo2.policy.activation.candidate import make_activation

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
    reasons = ((candidate.worker_id, f"next in the order '{method}'") for candidate in chosen)
    return make_activation(order, chosen, needed, "greedy", reasons, note=f"taken in the order '{method}'")
