"""Egress against freshness on the measured matrix of regions: a paid border is crossed once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from echo2.policy.broadcast import BroadcastPlan, candidates, edges
from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LEARNER, LinkTable
from echo2.policy.plan_choice import choose_plan
from echo2.policy.worth import Demand
from echo2.traces import regions

SITES = ("aws:us-east-1", "aws:eu-west-1", "aws:ap-northeast-1")
EACH = 4
SIZE_BYTES = 16e9


def links() -> LinkTable:
    """Three regions of one cloud with their measured links and list prices; the learner in the first."""
    matrix = regions().filled()
    rows = [matrix.regions.index(site) for site in SITES]
    at = np.ix_(rows, rows)
    capacity, rtt, usd = (
        tuple(map(tuple, m[at].tolist()))
        for m in (matrix.capacity_bps, matrix.rtt_s, matrix.egress_usd_per_gb)
    )
    nic = float(matrix.capacity_bps[rows[0], rows[0]])
    return LinkTable(SITES, capacity, rtt, usd, SITES[0], nic, nic)


def workers() -> list[WorkerOffer]:
    """Four workers in each of the two far regions."""
    return [
        WorkerOffer(f"{site}-{i}", "pool", "GPU", site, 2.0, 1.0, 16, 60.0, 90.0, 5e9, 5e9)
        for site in SITES[1:]
        for i in range(EACH)
    ]


def demand(S: int, weight: float = 1.0) -> Demand:
    """A step takes 120 s and eats 500 rollouts; the freshness slack grows with S."""
    return Demand(
        staleness_bound=S, publish_period=1, rollouts_per_step=500, train_s=120.0, snapshot_bytes=SIZE_BYTES,
        learner_usd_per_h=300.0, egress_weight=weight,
    )  # fmt: skip


def chosen(S: int, weight: float = 1.0) -> BroadcastPlan:
    """The scheduler's choice."""
    offers = workers()
    plans = candidates(links().problem(offers, SIZE_BYTES))
    return choose_plan(plans, offers, demand(S, weight))[0]


def crossings(plan: BroadcastPlan) -> float:
    """Copies of the snapshot that cross a border with a price."""
    table = links()
    site = {offer.worker_id: offer.site for offer in workers()} | {LEARNER: SITES[0]}
    parts = [share for share in plan.shares if share > 0] or [1.0]
    if plan.direct_share > 0:
        parts.append(plan.direct_share)
    return sum(
        part
        for part, tree in zip(parts, edges(plan, LEARNER), strict=True)
        for a, b in tree
        if table.egress[table.index(site[a]), table.index(site[b])] > 0 and site[a] != site[b]
    )


def test_with_slack_each_paid_border_is_crossed_once() -> None:
    """At equal freshness: one copy into each far region, fanned out inside, for a fraction of the USD."""
    plan = chosen(S=8)
    star = next(p for p in candidates(links().problem(workers(), SIZE_BYTES)) if p.topology == "star")
    assert crossings(plan) == pytest.approx(2.0)
    assert crossings(star) == 2 * EACH
    assert plan.egress_usd <= star.egress_usd / EACH * 1.5


def test_the_weight_trades_egress_for_time() -> None:
    """Without weight the fastest plan is taken; the more it weighs, the less is paid."""
    plans = [chosen(S=8, weight=weight) for weight in (0.0, 1.0, 100.0)]
    fastest = candidates(links().problem(workers(), SIZE_BYTES))[0]
    assert plans[0].time_s == fastest.time_s
    assert plans[0].egress_usd > 1.5 * plans[1].egress_usd >= 1.5 * plans[2].egress_usd
    assert plans[0].time_s < plans[1].time_s <= plans[2].time_s


def test_lateness_that_costs_more_than_egress_decides() -> None:
    """Strictly on-policy and with rollouts worth far more than traffic, the fastest plan wins."""
    offers = workers()
    plans = candidates(links().problem(offers, SIZE_BYTES))
    dear = replace(demand(0), learner_usd_per_h=1e6)
    assert choose_plan(plans, offers, dear)[0].time_s == pytest.approx(plans[0].time_s, rel=0.02)
