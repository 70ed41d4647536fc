"""The systems echo2 is compared with, as configurations of the same world under the same scheduler.

All keep the user's learner, model, batch, lengths and steps, and replace the pool:

- colocated (verl's usual setting, synchronous): the learner's GPUs generate a batch, then train on it. S = 0.
- one-step-off: dedicated workers beside the learner generate step k + 1 while step k is trained. S = 1,
  kappa = 1; workers stop for the new weights.
- datacentre-async (AReaL, arXiv 2505.24298): the same workers, S as configured, kappa = 1; generation goes on
  while weights arrive.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from echo2.config import Config, Pool
from echo2.config.sections import MAX_WORKERS
from echo2.errors import UserError
from echo2.policy.generation import TokenLengths
from echo2.scenario.prices import learner_price

if TYPE_CHECKING:
    from echo2.scenario.workers import Engine

# Inside a node: NVLink and memory copies move weights at 100 GB/s and more; 10^12 bit/s is 125 GB/s.
IN_NODE_MBPS = 1e6
# Between machines of one data centre: 100 Gbit/s, a usual card of GPU servers.
IN_DATACENTRE_MBPS = 1e5
# How much of the learner's need is on offer; the provisioning rule takes what it wants of it.
OFFERED = 3.0
# The learner's GPUs are paid for already; the activation rule wants a price above 0.
NO_EXTRA_USD_PER_H = 1e-6


def for_system(config: Config, lengths: TokenLengths, train_s: float, notes: list[str]) -> Config:
    """The configuration of the world that `run.system` asks for; echo2's is the user's own."""
    if config.run.system == "echo2":
        return config
    if config.run.system == "colocated":
        return colocated(config, notes)
    return dedicated(config, lengths, train_s, notes)


def colocated(config: Config, notes: list[str]) -> Config:
    """The learner's own GPUs as workers, at no extra price; weights are handed over inside the node."""
    pool = _beside(config, "learner-gpus", IN_NODE_MBPS, price_usd_per_h=NO_EXTRA_USD_PER_H)
    gpus = _engine(config, pool).gpus
    pool = pool.model_copy(update={"count": max(1, config.learner.gpus // gpus)})
    notes.append(
        f"baseline colocated: the learner's {config.learner.gpus} GPUs generate ({pool.count} workers of "
        f"{gpus}), then train; weights are handed over at {IN_NODE_MBPS / 1e6:g} Tbit/s; the engine is "
        "assumed to have the whole memory while it generates"
    )
    run = config.run.model_copy(update={"staleness": 0, "publish_period": 1, "reading": "stall"})
    return _world(config, run, pool, IN_NODE_MBPS, "all")


def dedicated(config: Config, lengths: TokenLengths, train_s: float, notes: list[str]) -> Config:
    """On-demand workers of the learner's GPU in its data centre, as many as the provisioning rule wants."""
    from echo2.scenario.workers import worker_rate

    per_gpu = learner_price(config.learner).usd_per_h
    pool = _beside(config, "datacentre", IN_DATACENTRE_MBPS)
    engine = _engine(config, pool)
    rate = worker_rate(config, pool, engine, lengths).rollouts_per_s
    needed = config.batch.rollouts_per_step / train_s
    count = 1 + math.ceil(OFFERED * needed / rate)
    if count > MAX_WORKERS:
        raise UserError(
            f"run.system = {config.run.system!r}: a learner that needs {needed:,.0f} rollouts/s would need "
            f"{count:,} workers on offer, more than {MAX_WORKERS:,}; raise learner.step_s, or lower "
            "rollouts_per_step"
        )
    pool = pool.model_copy(update={"count": count, "price_usd_per_h": per_gpu * engine.gpus})
    one_off = config.run.system == "one-step-off"
    changes = {"staleness": 1, "reading": "stall"} if one_off else {"reading": "overlap"}
    # A baseline does what it does: where its S leaves the learner idle, that is its result.
    run = config.run.model_copy(update={**changes, "publish_period": 1, "best_effort": True})
    notes.append(
        f"baseline {config.run.system}: up to {count} on-demand workers of {engine.gpus} x "
        f"{config.learner.gpu} beside the learner at its price per GPU, "
        f"{IN_DATACENTRE_MBPS / 1e3:g} Gbit/s between them"
    )
    return _world(config, run, pool, IN_DATACENTRE_MBPS, config.policy.activation)


def _engine(config: Config, pool: Pool) -> Engine:
    """How the learner's GPUs generate; the error names the learner, as the pool is not in the user's file."""
    from echo2.scenario.workers import engine_of

    try:
        return engine_of(config, pool)
    except UserError:
        raise UserError(
            f"learner.gpu = {pool.gpu!r}: run.system = {config.run.system!r} generates on the learner's "
            f"GPUs, and how fast they decode {config.model.name} is not known; take a GPU and a model of the "
            'catalogue, or run.system = "echo2"'
        ) from None


def _beside(config: Config, name: str, mbps: float, price_usd_per_h: float | None = None) -> Pool:
    learner = config.learner
    return Pool(
        name=name,
        gpu=learner.gpu,
        count=1,
        provider=learner.provider,
        market="on_demand",
        region=learner.region,
        price_usd_per_h=price_usd_per_h,
        uplink_mbps=mbps,
        downlink_mbps=mbps,
        startup_s=0.0,
    )


def _world(config: Config, run: object, pool: Pool, mbps: float, activation: str) -> Config:
    """Learner and pool in one place: no egress, no varying links, no preemption."""
    learner = config.learner.model_copy(
        update={"uplink_mbps": mbps, "downlink_mbps": mbps, "egress_usd_per_gb": None, "nic": None,
                "link_shape": None}
    )  # fmt: skip
    return config.replaced(
        run=run,
        learner=learner,
        pool=(pool,),
        network=config.network.model_copy(update={"local_mbps": mbps}),
        policy=config.policy.model_copy(update={"activation": activation}),
        sim=config.sim.model_copy(update={"price_changes": ()}),
    )
