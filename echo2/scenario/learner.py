"""The learner of a scenario: how long a step takes, what it costs, how it is connected."""

from __future__ import annotations

from dataclasses import dataclass

from echo2 import traces
from echo2.config import Config
from echo2.errors import UserError
from echo2.policy.generation import TokenLengths
from echo2.scenario.naming import key
from echo2.scenario.places import CLOUDS, card_bps, check_region
from echo2.scenario.varying import nic_bucket
from echo2.sim.inputs import LearnerModel, NicBucket


@dataclass(frozen=True)
class LearnerLinks:
    """The learner's access: rates in bit/s and its card's token bucket."""

    uplink_bps: float
    downlink_bps: float
    bucket: NicBucket | None


def learner_model(config: Config, lengths: TokenLengths, notes: list[str]) -> LearnerModel:
    """Step time: given, or batch tokens (prompts and rollouts) over the profile's tokens/s."""
    learner = config.learner
    if learner.step_s is not None:
        notes.append(f"learner: {learner.step_s:g} s a step, given")
        return LearnerModel(learner.step_s, 0.0, learner.step_cv)
    check_model(config, "learner.step_s, model.snapshot_gb, and tokens_per_s and slots of the pools")
    with key("learner.gpu", learner.gpu):
        try:
            card = traces.canonical(learner.gpu)
            profile = traces.learner_tokens_per_s(card, learner.gpus, config.model.name)
        except UserError as error:
            raise UserError(f"{error}; or give learner.step_s") from None
    tokens = config.batch.rollouts_per_step * (config.rollout.prompt_tokens + lengths.mean)
    train_s = tokens / profile.tokens_per_s
    notes.append(
        f"learner: {train_s:.0f} s a step = {tokens / 1e6:.2f} M tokens / {profile.tokens_per_s:,.0f} "
        f"tokens/s ({profile.basis}: {profile.source})"
    )
    if not profile.fits_memory:
        notes.append(
            f"learner: full training of {config.model.name} takes more memory than {learner.gpus} x {card} "
            "have (16 bytes a parameter): it would have to offload, which is slower than assumed"
        )
    return LearnerModel(train_s, profile.tokens_per_s, learner.step_cv)


def check_model(config: Config, instead: str) -> None:
    """Refuse a model that the catalogue does not have, with what may be given instead."""
    with key("model.name", config.model.name):
        try:
            traces.model_info(config.model.name)
        except UserError as error:
            raise UserError(f"{error}; or give {instead}") from None


def learner_links(config: Config) -> LearnerLinks:
    """The learner's rates: given, or its region's network card; a token bucket caps them at its burst."""
    learner = config.learner
    check_region(config, "learner.region", learner.region)
    up, down = rates_bps(config, "learner", learner.provider, learner.region, learner.uplink_mbps,
                         learner.downlink_mbps)  # fmt: skip
    bucket = None
    if learner.nic is not None:
        with key("learner.nic", learner.nic):
            bucket = nic_bucket(learner.nic)
        up, down = min(up, bucket.burst_bps), min(down, bucket.burst_bps)
    return LearnerLinks(up, down, bucket)


def rates_bps(
    config: Config, where: str, provider: str, region: str, up_mbps: float | None, down_mbps: float | None
) -> tuple[float, float]:
    """(up, down) in bit/s: given, or for a cloud the region's network card. Else UserError."""
    for name, given in (("uplink_mbps", up_mbps), ("downlink_mbps", down_mbps)):
        if given is None and provider.lower() not in CLOUDS:
            raise UserError(
                f"{where}.{name} is missing: provider {provider!r} is outside the matrix of regions, so its "
                f"rate must be given in Mbit/s{'' if where == 'learner' else ', or access for home lines'}"
            )
    card = card_bps(config, region) if up_mbps is None or down_mbps is None else 0.0
    return (up_mbps * 1e6 if up_mbps else card), (down_mbps * 1e6 if down_mbps else card)
