"""The simulator's free numbers, taken from the first part of a live run and from nothing after it.

Called by `check`. What is taken: the learner's step times by kind, rollout lengths group by group, each
worker's decode rate and delays (`engine_fit`), start-up, seconds from publication to a live snapshot, swap
pauses, and the link rates that workers report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from echo2.config import Config
from echo2.errors import UserError
from echo2.policy import facts as f
from echo2.policy.settings import SchedulerSettings
from echo2.sim.log import Entry
from echo2.validate.engine_fit import Alike, EngineFit, Job, Work, fit_engines
from echo2.validate.first_part import FirstPart, look
from echo2.validate.mail import answer_of, apart_of
from echo2.validate.plane import Delays, delays_of
from echo2.validate.steps import SETTLING, StepKinds, StepModel, fit_steps

LEAST_STEPS = 12
LINK_SHARE = 0.9


@dataclass(frozen=True)
class WorkerModel:
    """A worker as its first part shows it.

    `spread_s`: publication to live, beyond what its link takes, by version: what is written late is late
    for all.
    """

    worker_id: str
    engine: EngineFit
    startup_s: float
    spread_s: Mapping[int, float]
    pause_s: float
    downlink_bps: float
    reported_bps: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """Everything the calibrated world is made of; `steps` were used, up to `until_s`.

    `published`: bytes by version of what was published; what later versions have is drawn from `payloads`.
    `apart`: share of the groups ordered from a worker at one moment that it did not begin together.
    `known_s` has step times by version that are not foretold but given, none in a forecast.
    """

    steps: int
    until_s: float
    learner: StepModel
    groups: tuple[tuple[int, ...], ...]
    workers: Mapping[str, WorkerModel]
    payloads: tuple[float, ...]
    delays: Delays
    published: Mapping[int, float] = field(default_factory=dict)
    apart: float = 0.0
    known_s: Mapping[int, float] = field(default_factory=dict)


def calibrate(
    entries: Sequence[Entry],
    settings: SchedulerSettings,
    config: Config,
    steps: int,
    pauses_s: Mapping[str, Mapping[int, float]],
) -> Calibration:
    """Calibrate from the first `steps` steps. Too few of anything: UserError saying of what, and how many."""
    if steps < LEAST_STEPS:
        raise UserError(
            f"{steps} steps are too few to calibrate from; give at least {LEAST_STEPS} with --calibrate, or "
            "record a longer run"
        )
    seen = look(entries, steps)
    kinds = StepKinds(settings.publish_period, config.train.checkpoint_every, settings.total_steps)
    groups = {
        g: seen.ends[g] for g, (_, _, size) in seen.ordered.items() if len(seen.ends.get(g, ())) == size
    }
    answer_s = answer_of(seen)
    workers = _workers(seen, groups, config, settings.swap_pause_s, pauses_s, answer_s)
    return Calibration(
        steps=steps,
        until_s=seen.until_s,
        learner=fit_steps(seen.steps, kinds),
        groups=tuple(tuple(tokens for _, tokens in ends) for ends in groups.values()),
        workers=workers,
        payloads=_payloads(seen, settings),
        published=seen.published,
        delays=delays_of({n: w.engine.order_s + w.engine.report_s for n, w in workers.items()}, answer_s),
        apart=apart_of(seen, groups),
    )


def _payloads(seen: FirstPart, settings: SchedulerSettings) -> tuple[float, ...]:
    """Bytes of a published step: the later half of those seen, for deltas shrink as a run settles."""
    sizes = list(seen.published.values())
    return tuple(sizes[len(sizes) // 2 :]) or (settings.snapshot_bytes,)


def _workers(
    seen: FirstPart,
    groups: Mapping[int, list[tuple[float, int]]],
    config: Config,
    pause_s: float,
    pauses_s: Mapping[str, Mapping[int, float]],
    answer_s: float,
) -> dict[str, WorkerModel]:
    """A model for every worker on offer; one that was hardly used is like the others of its pool."""
    shaped = {pool.name: pool.shape_links for pool in config.pool}
    pauses, work = _work(seen, groups, pause_s, pauses_s)
    known = _known(seen.offers, config)
    fits = fit_engines(_alike(seen.offers, work, known), answer_s)
    linked = {name: shaped[offer.pool] and _fills_link(name, seen) for name, offer in seen.offers.items()}
    return {
        name: WorkerModel(
            worker_id=name,
            engine=fits.get(name) or _like(name, seen.offers, fits, known),
            startup_s=seen.startup_s.get(name, _typical(name, seen.offers, seen.startup_s)),
            spread_s=_spread(name, seen, linked[name]),
            pause_s=pauses[name],
            downlink_bps=offer.downlink_bps if linked[name] else float("inf"),
            reported_bps=tuple(seen.links.get(name, ())),
        )
        for name, offer in seen.offers.items()
    }


def _work(
    seen: FirstPart,
    groups: Mapping[int, list[tuple[float, int]]],
    pause_s: float,
    pauses_s: Mapping[str, Mapping[int, float]],
) -> tuple[dict[str, float], dict[str, Work]]:
    """(median pause, what it did) of each worker."""
    pauses: dict[str, float] = {}
    work: dict[str, Work] = {}
    for name in seen.offers:
        lives = seen.lives.get(name, [])
        known = [pauses_s.get(name, {}).get(life.version) for life in lives]
        took = [seconds for seconds in known if seconds is not None]
        pauses[name] = stood = median(took) if took else pause_s
        halts = [(life.live_s - stood, life.live_s) for life in lives] if stood > 0 else []
        work[name] = Work(_jobs(name, seen, groups), halts)
    return pauses, work


def _known(offers: Mapping[str, f.WorkerOffer], config: Config) -> dict[str, float]:
    """Tokens/s by pool where nothing has to be fitted: simulated engines sleep by the profile of theirs."""
    simulated = {pool.name for pool in config.pool if pool.engine == "simulated"}
    return {
        offer.pool: offer.rollouts_per_s * profile_tokens(config)
        for offer in offers.values()
        if offer.pool in simulated
    }


def _alike(
    offers: Mapping[str, f.WorkerOffer], work: Mapping[str, Work], known: Mapping[str, float]
) -> list[Alike]:
    """Workers with work, those of a pool of known rate together."""
    groups: dict[str, list[str]] = {}
    for name, offer in offers.items():
        if work[name].jobs:
            groups.setdefault(offer.pool if offer.pool in known else name, []).append(name)
    return [
        Alike(
            names=tuple(names),
            work=tuple(work[name] for name in names),
            slots=offers[names[0]].slots,
            tokens_per_s=known.get(key, 0.0),
        )
        for key, names in groups.items()
    ]


def profile_tokens(config: Config) -> int:
    """Tokens of a simulated engine's rollout, as a live run starts its local workers with."""
    rollout = config.rollout
    return min(rollout.max_tokens, max(1, round(rollout.tokens or rollout.max_tokens / 2)))


def _jobs(name: str, seen: FirstPart, groups: Mapping[int, list[tuple[float, int]]]) -> list[Job]:
    """The complete groups of a worker."""
    jobs = []
    for group_id, ends in groups.items():
        worker, start_s, _ = seen.ordered[group_id]
        if worker == name:
            tokens = tuple(sorted(tokens for _, tokens in ends))
            jobs.append(Job(start_s, tokens, tuple(sorted(t_s for t_s, _ in ends))))
    return jobs


def _fills_link(name: str, seen: FirstPart) -> bool:
    """Whether snapshots take as long as the worker's link needs for all their bytes: chunks may be there."""
    offer = seen.offers[name]
    lives = seen.lives.get(name, [])
    shares = [life.took_s * offer.downlink_bps / (8.0 * life.size) for life in lives if life.size]
    return not shares or median(shares) > LINK_SHARE


def _spread(name: str, seen: FirstPart, shaped: bool) -> dict[int, float]:
    """Publication to live less the time on the worker's link; others of its pool stand in where it has none.

    Others' too where nobody's was seen: nothing was published then, and nothing is lost by 0. The first
    quarter of the versions is left out: processes, files and connections are new then.
    """
    offers, pool = seen.offers, seen.offers[name].pool
    versions = sorted({life.version for lives in seen.lives.values() for life in lives})
    first = versions[int(SETTLING * len(versions))] if versions else 0
    for group in ([name], [other for other in offers if offers[other].pool == pool], list(offers)):
        times = {
            life.version: life.took_s - (8.0 * life.size / offers[other].downlink_bps if shaped else 0.0)
            for other in group
            for life in seen.lives.get(other, [])
            if life.version >= first
        }
        if times:
            return times
    return {0: 0.0}


def _like(
    name: str, offers: Mapping[str, f.WorkerOffer], fits: Mapping[str, EngineFit], known: Mapping[str, float]
) -> EngineFit:
    """The engine of a worker that was hardly used: that of its pool; else the most similar one, as much
    faster or slower as the offers say. One with a known rate (tokens/s, by pool) has that."""
    offer = offers[name]
    if not fits:
        raise UserError(
            "no worker has enough finished groups in the first part to calibrate its rate; calibrate from "
            "more steps with --calibrate, or record a longer run"
        )

    def far(other: str) -> tuple[bool, float]:
        return offers[other].pool != offer.pool, abs(offers[other].rollouts_per_s - offer.rollouts_per_s)

    mate = min(fits, key=far)
    if offer.pool in known:
        return replace(
            fits[mate], base_s=0.0, per_sequence_s=1.0 / known[offer.pool], begin_s=0.0, whole_steps=False
        )
    slower = offers[mate].rollouts_per_s / max(offer.rollouts_per_s, 1e-9)
    fit = fits[mate]
    return replace(fit, base_s=fit.base_s * slower, per_sequence_s=fit.per_sequence_s * slower)


def _typical(name: str, offers: Mapping[str, f.WorkerOffer], startup_s: Mapping[str, float]) -> float:
    """The start-up of its pool, or of its offer where none of the pool came up."""
    mates = [seconds for other, seconds in startup_s.items() if offers[other].pool == offers[name].pool]
    return median(mates) if mates else offers[name].startup_s
