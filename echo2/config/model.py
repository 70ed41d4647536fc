"""The root of the configuration, and the rules that tie keys of different sections together.

Cross-checks raise ValueError with a message that begins with the key path; `errors` makes the line of it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from echo2.config.live import Train
from echo2.config.sections import (
    MAX_WORKERS,
    MIN_PRICE_USD_PER_H,
    Batch,
    Learner,
    Model,
    Network,
    Policy,
    Pool,
    Rollout,
    Run,
    Section,
    Sim,
    Text,
)

MAX_SEED = 2**32 - 1
ENDPOINT_KEYS = ("endpoint", "endpoint_weights", "endpoint_sees", "endpoint_model", "endpoint_routes")


class Config(Section):
    """A whole run."""

    name: Text = "run"
    """Name of the run, for its outputs."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Seed of everything random: one seed, one result."""
    run: Run = Run()
    batch: Batch = Batch()
    model: Model = Model()
    learner: Learner = Learner()
    rollout: Rollout = Rollout()
    network: Network = Network()
    policy: Policy = Policy()
    sim: Sim = Sim()
    train: Train = Train()
    pool: Annotated[tuple[Pool, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _checks(self) -> Config:
        for check in (_period, _batch, _lengths, _pools, _endpoints, _prices, _changes):
            check(self)
        return self

    def replaced(self, **sections: object) -> Config:
        """The same with whole sections replaced, not checked again (for the baselines)."""
        return self.model_copy(update=sections)


def _period(config: Config) -> None:
    run = config.run
    if isinstance(run.publish_period, int) and run.publish_period > run.staleness + 1:
        raise ValueError(
            f"run.publish_period = {run.publish_period}: must be 1 to S + 1 = {run.staleness + 1}, or "
            "workers would wait for a version that is never published; lower it, raise run.staleness "
            f'to {run.publish_period - 1}, or set "auto"'
        )


def _batch(config: Config) -> None:
    rollouts, group = config.batch.rollouts_per_step, config.batch.group_size
    if rollouts % group:
        near = max(group, round(rollouts / group) * group)
        raise ValueError(
            f"batch.group_size = {group}: must divide batch.rollouts_per_step = {rollouts}; "
            f"set rollouts_per_step = {near}, or a group size that divides it"
        )


def _lengths(config: Config) -> None:
    rollout = config.rollout
    if rollout.tokens is not None and rollout.lengths is not None:
        raise ValueError(
            f"rollout.tokens = {rollout.tokens:g}: rollout.lengths = {rollout.lengths!r} is given as well; "
            "keep one of the two"
        )
    if rollout.tokens is None and rollout.lengths is None:
        raise ValueError("rollout.lengths = none: give a length population, or rollout.tokens")
    if rollout.tokens is not None and rollout.tokens > rollout.max_tokens:
        raise ValueError(
            f"rollout.tokens = {rollout.tokens:g}: must be <= rollout.max_tokens = {rollout.max_tokens}; "
            "raise max_tokens"
        )


def _pools(config: Config) -> None:
    if not config.pool:
        raise ValueError("pool = []: the pool is empty; add at least one [[pool]] with count >= 1")
    total = sum(pool.count for pool in config.pool)
    if total > MAX_WORKERS:
        raise ValueError(
            f"pool = {total:,} workers in all: must be <= {MAX_WORKERS:,}, or planning takes too long; lower "
            "a pool's count"
        )
    seen: set[str] = set()
    for pool in config.pool:
        key = f"pool.{pool.name}"
        if pool.name in seen:
            raise ValueError(f"{key}.name = {pool.name!r}: two pools have this name; rename one")
        seen.add(pool.name)
        if set(pool.name) & set(".*[] "):
            raise ValueError(f"{key}.name = {pool.name!r}: must be free of . * [ ] and blanks; use - or _")
        if (pool.tokens_per_s is None) != (pool.slots is None):
            alone, other = (
                ("slots", "tokens_per_s") if pool.tokens_per_s is None else ("tokens_per_s", "slots")
            )
            hint = "; to cap the engine profile use max_running" if alone == "slots" else ""
            raise ValueError(f"{key}.{alone} = {getattr(pool, alone):g}: needs {other} beside it{hint}")


def _endpoints(config: Config) -> None:
    """Every local worker with engine openai has a server of its own, and nobody else has one."""
    seen: set[str] = set()
    for pool in config.pool:
        key = f"pool.{pool.name}.endpoint"
        if pool.engine != "openai" or not pool.local:
            for name in ENDPOINT_KEYS:
                if value := getattr(pool, name):
                    shown = value if isinstance(value, str) else ", ".join(value)
                    raise ValueError(
                        f"pool.{pool.name}.{name} = {shown!r}: is for local = true and engine = "
                        '"openai"; remote workers are told on their command line'
                    )
            continue
        if len(pool.endpoint) != pool.count or pool.endpoint_weights is None:
            raise ValueError(
                f'{key} = {len(pool.endpoint)} URLs: engine = "openai" needs one for each of the '
                f"{pool.count} workers, and endpoint_weights, a directory shared with the servers"
            )
        for url in pool.endpoint:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{key} = {url!r}: must begin with http:// or https://")
            if url.rstrip("/") in seen:
                raise ValueError(f"{key} = {url!r}: is given twice; one worker an endpoint")
            seen.add(url.rstrip("/"))


def _prices(config: Config) -> None:
    if config.run.system == "colocated":
        return
    for pool in config.pool:
        if pool.price_usd_per_h is not None and pool.price_usd_per_h < MIN_PRICE_USD_PER_H:
            raise ValueError(
                f"pool.{pool.name}.price_usd_per_h = {pool.price_usd_per_h:g}: must be "
                f"{MIN_PRICE_USD_PER_H} to 500 USD per hour (a lower price is an error, not a bargain); "
                "leave it out for the catalogue's"
            )


def _changes(config: Config) -> None:
    names = [pool.name for pool in config.pool]
    for i, change in enumerate(config.sim.price_changes):
        if change.pool not in names:
            raise ValueError(
                f"sim.price_changes.{i}.pool = {change.pool!r}: not the name of a pool; pools: "
                f"{', '.join(names)}"
            )
