"""What the learner needs, and what a worker is worth: the share of its rollouts that count.

Closed forms read by `provision`, `roster`, `transfers` and whoever chooses a broadcast plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable

Reading = Literal["overlap", "stall"]
Mode = Literal["push", "pull"]


@dataclass(frozen=True)
class Demand:
    """What the learner needs of its workers. Seconds, bytes, rollouts; `margin` >= 1 multiplies the rate.

    `egress_weight` multiplies USD of egress where it is held against time: in the choice of broadcast plans.
    `join_bytes`: what a worker fetches when it comes (0: no more than a snapshot).
    """

    staleness_bound: int
    publish_period: int
    rollouts_per_step: int
    train_s: float
    snapshot_bytes: float
    swap_pause_s: float = 0.0
    reading: Reading = "overlap"
    margin: float = 1.0
    learner_usd_per_h: float = 0.0
    mode: Mode = "push"
    pull_fanout: int = 4
    egress_weight: float = 1.0
    join_bytes: float = 0.0

    @property
    def rollouts_per_s(self) -> float:
        """Rate of fresh rollouts that keeps the learner busy, safety margin included (design section 3)."""
        return self.margin * self.rollouts_per_step / self.train_s

    @property
    def cycle_s(self) -> float:
        """Seconds between two publications when the learner never idles."""
        return self.publish_period * self.train_s


@dataclass(frozen=True)
class Effect:
    """What a worker is worth: rate x shares. `reason` says what takes the rest away.

    `up_share`: of the time, neither coming up after a loss nor without work because its link is out.
    """

    rollouts_per_s: float
    up_share: float
    open_share: float
    work_share: float
    reason: str


def open_share(demand: Demand, broadcast_s: float, group_s: float) -> float:
    """Share of a publication cycle in which the admission gate is open for a worker, learner kept busy. Ours.

    Versions reach it `b = broadcast_s / T_train` steps late and the rollouts outstanding lead the learner
    by about `g = group_s / T_train` steps: a rollout counts until its whole group is done. A snapshot `u`
    is good for admissions up to step `u + S`; the next one arrives `kappa` steps later, so of every `kappa`
    steps `kappa + b + g - (S + 1)` are closed. It is 1 exactly when the freshness condition
    `kappa + b + g <= S + 1` holds.
    """
    b, g = broadcast_s / demand.train_s, group_s / demand.train_s
    closed = demand.publish_period + b + g - (demand.staleness_bound + 1)
    return 1.0 - min(1.0, max(0.0, closed / demand.publish_period))


def join_s(offer: WorkerOffer, links: LinkTable, demand: Demand) -> float:
    """Seconds from up to working: what it fetches when it comes, alone, on a link that varies.

    0 where that is no more than a snapshot, which `effect` counts anyway.
    """
    if demand.join_bytes <= demand.snapshot_bytes:
        return 0.0
    return links.solo_s(offer, demand.join_bytes) * offer.link_slowness / (1.0 - offer.link_out_share)


def up_share(offer: WorkerOffer, join_s: float) -> float:
    """Share of time a worker that is preempted now and then works, by the renewal-reward theorem."""
    return 1.0 / (1.0 + offer.preemptions_per_h * (offer.startup_s + join_s) / 3600.0)


def link_share(offer: WorkerOffer, demand: Demand, broadcast_s: float) -> float:
    """Share of time in which outages of its link leave a worker something to do. Ours.

    Without new snapshots it goes on for `hold`, on average: until its gate closes, from the middle of a
    publication cycle. Outages that begin at random and last `link_out_s` on average, exponentially, take
    what of them is longer: `link_out_share x exp(-hold / link_out_s)`.
    """
    if offer.link_out_share <= 0:
        return 1.0
    steps = demand.staleness_bound + 1 - 0.5 * demand.publish_period
    hold_s = max(0.0, steps * demand.train_s - broadcast_s - offer.group_s)
    return 1.0 - offer.link_out_share * math.exp(-hold_s / max(offer.link_out_s, 1e-9))


def effect(offer: WorkerOffer, demand: Demand, broadcast_s: float, join_s: float = 0.0) -> Effect:
    """mu_eff of one worker: its rate x share of time up x gate open x working (not taking a snapshot).

    `broadcast_s`: of a snapshot with its link at its level; `join_s`: to begin work when it comes.
    """
    broadcast_s *= offer.link_slowness
    up = up_share(offer, max(join_s, broadcast_s)) * link_share(offer, demand, broadcast_s)
    fresh = open_share(demand, broadcast_s, offer.group_s)
    paused = broadcast_s if demand.reading == "stall" else demand.swap_pause_s
    work = max(0.0, 1.0 - paused / demand.cycle_s)
    if demand.reading == "overlap" and broadcast_s > demand.cycle_s:
        fresh = min(fresh, demand.cycle_s / broadcast_s)
    rate = offer.rollouts_per_s * up * fresh * work
    reason = f"{rate:.3g} of {offer.rollouts_per_s:.3g} rollouts/s count"
    if fresh < 1.0:
        reason += (
            f": a snapshot takes {broadcast_s:.0f} s to arrive and a group {offer.group_s:.0f} s, "
            f"{(broadcast_s + offer.group_s) / demand.train_s:.1f} steps of "
            f"{demand.staleness_bound + 1 - demand.publish_period} that S and kappa leave"
        )
    return Effect(rate, up, fresh, work, reason)


def slack_s(offer: WorkerOffer, demand: Demand) -> float:
    """Latest a snapshot may reach a worker without closing its gate: (S + 1 - kappa) * T_train - group_s."""
    steps = demand.staleness_bound + 1 - demand.publish_period
    return min(steps * demand.train_s - offer.group_s, demand.cycle_s)


def rollout_usd(offers: Sequence[WorkerOffer], demand: Demand) -> float:
    """What a rollout is worth: the price of learner and workers for the time in which one is consumed."""
    hourly = demand.learner_usd_per_h + sum(offer.price_usd_per_h for offer in offers)
    return hourly / 3600.0 / demand.rollouts_per_s


def lateness_usd(offer: WorkerOffer, demand: Demand, seconds: float, usd_per_rollout: float) -> float:
    """USD lost per publication when a snapshot takes `seconds`: rollouts not made while the gate is closed.

    A gate is closed for at most a whole cycle.
    """
    closed_s = min(max(0.0, seconds - slack_s(offer, demand)), demand.cycle_s)
    return usd_per_rollout * offer.rollouts_per_s * closed_s


def cost_usd_per_h(offer: WorkerOffer, egress_usd: float, demand: Demand) -> float:
    """Price of a worker with the egress of its snapshots, USD/h; learner kept busy."""
    return offer.price_usd_per_h + egress_usd * 3600.0 / demand.cycle_s
