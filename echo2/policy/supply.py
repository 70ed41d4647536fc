"""What workers that come and go cost a learner that would be busy with them on average.

Called by the planner: the margin is taken from the share of time up, the predicted utilisation from how
much the supply varies. The steady state is marched with the mean supply, and a learner cannot use above
its need what it lacked below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable
from echo2.policy.worth import Demand, Effect, join_s, link_share, up_share

NORMAL = NormalDist()


def mean_up_share(offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand) -> float:
    """Share of time in which a worker of these is up and its link leaves it work, snapshots sent alone."""
    shares = []
    for offer in offers:
        seconds = links.solo_s(offer, demand.snapshot_bytes) * offer.link_slowness
        up = up_share(offer, max(join_s(offer, links, demand), seconds))
        shares.append(up * link_share(offer, demand, seconds))
    return math.fsum(shares) / len(shares) if shares else 1.0


def supply_cv(
    offers: Sequence[WorkerOffer],
    effects: Mapping[str, Effect],
    broadcast_s: Mapping[str, float],
    links: LinkTable,
    demand: Demand,
) -> float:
    """Coefficient of variation of the rollouts/s that these workers make together (ours).

    Each is up or not, independently, with the share `a` of its effect: variance `mu_eff^2 (1 - a) / a`.
    What the buffer holds ahead of the learner averages it over the slack: times
    `2 (x - 1 + exp(-x)) / x^2` with x = slack / (a x time down), the variance of the mean of an on-off
    process over a window.
    """
    total = math.fsum(effects[offer.worker_id].rollouts_per_s for offer in offers)
    if total <= 0:
        return 0.0
    variance = []
    for offer in offers:
        worth, seconds = effects[offer.worker_id], broadcast_s[offer.worker_id] * offer.link_slowness
        if worth.up_share >= 1.0 or worth.rollouts_per_s <= 0:
            continue
        joins_s = max(join_s(offer, links, demand), seconds)
        steps = demand.staleness_bound + 1 - demand.publish_period
        ahead_s = max(0.0, steps * demand.train_s - offer.group_s - seconds)
        part = math.fsum(
            (1.0 / share - 1.0) * _averaged(ahead_s, share * down_s)
            for share, down_s in (
                (up_share(offer, joins_s), offer.startup_s + joins_s),
                (link_share(offer, demand, seconds), offer.link_out_s),
            )
        )
        variance.append(worth.rollouts_per_s**2 * part)
    return math.sqrt(math.fsum(variance)) / total


def _averaged(window_s: float, correlated_s: float) -> float:
    """What of the variance is left in the mean over a window."""
    x = window_s / max(correlated_s, 1e-9)
    return 2.0 * (x - 1.0 + math.exp(-x)) / x**2 if x > 1e-3 else 1.0


def kept_share(supply: float, cv: float) -> float:
    """E[min(1, X)] / min(1, E[X]) of a normal X with this cv; its mean `supply` is in needs (ours)."""
    if cv <= 0 or supply <= 0:
        return 1.0
    z = (supply - 1.0) / (supply * cv)
    mean = supply - supply * cv * (NORMAL.pdf(z) + z * NORMAL.cdf(z))
    return max(0.0, min(1.0, mean / min(1.0, supply)))
