"""What must be the same in the live run and in its simulation, and the refusal where something is not.

Called by `check` before anything is simulated.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.config import Config
from echo2.errors import UserError
from echo2.policy import facts as f
from echo2.policy.settings import SchedulerSettings
from echo2.scenario import Scenario
from echo2.validate.measure import first_difference
from echo2.validate.recorded import Recorded

SET_WHEN_LIVE = ("full_snapshot_bytes", "snapshot_bytes", "prompts", "topologies", "review_s")
"""Settings that a live run takes from its model, task and transport, not from the configuration."""
OFFERED = ("pool", "gpu", "site", "price_usd_per_h", "rollouts_per_s", "slots", "uplink_bps", "downlink_bps")


@dataclass(frozen=True)
class Matched:
    """An input that is the same in both worlds, and how that is known."""

    name: str
    value: str
    how: str


def check_inputs(
    run: Recorded, built: Scenario, settings: SchedulerSettings, model: Path | None
) -> list[Matched]:
    """All that must match. The first that does not: UserError naming it and both values."""
    return [
        _configuration(run, built.config),
        _seed(run, built.config),
        _offers(run, built),
        _engines(built.config),
        _settings(run, settings),
        _model(run, model),
        _code(run),
    ]


def _differs(run: Recorded, what: str, was: Any, now: Any, why: str) -> UserError:
    return UserError(f"{run.path}: {what} was {was!r} in the live run and is {now!r} now: {why}")


def _configuration(run: Recorded, config: Config) -> Matched:
    kept = {"batch.group_size": config.batch.group_size, "train.task": config.train.task}
    for key, now in kept.items():
        was = run.identity.get(key, now)
        if was != now:
            raise _differs(run, key, was, now, "config.toml is not the one the run was started with")
    return Matched("configuration", config.name, "config.toml of the run")


def _settings(run: Recorded, settings: SchedulerSettings) -> Matched:
    why = "config.toml or the planner has changed since; run it again with this version"
    for field in dataclasses.fields(SchedulerSettings):
        if field.name in SET_WHEN_LIVE:
            continue
        was, now = getattr(run.settings, field.name), getattr(settings, field.name)
        same = was == now if field.name != "links" else _plain(was) == _plain(now)
        if not same:
            raise _differs(run, f"scheduler setting {field.name}", _brief(was), _brief(now), why)
    s = run.settings
    value = f"S = {s.staleness_bound}, kappa = {s.publish_period}, B = {s.rollouts_per_step}"
    return Matched("scheduler settings", value, "head of log.jsonl, equal to the plan of config.toml")


def _offers(run: Recorded, built: Scenario) -> Matched:
    planned = {offer.worker_id: offer for offer in built.problem.offers}
    told = [fact.offer for fact, _ in run.entries if isinstance(fact, f.WorkerOffered)]
    for offer in told:
        mine = planned.get(offer.worker_id)
        if mine is None:
            raise _differs(run, f"worker {offer.worker_id}", "on offer", "unknown", "config.toml has no such")
        for name in OFFERED:
            if getattr(offer, name) != getattr(mine, name):
                was, now, what = getattr(offer, name), getattr(mine, name), f"{offer.worker_id}'s {name}"
                raise _differs(run, what, was, now, "config.toml or the catalogue has changed since")
    names = sorted({offer.worker_id for offer in told})
    local = {pool.name for pool in built.config.pool if pool.local}
    if missing := sorted(name for name in set(planned) - set(names) if planned[name].pool in local):
        raise _differs(run, f"worker {missing[0]}", "not there", "on offer", "config.toml has changed since")
    absent = len(planned) - len(names)
    away = f"; {absent} that never dialled in are left out" if absent else ""
    return Matched("workers", f"{len(names)} on offer", f"offers in log.jsonl, equal to config.toml's{away}")


def _engines(config: Config) -> Matched:
    value = ", ".join(f"{pool.name}: {pool.engine}" for pool in config.pool)
    return Matched("engines", value, "config.toml; remote workers may have chosen another, which no log says")


def _seed(run: Recorded, config: Config) -> Matched:
    was = run.identity.get("seed", config.seed)
    if was != config.seed:
        raise _differs(run, "seed", was, config.seed, "config.toml is not the one the run was started with")
    return Matched("seed", str(config.seed), "run.json; the simulations have seeds of their own beside it")


def _model(run: Recorded, model: Path | None) -> Matched:
    was = run.identity.get("train.model")
    if model is None or not was:
        return Matched("model", str(was or "?")[:12], "run.json; not at hand, so not compared (--model DIR)")
    now = digest_of(model)
    if was != now:
        raise _differs(
            run, "model", was[:12], now[:12], f"{model} holds other configuration or tokenizer files"
        )
    return Matched("model", now[:12], f"run.json, equal to the files in {model.name}")


def digest_of(model: Path) -> str:
    """The identity of a model directory, by its files beside the weights."""
    from echo2.runtime.transport.model_files import model_files_of

    digest = hashlib.sha256()
    for file in model_files_of(model):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _code(run: Recorded) -> Matched:
    from echo2.cli.code_version import code_version

    if difference := first_difference(run.entries, run.settings):
        raise UserError(
            f"{run.path}: code version: this scheduler decides otherwise on the run's facts ({difference}); "
            "validate with the version that recorded it, or record it anew"
        )
    was, now = str(run.notes.get("code_version", "not recorded")), code_version()
    how = f"recorded with {was}; " if was != now else ""
    return Matched("code version", now, f"{how}replayed, every decision is the same")


def _plain(links: Any) -> Any:
    from echo2.sim.log import settings_to_json

    return settings_to_json(links)


def _brief(value: Any) -> Any:
    return value if isinstance(value, int | float | str | tuple) else "another"
