"""Hand-built simulated worlds: one site, workers of fixed speed, links of fixed rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths, steady_rate
from echo2.policy.links import LinkTable
from echo2.policy.settings import SchedulerSettings
from echo2.sim.inputs import LearnerModel, SimWorker, WorldInputs


def one_site(learner_bps: float = 10e9, rtt_s: float = 0.0, egress_usd_per_gb: float = 0.0) -> LinkTable:
    """A link table with a single site; edges are limited by the access links alone."""
    rtt = max(rtt_s, 1e-9)
    return LinkTable(
        sites=("site",),
        capacity_bps=((1e12,),),
        rtt_s=((rtt,),),
        egress_usd_per_gb=((egress_usd_per_gb,),),
        learner_site="site",
        learner_uplink_bps=learner_bps,
        learner_downlink_bps=learner_bps,
        streams=64,
    )


def equal_workers(
    count: int,
    tokens_per_s: float = 1000.0,
    slots: int = 16,
    lengths: TokenLengths | None = None,
    price_usd_per_h: float = 1.0,
    speedups: Sequence[float] = (1.0,),
    group_size: int = 4,
    **offer: Any,
) -> tuple[SimWorker, ...]:
    """Workers of constant total rate (tokens/s over all sequences), alike or with `speedups` in turn."""
    lengths = lengths or TokenLengths.constant(1000.0)
    workers = []
    for i in range(count):
        model = DecodeModel.constant_rate(tokens_per_s, slots, speedups[i % len(speedups)])
        rate = steady_rate(model, lengths, 0.0, group_size=group_size)
        made = WorkerOffer(
            worker_id=f"w{i:03d}",
            pool=f"pool{i % len(speedups)}",
            gpu="GPU",
            site="site",
            price_usd_per_h=price_usd_per_h,
            rollouts_per_s=rate.rollouts_per_s,
            slots=rate.slots,
            group_s=rate.group_s,
            generation_tail_s=rate.tail_s,
            uplink_bps=10e9,
            downlink_bps=10e9,
        )
        workers.append(SimWorker(replace(made, **offer), model))
    return tuple(workers)


def small_world(
    workers: tuple[SimWorker, ...],
    S: int = 2,
    kappa: int = 1,
    batch: int = 32,
    group: int = 4,
    steps: int = 20,
    train_s: float = 10.0,
    snapshot_bytes: float = 1e9,
    lengths: TokenLengths | None = None,
    links: LinkTable | None = None,
    learner_cv: float = 0.0,
    **settings: Any,
) -> WorldInputs:
    """A world around these workers; further keywords are scheduler settings."""
    made = SchedulerSettings(
        staleness_bound=S,
        publish_period=kappa,
        rollouts_per_step=batch,
        group_size=group,
        total_steps=steps,
        train_s=train_s,
        full_snapshot_bytes=snapshot_bytes,
        snapshot_bytes=snapshot_bytes,
        learner_usd_per_h=10.0,
        links=links or one_site(),
        activation="all",
    )
    return WorldInputs(
        settings=replace(made, **settings),
        workers=workers,
        learner=LearnerModel(train_s, cv=learner_cv),
        lengths=lengths or TokenLengths.constant(1000.0),
        prompt_tokens=0.0,
    )
