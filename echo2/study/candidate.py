"""A candidate of the search: what `echo2 optimise` may change in a configuration, and the plan of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from echo2.config import Config, LoadedConfig
from echo2.errors import UserError
from echo2.policy.plan_types import PlanProblem, RunPlan
from echo2.policy.planner import settle_run
from echo2.scenario import build
from echo2.scenario.naming import resolved

AUTO = 0.0
MEASURED: Literal["measured"] = "measured"
Ratio = float | Literal["measured"]
# Keys that may hold a relative path, by section.
PATHS = {
    "rollout": ("lengths",),
    "network": ("epoch",),
    "learner": ("link_shape",),
    "train": ("model", "tls_cert", "tls_key"),
}
POOL_PATHS = ("availability", "link_shape")


@dataclass(frozen=True)
class Candidate:
    """S, kappa (0: the planner's choice), topologies (empty: all), deltas this many times smaller (1: full
    snapshots; or as measured), safety margin (0: derived), and how many workers of each pool are on offer."""

    staleness: int
    publish_period: int
    topologies: tuple[str, ...]
    delta_ratio: Ratio
    margin: float
    pools: tuple[tuple[str, int], ...]

    def differs(self, other: Candidate) -> list[str]:
        """The fields in which two candidates differ."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


@dataclass(frozen=True)
class Planned:
    """A candidate with its kappa settled, its plan, and whether the plan keeps the learner busy."""

    candidate: Candidate
    plan: RunPlan
    busy: bool

    @property
    def signature(self) -> tuple[Any, ...]:
        """What two plans that start the same run share; they may still differ after the first preemption."""
        c, way = self.candidate, self.plan.broadcast
        return (c.staleness, self.plan.kappa, self.plan.chosen, way["topology"], way["time_s"])


def given(config: Config) -> Candidate:
    """The configuration as it stands. A baseline system, or no pool: UserError."""
    if config.run.system != "echo2":
        raise UserError(
            f"run.system = {config.run.system!r}: a baseline's workers are fixed, nothing to search; "
            'set run.system = "echo2"'
        )
    period, margin = config.run.publish_period, config.policy.margin
    return Candidate(
        config.run.staleness,
        period if isinstance(period, int) else 0,
        tuple(config.policy.topologies),
        config.model.delta_ratio,
        float(margin) if isinstance(margin, int | float) else AUTO,
        tuple((pool.name, pool.count) for pool in config.pool),
    )


def applied(config: Config, candidate: Candidate, best_effort: bool | None = None) -> Config:
    """The configuration with the candidate's choices; pools of which nothing may be rented are left out."""
    counts = dict(candidate.pools)
    run = {
        "staleness": candidate.staleness,
        "publish_period": candidate.publish_period or "auto",
        "best_effort": config.run.best_effort if best_effort is None else best_effort,
    }
    policy = {"topologies": candidate.topologies, "margin": candidate.margin or "auto"}
    changes = tuple(change for change in config.sim.price_changes if counts.get(change.pool))
    return config.replaced(
        run=config.run.model_copy(update=run),
        policy=config.policy.model_copy(update=policy),
        model=config.model.model_copy(update={"delta_ratio": candidate.delta_ratio}),
        sim=config.sim.model_copy(update={"price_changes": changes}),
        pool=tuple(
            pool.model_copy(update={"count": counts[pool.name]}) for pool in config.pool if counts[pool.name]
        ),
    )


class Plans:
    """Plans candidates of one configuration, each once. `number` is how many were planned."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._problems: dict[tuple[Any, ...], PlanProblem] = {}
        self._known: dict[Candidate, Planned] = {}
        self._settled: dict[Candidate, Planned] = {}

    @property
    def number(self) -> int:
        """Plans made."""
        return len(self._known)

    @property
    def all(self) -> list[Planned]:
        """Every different candidate planned, kappa settled."""
        return list(self._settled.values())

    def problem(self, candidate: Candidate) -> PlanProblem:
        """The planner's problem of a candidate. What the catalogue does not have: UserError."""
        # A measured delta depends on how many steps apart versions are.
        period = candidate.publish_period if candidate.delta_ratio == MEASURED else 0
        world = (candidate.pools, candidate.delta_ratio, period)
        if world not in self._problems:
            try:
                built = build(applied(self._loaded.config, candidate), self._loaded.base_dir)
            except UserError as error:
                raise type(error)(self._loaded.blame(str(error))) from None
            self._problems[world] = built.problem
        return replace(
            self._problems[world],
            staleness_bound=candidate.staleness,
            publish_period=candidate.publish_period,
            topologies=candidate.topologies,
            margin=candidate.margin,
            best_effort=True,
        )

    def plan(self, candidate: Candidate) -> Planned:
        """The plan of a candidate, with its kappa settled."""
        if candidate not in self._known:
            made, busy = settle_run(self.problem(candidate))
            settled = replace(candidate, publish_period=made.kappa)
            if candidate.delta_ratio == MEASURED and settled not in self._settled:
                made, busy = settle_run(self.problem(settled))
            found = Planned(settled, made, busy or made.S == 0)
            self._known[candidate] = self._settled.setdefault(settled, found)
        return self._known[candidate]

    def config(self, planned: Planned) -> Config:
        """The configuration that runs a plan."""
        best_effort = self._loaded.config.run.best_effort or not planned.busy
        return applied(self._loaded.config, planned.candidate, best_effort)


def rebased(config: Config, old: Path, new: Path) -> Config:
    """The same for a file in another folder: relative paths lead from there to where they led before."""
    sections: dict[str, Any] = {
        name: getattr(config, name).model_copy(update=_moved(getattr(config, name), keys, old, new))
        for name, keys in PATHS.items()
    }
    pools = (pool.model_copy(update=_moved(pool, POOL_PATHS, old, new)) for pool in config.pool)
    return config.replaced(**sections, pool=tuple(pools))


def _moved(section: Any, keys: tuple[str, ...], old: Path, new: Path) -> Mapping[str, str]:
    found = {}
    for key in keys:
        value = getattr(section, key)
        is_path = bool(value) and (key.startswith(("model", "tls")) or resolved(value, old) != value)
        if is_path and not Path(value).is_absolute():
            path, hash_, series = value.partition("#")
            found[key] = os.path.relpath(old.absolute() / path, new.absolute()) + hash_ + series
    return found
