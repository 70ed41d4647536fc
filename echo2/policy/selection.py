"""Which workers to switch on: the cost-aware rule, and the plain rules it is compared with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal

from echo2.policy.activation import Activation, Candidate, choose
from echo2.policy.activation.candidate import make_activation, why_chosen

ActivationRule = Literal["cost", "all", "fastest", "random"]

WHY: dict[ActivationRule, str] = {
    "all": "every worker on offer",
    "fastest": "fastest first, until the need is covered",
    "random": "in an arbitrary fixed order, until the need is covered",
}


def select(rule: ActivationRule, options: Sequence[Candidate], needed: float) -> Activation:
    """Activate by `rule` until `needed` rollouts/s are covered.

    `cost`: least USD/h (exact while that is fast). Baselines: `all` switches everything on, `fastest`
    takes the fastest first, `random` an order that looks random but is fixed by the worker's name.
    """
    if rule == "cost":
        return choose(options, needed)
    return take_in_order(_in_order(rule, options), needed, WHY[rule], everything=rule == "all")


def keep(rule: ActivationRule, options: Sequence[Candidate], needed: float) -> Activation:
    """A plain rule in a running pool: who is active stays, the next in the rule's order fill the gap."""
    order = sorted(_in_order(rule, options), key=lambda c: not c.active)
    active = sum(candidate.active for candidate in order)
    return take_in_order(order, needed, WHY[rule], everything=rule == "all", least=active)


def _in_order(rule: ActivationRule, options: Sequence[Candidate]) -> list[Candidate]:
    if rule == "fastest":
        return sorted(options, key=lambda c: (-c.rate, c.worker_id))
    if rule == "random":
        return sorted(options, key=lambda c: (zlib.crc32(c.worker_id.encode()), c.worker_id))
    return sorted(options, key=lambda c: c.worker_id)


def take_in_order(
    order: Sequence[Candidate], needed: float, why: str, everything: bool = False, least: int = 0
) -> Activation:
    """Take candidates in this order until the need is covered, at least `least` of them, or all."""
    chosen: list[Candidate] = []
    rate = 0.0
    for candidate in order:
        if rate >= needed and len(chosen) >= least and not everything:
            break
        chosen.append(candidate)
        rate += candidate.rate
    reasons = ((candidate.worker_id, f"{why}; {why_chosen(candidate)}") for candidate in chosen)
    return make_activation(order, chosen, needed, "greedy", reasons, note=f"taken by the rule: {why}")
