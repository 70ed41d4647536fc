"""The sections of the configuration file: every key with its type, range and meaning.

The string under a key is its documentation: `echo2 init` prints it and docs/configuration.md is made of
it. Units are in the names: `_mbps` is 10^6 bit/s, `_gb` 10^9 bytes, `_s` seconds, `_usd_per_h` USD an hour.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from echo2.policy.broadcast import TOPOLOGIES, Topology

MIN_PRICE_USD_PER_H = 0.02
# Planning takes some seconds at this number of different workers, and simulating grows with it.
MAX_WORKERS = 4096
MAX_MARGIN = 10

# Ranges are there to catch a wrong unit (bit/s for Mbit/s, bytes for GB, milliseconds for seconds), and what
# would make a run endless or its percentages absurd.
Mbps = Annotated[float, Field(ge=0.001, le=1e6)]
Count = Annotated[int, Field(ge=1)]
UsdPerHour = Annotated[float, Field(ge=0, le=500)]
UsdPerGb = Annotated[float, Field(ge=0, le=10)]
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]


class Section(BaseModel):
    """What all sections share: no unknown keys, no change after loading, no silent conversion."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


def _auto_or(value: Any, form: str, least: float, most: float = math.inf) -> Any:
    """Refuse, in one message, what is neither "auto" nor a number (pydantic would report both branches)."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value == "auto" or (
        number and least <= value <= most and (form == "number" or isinstance(value, int))
    ):
        return value
    limit = f" and <= {most:g}" if math.isfinite(most) else ""
    raise ValueError(f'must be "auto" or a {form} >= {least:g}{limit}')


class Run(Section):
    """What is run: how many steps, how stale, published how often, by which system."""

    steps: int = Field(default=100, ge=1, le=1_000_000)
    """Learner steps."""
    staleness: int = Field(default=4, ge=0, le=1000)
    """S: no rollout older than this many versions is trained. 0 is strictly on-policy."""
    publish_period: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """kappa: a snapshot every so many steps, 1 to S + 1; "auto" lets the planner choose."""
    reading: Literal["overlap", "stall"] = "overlap"
    """overlap: workers generate while a snapshot arrives. stall: they stop for it."""
    mode: Literal["push", "pull"] = "push"
    """push: the learner sends along the broadcast plan. pull: each worker fetches."""
    best_effort: bool = False
    """true accepts a learner that idles where S is too small to keep it busy, instead of refusing."""
    full_every: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """A full snapshot is written beside the delta with every so many publications (1: with each): who joins
    late begins from it. "auto" takes it from the sizes and how often workers join. Without deltas it is 1."""
    egress_weight: float = Field(default=1.0, ge=0, le=1000)
    """Multiplies USD of egress where broadcast plans are chosen: 0 saves time alone, above 1 more traffic."""
    system: Literal["echo2", "colocated", "one-step-off", "datacentre-async"] = "echo2"
    """echo2, or a baseline on the same learner: colocated (generate, then train, on the same GPUs),
    one-step-off, datacentre-async (both on dedicated workers beside the learner)."""

    @field_validator("publish_period", "full_every", mode="before")
    @classmethod
    def _period(cls, value: Any) -> Any:
        return _auto_or(value, "whole number", 1)


class Batch(Section):
    """What a learner step consumes."""

    rollouts_per_step: int = Field(default=512, ge=1, le=65_536)
    """B: rollouts a step trains on."""
    group_size: Count = 8
    """G: rollouts of one prompt; it must divide rollouts_per_step."""


class Model(Section):
    """The language model that is trained, and the size of its snapshots."""

    name: Text = "Qwen3-8B"
    """A name of the catalogue (echo2/traces/models.py); any name if snapshot_gb and all rates are given."""
    snapshot_gb: float | None = Field(default=None, ge=1e-6, le=10_000)
    """GB of a full snapshot; by default the model's weights in bf16."""
    delta_ratio: Annotated[float, Field(ge=1, le=10_000)] | Literal["measured"] = 1.0
    """A published snapshot is this many times smaller than the full one (lossless deltas); 1: always full;
    "measured": as on the measured model nearest in size at train.learning_rate."""

    @field_validator("delta_ratio", mode="before")
    @classmethod
    def _ratio(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value == "measured" or (number and 1 <= value <= 10_000):
            return value
        raise ValueError('must be "measured" or a number >= 1 and <= 10000')


class Learner(Section):
    """The machine that trains: its GPUs, price, speed and links."""

    gpu: Text = "H200"
    """A GPU of the catalogue (echo2/traces/gpus.py); any name if step_s and the price are given."""
    gpus: int = Field(default=4, ge=1, le=4096)
    """How many of them."""
    provider: Text = "aws"
    """Who rents them out; aws, gcp and azure are inside the matrix of regions, all others beside it."""
    region: Text = "aws:us-east-1"
    """Where they are: `cloud:region` of the matrix; another provider's machine counts as near it."""
    market: Literal["on_demand", "spot", "marketplace", "cheapest"] = "on_demand"
    """Which quotes of the price catalogue to use; their median is taken."""
    price_usd_per_gpu_h: float | None = Field(default=None, ge=MIN_PRICE_USD_PER_H, le=500)
    """USD per GPU and hour, instead of the catalogue's."""
    step_s: float | None = Field(default=None, ge=0.01, le=1e6)
    """T_train: seconds of a step; by default tokens of a batch / tokens per second of the learner profile."""
    step_cv: float = Field(default=0.05, ge=0, le=2)
    """Coefficient of variation of the step time, on top of the batch's length."""
    uplink_mbps: Mbps | None = None
    """Rate out; by default what the region's network card showed. Needed outside aws, gcp and azure."""
    downlink_mbps: Mbps | None = None
    """Rate in; as for uplink_mbps."""
    egress_usd_per_gb: UsdPerGb | None = None
    """Price of every byte that leaves the learner, instead of the region's list prices."""
    nic: Text | None = None
    """EC2 instance whose measured network token bucket applies (c5.large ... c5.4xlarge)."""
    link_shape: Text | None = None
    """Trace (id or path) by which its rate varies around its level."""


class Rollout(Section):
    """What a rollout is: how long, after which prompt, and what a swap of weights costs."""

    lengths: Text | None = "r1-client_35"
    """A length population (id of `echo2 traces`, or a path)."""
    tokens: float | None = Field(default=None, ge=1, le=1e7)
    """Every rollout has this length, instead of `lengths`."""
    max_tokens: int = Field(default=16384, ge=1, le=10_000_000)
    """Generation stops here."""
    prompt_tokens: float = Field(default=512.0, ge=0, le=1e6)
    """Tokens of a prompt."""
    swap_pause_s: float = Field(default=2.0, ge=0, le=3600)
    """p: seconds a worker stands still while it swaps to a verified snapshot."""

    @model_validator(mode="before")
    @classmethod
    def _tokens_alone(cls, values: Any) -> Any:
        if isinstance(values, dict) and "tokens" in values and "lengths" not in values:
            return {**values, "lengths": None}
        return values


class Pool(Section):
    """A kind of rollout worker that can be rented: one [[pool]] each."""

    name: Text
    """Its name; workers are called name-0, name-1, ..."""
    gpu: Text
    """A GPU of the catalogue; any name if tokens_per_s, slots and the price are given."""
    count: int = Field(ge=1, le=MAX_WORKERS)
    """Workers on offer. A worker is as many GPUs as its engine profile needs for the model (mostly 1)."""
    provider: Text
    """Who rents them out; aws, gcp and azure are inside the matrix of regions, all others beside it."""
    market: Literal["on_demand", "spot", "marketplace", "cheapest"] = "spot"
    """Which quotes of the price catalogue to use; their median is taken."""
    region: Text
    """`cloud:region` of the matrix; another provider's machines, and home lines, count as near it."""
    access: Text | None = None
    """Home lines of this country or provider ("US", "Starlink"): rates are spread over its quartiles."""
    price_usd_per_h: UsdPerHour | None = None
    """USD per worker and hour, instead of the catalogue's."""
    tokens_per_s: float | None = Field(default=None, ge=0.01, le=1e6)
    """Decode rate of a full worker, instead of the engine profile's; needs `slots`."""
    slots: int | None = Field(default=None, ge=1, le=4096)
    """Sequences at a time, together with tokens_per_s."""
    speed: float = Field(default=1.0, ge=0.01, le=100)
    """The engine profile times this."""
    max_running: int = Field(default=0, ge=0, le=4096)
    """Most sequences at a time (0: as many as the KV cache holds). Fewer make each rollout quicker."""
    uplink_mbps: Mbps | None = None
    """Rate out of a worker; by default the region's network card. Needed outside the clouds or `access`."""
    downlink_mbps: Mbps | None = None
    """Rate into a worker; as for uplink_mbps."""
    relay: bool = True
    """Whether its workers may pass snapshots on to others."""
    egress_usd_per_gb: UsdPerGb | None = None
    """Price of every byte that leaves a worker, instead of list prices (0 outside the clouds)."""
    startup_s: Seconds = 120.0
    """From the decision to rent until the worker can take a snapshot: paid, not productive."""
    min_lease_s: Seconds = 0.0
    """Shortest time it is paid for."""
    availability: Text | None = None
    """Trace (id or path) of when its workers can be had; worker j replays slot j."""
    link_shape: Text | None = None
    """Trace (id or path) by which its rates vary around their level."""
    nic: Text | None = None
    """EC2 instance whose measured network token bucket applies (c5.large ... c5.4xlarge)."""
    engine: Literal["vllm", "transformers", "openai", "simulated"] = "vllm"
    """What generates in a live run; openai drives a server; simulated only sleeps, for load tests."""
    endpoint: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Live, local openai workers: URL of the server each drives; a list has one per worker."""
    endpoint_weights: Text | None = None
    """Directory shared with the servers, for weights; each worker has a folder of its name in it."""
    endpoint_sees: Text | None = None
    """That directory's path on the servers, where it differs."""
    endpoint_model: Text | None = None
    """Which of several models a server serves; its API key is in the environment, ECHO2_ENDPOINT_KEY."""
    endpoint_routes: Text | None = None
    """JSON file: how the servers swap weights, unless as vLLM does."""
    local: bool = False
    """Live: true starts its workers as processes on the learner's host; false waits for them to dial in."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Live: CPU threads of a local worker (0: the engine's choice)."""
    shape_links: bool = False
    """Live: local workers limit themselves to the pool's link rates and link_shape, like on a real WAN."""
    preemptions_per_h: float | None = Field(default=None, ge=0, le=60)
    """Losses per worker and hour that the planner expects; by default the availability trace's."""

    @field_validator("endpoint", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Network(Section):
    """The wide-area network."""

    epoch: Text = "2022-01-24"
    """Matrix of regions: the date of a shipped one, or your own file."""
    streams: int = Field(default=16, ge=1, le=256)
    """TCP connections an edge; one moves at most 2.55 MiB per round trip."""
    local_mbps: Mbps | None = None
    """Rate between two machines of one site, instead of the matrix's."""


class Policy(Section):
    """How the scheduler decides."""

    activation: Literal["cost", "all", "fastest", "random"] = "cost"
    """Which workers are rented: least cost that feeds the learner, or a plain rule to compare with."""
    topologies: Annotated[tuple[Topology, ...], Field(strict=False)] = ()
    """Broadcast topologies to choose from; empty: all."""
    margin: Annotated[float, Field(ge=1, le=MAX_MARGIN)] | Literal["auto"] = "auto"
    """Factor on the needed rate; "auto" takes it from the variance of lengths and the preemptions."""
    review_s: float = Field(default=600.0, ge=1, le=1e6)
    """Seconds between two reviews of which workers to rent."""

    @field_validator("margin", mode="before")
    @classmethod
    def _margin(cls, value: Any) -> Any:
        return _auto_or(value, "number", 1, MAX_MARGIN)

    @field_validator("topologies", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        for name in value if isinstance(value, list | tuple) else ():
            if name not in TOPOLOGIES:
                raise ValueError(f"{name!r} is not a topology; choose from {', '.join(TOPOLOGIES)}")
        return value


class PriceChange(Section):
    """The price of a pool changes during the simulated run."""

    t_s: Seconds
    """When, seconds from the start."""
    pool: Text
    """Which pool."""
    factor: float = Field(ge=0.01, le=100)
    """Its first price times this, from then on."""


class Sim(Section):
    """The simulated world."""

    transport: Literal["fluid", "chunk"] = "fluid"
    """Transfers as flows, or chunk by chunk (slower; the cross-check)."""
    price_changes: Annotated[tuple[PriceChange, ...], Field(strict=False)] = ()
    """Price changes: a list of {t_s, pool, factor}."""
