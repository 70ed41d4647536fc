"""The columns of every kind of trace: names with units, types, allowed ranges, and the fix to offer.

One schema on disk for shipped files and a user's own: UTF-8 CSV (may be .gz), one header row, SI units in
the column name, `.` decimals, empty = unknown. Read by `reading`, printed in docs/traces.md.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_RATE_MBPS = 1e6
MAX_RTT_MS = 60_000.0
MARKETS = ("on_demand", "spot", "marketplace")
PHASES = ("prefill", "decode", "train")
BASES = ("measured", "derived", "estimate", "scaled")


@dataclass(frozen=True)
class Column:
    """One column. `form`: number, integer, flag (0/1), text, gpu, date, or one of `choices`.

    Numbers must lie in `low..high` (above `low` when `above`); `empty` allows an unknown value.
    """

    name: str
    form: str = "number"
    low: float = float("-inf")
    high: float = float("inf")
    above: bool = False
    empty: bool = False
    choices: tuple[str, ...] = ()
    fix: str = ""


def _rate(name: str, empty: bool = False) -> Column:
    fix = "give Mbit/s (10^6 bit/s); an outage is a row with ok = 0 and no rate"
    return Column(name, low=0, above=True, high=MAX_RATE_MBPS, empty=empty, fix=fix)


def _rtt(name: str = "rtt_ms") -> Column:
    return Column(
        name, low=0, above=True, high=MAX_RTT_MS, empty=True, fix="give milliseconds, or leave empty"
    )


def _text(name: str, empty: bool = False) -> Column:
    return Column(name, "text", empty=empty, fix="give a name")


def _time(name: str) -> Column:
    return Column(name, low=0, fix="give seconds from the start of the trace")


@dataclass(frozen=True)
class Kind:
    """A kind of trace. `series` names the column that tells several traces in one file apart."""

    name: str
    about: str
    columns: tuple[Column, ...]
    series: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)


_COUNT = Column("gpus", "integer", low=1, fix="give the number of GPUs")
_GPU = Column("gpu", "gpu", fix="use a name of echo2/traces/gpus.py")

LINK = Kind(
    "link",
    "rate of one link over time: a step function, a value holds until the next row, the last row ends it",
    (
        _text("trace_id"),
        _time("t_s"),
        _rate("down_mbps", True),
        _rate("up_mbps", True),
        _rtt(),
        Column("ok", "flag"),
    ),
    "trace_id",
)
LINK_SHAPE = Kind(
    "link_shape",
    "the same as a multiple of the usual rate (median 1), to be put on another level",
    (
        _text("trace_id"),
        _time("t_s"),
        Column("down_ratio", low=0, above=True, high=1e3, empty=True),
        Column("up_ratio", low=0, above=True, high=1e3, empty=True),
        Column("ok", "flag"),
    ),
    "trace_id",
)
REGION_PAIR = Kind(
    "region_pair",
    "what one large VM in `src` sends to one in `dst`; regions are `cloud:region`",
    (
        Column("epoch_utc", "date"),
        _text("src"),
        _text("dst"),
        _text("src_tier", True),
        _text("dst_tier", True),
        _rate("capacity_mbps"),
        Column("streams", "integer", low=1),
        _rtt(),
        Column("egress_usd_per_gb", low=0, high=10, empty=True, fix="give USD per GB (10^9 bytes)"),
    ),
)
FLOW_POINT = Kind(
    "flow_point",
    "one measured transfer over `streams` TCP connections",
    (
        _text("src_site"),
        _text("dst_site"),
        Column("streams", "integer", low=1),
        _rate("throughput_mbps"),
        _rtt(),
        _text("measured_at", True),
    ),
)
ACCESS = Kind(
    "access",
    "quartiles of home and office lines by country or provider",
    (
        _text("level"),
        _text("name"),
        _text("country", True),
        *(_rate(f"{way}_{q}_mbps") for way in ("down", "up") for q in ("p25", "p50", "p75")),
        _rtt("ping_p50_ms"),
        Column("n", "integer", low=1),
    ),
)
PRICE = Kind(
    "price",
    "one quote for one GPU-hour",
    (
        Column("date", "date", fix="give YYYY-MM-DD"),
        _text("provider"),
        _text("region", True),
        _GPU,
        _COUNT,
        Column("vram_gb", low=0, above=True, high=1024, empty=True),
        Column("market", choices=MARKETS),
        Column("usd_per_gpu_hour", low=0, above=True, high=500, fix="give USD per GPU and hour"),
        _text("source_url"),
    ),
)
AVAILABILITY = Kind(
    "availability",
    "when spot machines were up: `node` empty means `alive` counts machines, else it is 0 or 1",
    (
        _text("trace_id"),
        _time("start_s"),
        _time("end_s"),
        _text("pool", True),
        _text("node", True),
        Column("alive", "integer", low=0, fix="give 0, 1 or a number of machines"),
    ),
    "trace_id",
)
LENGTH = Kind(
    "length",
    "histogram of token counts: bins `tokens_lo..tokens_hi` (inclusive) with probability `mass`",
    (
        _text("population"),
        Column("kind", choices=("input", "output")),
        Column("tokens_lo", low=0),
        Column("tokens_hi", low=0),
        Column("mass", low=0, high=1),
    ),
    "population",
)
ENGINE = Kind(
    "engine",
    "one operating point of an inference engine or a learner; tokens_per_s is of all `gpus` together",
    (
        _GPU,
        _COUNT,
        _text("model"),
        _text("dtype", True),
        _text("engine", True),
        Column("phase", choices=PHASES),
        Column("batch", low=1),
        Column("context_tokens", low=1),
        Column("step_ms", low=0, above=True, fix="give milliseconds; leave failed runs out"),
        Column("tokens_per_s", low=0, above=True, fix="give tokens/s; leave failed runs out"),
        Column("kv_pool_tokens", low=0, above=True, empty=True),
        Column("basis", choices=BASES),
        _text("source"),
    ),
)
NIC_BUCKET = Kind(
    "nic_bucket",
    "token bucket of a cloud VM's network card: full rate until `bucket_gbit` is used up, then sustained",
    (
        _text("instance"),
        _rate("burst_mbps"),
        _rate("sustained_mbps"),
        Column("bucket_gbit", low=0, above=True, fix="give Gbit above the sustained rate"),
    ),
)

KINDS: dict[str, Kind] = {
    k.name: k
    for k in (
        LINK,
        LINK_SHAPE,
        REGION_PAIR,
        FLOW_POINT,
        ACCESS,
        PRICE,
        AVAILABILITY,
        LENGTH,
        ENGINE,
        NIC_BUCKET,
    )
}
