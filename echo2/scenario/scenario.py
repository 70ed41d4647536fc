"""`build`: a configuration and traces become a planner's problem and a simulated world.

Called by the command line, the benchmarks and the figures; the live runtime uses the same problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from echo2 import traces
from echo2.config import Config
from echo2.errors import UserError
from echo2.policy.generation import TokenLengths
from echo2.policy.plan_types import PlanProblem
from echo2.policy.settings import SchedulerSettings
from echo2.scenario.baselines import for_system
from echo2.scenario.delta_sizes import DeltaSize, delta_size
from echo2.scenario.learner import learner_links, learner_model
from echo2.scenario.naming import key, resolved, source
from echo2.scenario.places import learner_site, link_table
from echo2.scenario.prices import UsedPrice, learner_price
from echo2.scenario.varying import link_shape, repeats, steps
from echo2.scenario.workers import PoolWorkers, build_pool
from echo2.sim.inputs import LearnerModel, LinkShape, NicBucket, PriceChange, SimWorker, WorldInputs


@dataclass(frozen=True)
class Scenario:
    """Everything about a run before the scheduler's settings are chosen.

    `config` is what the user wrote; for a baseline `problem` and `workers` are of the transformed one.
    `notes` say in words where numbers come from, `prices` what is paid and since when.
    """

    config: Config
    problem: PlanProblem
    workers: tuple[SimWorker, ...]
    learner: LearnerModel
    learner_shape: LinkShape | None
    learner_bucket: NicBucket | None
    price_changes: tuple[PriceChange, ...]
    prices: tuple[UsedPrice, ...]
    notes: tuple[str, ...]

    def world(self, settings: SchedulerSettings) -> WorldInputs:
        """The simulated world under these settings, with the configuration's review interval."""
        return WorldInputs(
            settings=replace(settings, review_s=self.config.policy.review_s),
            workers=self.workers,
            learner=self.learner,
            lengths=self.problem.lengths,
            prompt_tokens=self.problem.prompt_tokens,
            learner_shape=self.learner_shape,
            learner_bucket=self.learner_bucket,
            price_changes=self.price_changes,
            transport=self.config.sim.transport,
        )


def build(config: Config, base_dir: Path = Path(), source_name: str = "") -> Scenario:
    """Look everything up and put it together. What the catalogue does not have: UserError with the key.

    Relative paths of traces start at `base_dir`; `source_name` is what messages call the configuration.
    """
    with source(source_name):
        return _build(config, base_dir)


def _build(config: Config, base_dir: Path) -> Scenario:
    notes: list[str] = []
    epoch = resolved(config.network.epoch, base_dir)
    here = config.replaced(network=config.network.model_copy(update={"epoch": epoch}))
    lengths = rollout_lengths(here, base_dir, notes)
    learner = learner_model(here, lengths, notes)
    used = for_system(here, lengths, learner.train_s, notes)
    run_s = used.run.steps * learner.train_s
    price, links = learner_price(used.learner), learner_links(used)
    pools = [build_pool(used, pool, lengths, base_dir, run_s, notes) for pool in used.pool]
    workers = tuple(worker for pool in pools for worker in pool.workers)
    home = learner_site(used.learner)
    table = link_table(used, [home, *(pool.site for pool in pools)], links.uplink_bps, links.downlink_bps)
    full = snapshot_bytes(used, notes)
    problem = PlanProblem(
        staleness_bound=used.run.staleness,
        publish_period=used.run.publish_period if isinstance(used.run.publish_period, int) else 0,
        rollouts_per_step=used.batch.rollouts_per_step,
        group_size=used.batch.group_size,
        total_steps=used.run.steps,
        train_s=learner.train_s,
        train_cv=learner.cv,
        learner_usd_per_h=price.usd_per_h * used.learner.gpus,
        full_snapshot_bytes=full,
        snapshot_bytes=full / delta_ratio(used),
        offers=tuple(worker.offer for worker in workers),
        decode={worker.offer.worker_id: worker.decode for worker in workers},
        lengths=lengths,
        prompt_tokens=used.rollout.prompt_tokens,
        links=table,
        swap_pause_s=used.rollout.swap_pause_s,
        reading=used.run.reading,
        mode=used.run.mode,
        activation=used.policy.activation,
        topologies=used.policy.topologies,
        margin=used.policy.margin if isinstance(used.policy.margin, float | int) else 0.0,
        best_effort=used.run.best_effort,
        full_every=used.run.full_every if isinstance(used.run.full_every, int) else 0,
        egress_weight=used.run.egress_weight,
    )
    notes.append(
        f"links: region matrix of {used.network.epoch} (measured), {used.network.streams} TCP streams an edge"
    )
    return Scenario(
        config=config,
        problem=problem,
        workers=workers,
        learner=learner,
        learner_shape=_learner_shape(used, base_dir, run_s, notes),
        learner_bucket=links.bucket,
        price_changes=_price_changes(used),
        prices=(price, *(pool.price for pool in pools)),
        notes=tuple(dict.fromkeys(notes)),
    )


def rollout_lengths(config: Config, base_dir: Path, notes: list[str]) -> TokenLengths:
    """The population of rollout lengths, cut at max_tokens."""
    rollout = config.rollout
    if rollout.tokens is not None:
        return TokenLengths.constant(rollout.tokens)
    name = rollout.lengths or ""
    with key("rollout.lengths", name):
        lengths = traces.lengths(resolved(name, base_dir)).truncated(rollout.max_tokens)
    notes.append(
        f"rollouts: lengths of {lengths.name or name} cut at {rollout.max_tokens:,} tokens: mean "
        f"{lengths.mean:,.0f}, p99 {float(lengths.quantile(0.99)):,.0f}; single requests, not rollouts of "
        "one prompt"
    )
    return lengths


def snapshot_bytes(config: Config, notes: list[str]) -> float:
    """Bytes of a full snapshot: given, or the weights in bf16."""
    if config.model.snapshot_gb is not None:
        return config.model.snapshot_gb * 1e9
    with key("model.name", config.model.name):
        try:
            full = traces.model_info(config.model.name).bf16_bytes
        except UserError as error:
            raise UserError(f"{error}; or give model.snapshot_gb") from None
    delta = delta_ratio(config)
    sent = f", sent as deltas {delta:.3g}x smaller ({full / delta / 1e9:.2f} GB)" if delta > 1 else ""
    if config.model.delta_ratio == "measured":
        sent += f": {_measured_delta(config).note}"
    notes.append(f"snapshot: {full / 1e9:.1f} GB of bf16 weights{sent}")
    return full


def delta_ratio(config: Config) -> float:
    """How many times smaller a published snapshot is than the full one: given, or as measured."""
    given = config.model.delta_ratio
    return _measured_delta(config).ratio if given == "measured" else given


def _measured_delta(config: Config) -> DeltaSize:
    """In bf16, or as a live run publishes. Versions are kappa steps apart; one where kappa is still open."""
    dtype = config.train.snapshot_dtype if config.train.model is not None else "bf16"
    given = config.model.snapshot_gb
    parameters = given * 1e9 / 2 if given is not None else traces.model_info(config.model.name).parameters
    period = config.run.publish_period
    steps_apart = period if isinstance(period, int) else 1
    return delta_size(dtype, config.train.learning_rate, parameters, steps_apart)


def _learner_shape(config: Config, base_dir: Path, run_s: float, notes: list[str]) -> LinkShape | None:
    name = config.learner.link_shape
    if name is None:
        return None
    trace = resolved(name, base_dir)
    with key("learner.link_shape", name):
        period = steps(trace, True)[2]
    notes.append(f"learner: link level measured, its shape measured elsewhere ({name})")
    if short := repeats(name, period, run_s):
        notes.append(short)
    return link_shape(trace, config.seed, "learner", upward=True)


def _price_changes(config: Config) -> tuple[PriceChange, ...]:
    pools = {pool.name for pool in config.pool}
    return tuple(
        PriceChange(change.t_s, change.pool, change.factor)
        for change in config.sim.price_changes
        if change.pool in pools
    )


__all__ = ["PoolWorkers", "Scenario", "build", "delta_ratio", "rollout_lengths", "snapshot_bytes"]
