"""How much a link varies over its trace: what the planner is told of it, in numbers.

Called by `workers` for each pool with a shape. The simulator replays the shape itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from echo2.policy.facts import WorkerOffer
from echo2.scenario.varying import steps

# A link that never works is planned as one that hardly does.
MOST_OUT = 0.99
# Below this part of its level a link carries nothing that a snapshot could wait for.
OUT_BELOW = 0.05


@dataclass(frozen=True)
class LinkVariation:
    """Over the whole trace, by time. `mean` and `cv` of the factor, outages included.

    `slowness`: mean of 1 / factor while it is at least `OUT_BELOW`: by how much longer a transfer takes.
    `out_share`: share of time below that; `out_s`: mean seconds of such a stretch, 0 without any.
    """

    mean: float
    cv: float
    slowness: float
    out_share: float
    out_s: float


@lru_cache(maxsize=32)
def link_variation(trace: str, upward: bool) -> LinkVariation:
    """Of one side of a shape. The trace repeats: an outage that ends it and one that begins it are one."""
    starts, factors, period = steps(trace, upward)
    held = [end - begin for begin, end in zip(starts, (*starts[1:], period))]
    total = sum(held)
    mean = sum(s * f for s, f in zip(held, factors)) / total
    variance = sum(s * (f - mean) ** 2 for s, f in zip(held, factors)) / total
    up = [(s, f) for s, f in zip(held, factors) if f >= OUT_BELOW]
    up_s = sum(s for s, _ in up)
    begun = sum(1 for i, f in enumerate(factors) if f < OUT_BELOW <= factors[i - 1])
    stretches = begun or (1 if min(factors) < OUT_BELOW else 0)  # 1: out all the time
    return LinkVariation(
        mean=mean,
        cv=variance**0.5 / mean if mean > 0 else 0.0,
        slowness=sum(s / f for s, f in up) / up_s if up_s > 0 else 1.0,
        out_share=min(MOST_OUT, 1.0 - up_s / total) if stretches else 0.0,
        out_s=(total - up_s) / stretches if stretches else 0.0,
    )


def told(offer: WorkerOffer, link: LinkVariation | None) -> WorkerOffer:
    """The offer with the variation of its link; as it is where that does not vary."""
    if link is None:
        return offer
    return replace(offer, link_slowness=link.slowness, link_out_share=link.out_share, link_out_s=link.out_s)
