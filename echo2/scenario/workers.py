"""The rollout workers of a pool: what each makes, costs, how it is connected and when it can be had."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from echo2 import traces
from echo2.config import Config, Pool
from echo2.errors import UserError
from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import (
    DecodeModel,
    GenerationRate,
    TokenLengths,
    slots_that_fit,
    steady_rate,
)
from echo2.scenario.learner import check_model, rates_bps
from echo2.scenario.naming import key, resolved
from echo2.scenario.places import Site, check_region, pool_site
from echo2.scenario.prices import UsedPrice, pool_price
from echo2.scenario.variation import link_variation, told
from echo2.scenario.varying import link_shape, nic_bucket, repeats, slots, steps
from echo2.sim.inputs import Availability, SimWorker


@dataclass(frozen=True)
class Engine:
    """How a pool's workers decode: the model, GPUs a worker, and where that is from."""

    model: DecodeModel
    gpus: int
    note: str


@dataclass(frozen=True)
class PoolWorkers:
    """The workers of one pool with their site and price."""

    workers: tuple[SimWorker, ...]
    site: Site
    price: UsedPrice


def build_pool(
    config: Config, pool: Pool, lengths: TokenLengths, base_dir: Path, run_s: float, notes: list[str]
) -> PoolWorkers:
    """All workers of a pool. `run_s` is about how long the run takes (for the notes on short traces)."""
    check_region(config, f"pool.{pool.name}.region", pool.region)
    engine = engine_of(config, pool)
    notes.append(f"pool {pool.name}: {engine.note}")
    site, price = pool_site(pool), pool_price(pool)
    offer = _offer(pool, site, price, engine, worker_rate(config, pool, engine, lengths))
    up_when, losses_per_h = _availability(config, pool, base_dir, run_s, notes)
    trace = _shape_trace(pool, base_dir, run_s, notes)
    bucket = None
    if pool.nic is not None:
        with key(f"pool.{pool.name}.nic", pool.nic):
            bucket = nic_bucket(pool.nic)
    workers = []
    for j in range(pool.count):
        name = f"{pool.name}-{j}"
        up, down = _rates_bps(config, pool, j)
        if bucket is not None:
            up, down = min(up, bucket.burst_bps), min(down, bucket.burst_bps)
        mine = replace(
            told(offer, link_variation(trace, upward=False) if trace else None),
            worker_id=name,
            uplink_bps=up,
            downlink_bps=down,
            preemptions_per_h=losses_per_h,
        )
        shape = link_shape(trace, config.seed, name) if trace else None
        workers.append(SimWorker(mine, engine.model, shape, bucket, up_when[j] if up_when else None))
    return PoolWorkers(tuple(workers), site, price)


def engine_of(config: Config, pool: Pool) -> Engine:
    """The decode model of a pool: given as a constant rate (of any GPU), or its GPU's engine profile."""
    if pool.tokens_per_s is not None and pool.slots is not None:
        running = min(pool.slots, pool.max_running or pool.slots)
        model = DecodeModel.constant_rate(pool.tokens_per_s, running, pool.speed)
        rate = f"{pool.tokens_per_s:g} tokens/s at {running} sequences, given"
        return Engine(model, 1, f"{card_name(pool.gpu)}, {rate}")
    check_model(config, f"tokens_per_s and slots of pool {pool.name}")
    with key(f"pool.{pool.name}.gpu", pool.gpu):
        try:
            card = traces.canonical(pool.gpu)
            profile = traces.decode_model(card, config.model.name, pool.max_running)
        except UserError as error:
            raise UserError(f"{error}; or give tokens_per_s and slots") from None
    times = f", times {pool.speed:g}" if pool.speed != 1 else ""
    note = f"decoding on {profile.gpus} x {card} ({profile.basis}: {profile.source}{times})"
    return Engine(replace(profile.model, speedup=pool.speed), profile.gpus, note)


def card_name(gpu: str) -> str:
    """The canonical name of a GPU; the user's own where the table does not have it."""
    return traces.canonical(gpu) if traces.is_known(gpu) else gpu


def worker_rate(config: Config, pool: Pool, engine: Engine, lengths: TokenLengths) -> GenerationRate:
    """Rollouts/s and seconds a rollout of one worker kept full. A GPU too small: UserError with the fix."""
    prompt = config.rollout.prompt_tokens
    fit = slots_that_fit(engine.model, lengths, prompt)
    if fit < 1:
        room = engine.model.kv_pool_tokens
        raise UserError(
            f"pool.{pool.name}.gpu = {pool.gpu!r}: a rollout of {lengths.max + prompt:,.0f} tokens (prompt "
            f"included) does not fit its KV cache of {room:,.0f} tokens; set rollout.max_tokens <= "
            f"{max(0.0, room - prompt):.0f}, or take a GPU with more memory"
        )
    return steady_rate(engine.model, lengths, prompt, fit, config.batch.group_size)


def _offer(pool: Pool, site: Site, price: UsedPrice, engine: Engine, rate: GenerationRate) -> WorkerOffer:
    card = card_name(pool.gpu)
    return WorkerOffer(
        worker_id=pool.name,
        pool=pool.name,
        gpu=card if engine.gpus == 1 else f"{engine.gpus}x {card}",
        site=site.name,
        price_usd_per_h=price.usd_per_h * (engine.gpus if price.unit == "GPU" else 1),
        rollouts_per_s=rate.rollouts_per_s,
        slots=rate.slots,
        group_s=rate.group_s,
        generation_tail_s=rate.tail_s,
        uplink_bps=1.0,
        downlink_bps=1.0,
        can_relay=pool.relay,
        startup_s=pool.startup_s,
        min_lease_s=pool.min_lease_s,
    )


def _rates_bps(config: Config, pool: Pool, j: int) -> tuple[float, float]:
    """(up, down) of worker j: given, the quartiles' spread of its access line, or the region's card."""
    up_mbps, down_mbps = pool.uplink_mbps, pool.downlink_mbps
    if pool.access is not None:
        with key(f"pool.{pool.name}.access", pool.access):
            level = traces.access(pool.access)
        share = (j + 0.5) / pool.count
        up_mbps = up_mbps or spread(level.up_bps, share) / 1e6
        down_mbps = down_mbps or spread(level.down_bps, share) / 1e6
    return rates_bps(config, f"pool.{pool.name}", pool.provider, pool.region, up_mbps, down_mbps)


def spread(quartiles: tuple[float, float, float], share: float) -> float:
    """The value at `share` (0..1) of the way from the first to the third quartile, geometric in between."""
    low, middle, high = quartiles
    a, b, at = (low, middle, 2 * share) if share <= 0.5 else (middle, high, 2 * share - 1)
    return math.exp((1 - at) * math.log(a) + at * math.log(b))


def _availability(
    config: Config, pool: Pool, base_dir: Path, run_s: float, notes: list[str]
) -> tuple[list[Availability], float]:
    """(when each worker can be had, losses per hour up); nothing for a pool without a trace."""
    if pool.availability is None:
        return [], pool.preemptions_per_h or 0.0
    with key(f"pool.{pool.name}.availability", pool.availability):
        trace = traces.availability(resolved(pool.availability, base_dir))
    up = trace.mean_alive / trace.peak
    notes.append(
        f"pool {pool.name}: can be had as in {trace.trace_id}: {trace.peak} slots, up {up:.0%} of the time, "
        f"{trace.preemptions_per_node_hour:.2f} losses per hour up"
    )
    if short := repeats(trace.trace_id, trace.duration_s, run_s):
        notes.append(short)
    losses = trace.preemptions_per_node_hour if pool.preemptions_per_h is None else pool.preemptions_per_h
    return list(slots(trace, pool.count, config.seed, pool.name)), losses


def _shape_trace(pool: Pool, base_dir: Path, run_s: float, notes: list[str]) -> str:
    if pool.link_shape is None:
        return ""
    trace = resolved(pool.link_shape, base_dir)
    with key(f"pool.{pool.name}.link_shape", pool.link_shape):
        period = steps(trace, False)[2]
    notes.append(
        f"pool {pool.name}: link levels measured, their shape measured elsewhere ({pool.link_shape})"
    )
    if short := repeats(pool.link_shape, period, run_s):
        notes.append(short)
    return trace
