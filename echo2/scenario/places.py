"""Where machines stand: sites, and the table of links between them.

A machine of aws, gcp or azure is in its region: its pairs have the matrix's capacity, round trip and egress
price. Any other machine is beside a region: it has that region's round trips (plus its own line's ping), no
pair capacity (its own rates limit it), pays nothing for what it sends, and costs the sending cloud its
internet price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from echo2 import traces
from echo2.config import Config, Learner, Pool
from echo2.errors import UserError
from echo2.policy.links import LinkTable
from echo2.scenario.naming import key

CLOUDS = ("aws", "gcp", "azure")
UNLIMITED_BPS = 1e12


@dataclass(frozen=True)
class Site:
    """A row of the link table. `ping_s` is the round trip of its own line, on top of its region's.

    `egress_usd_per_gb` overrides all its outgoing prices where it is given.
    """

    name: str
    region: str
    inside: bool
    ping_s: float = 0.0
    egress_usd_per_gb: float | None = None


def learner_site(learner: Learner) -> Site:
    """The learner's site; its own when it is outside the clouds or has its own egress price."""
    inside = _inside("learner", learner.provider, learner.region)
    own = not inside or learner.egress_usd_per_gb is not None
    name = f"{learner.region}+learner" if own else learner.region
    return Site(name, learner.region, inside, 0.0, learner.egress_usd_per_gb)


def pool_site(pool: Pool) -> Site:
    """A pool's site; its own when it is outside the clouds, on home lines or has its own egress price."""
    inside = pool.access is None and _inside(f"pool.{pool.name}", pool.provider, pool.region)
    own = not inside or pool.egress_usd_per_gb is not None
    ping_s = 0.0
    if pool.access is not None:
        with key(f"pool.{pool.name}.access", pool.access):
            ping_s = traces.access(pool.access).rtt_s
    name = f"{pool.region}+{pool.name}" if own else pool.region
    return Site(name, pool.region, inside, ping_s, pool.egress_usd_per_gb)


def _inside(where: str, provider: str, region: str) -> bool:
    cloud = region.partition(":")[0]
    if provider.lower() not in CLOUDS:
        return False
    if cloud != provider.lower():
        raise UserError(
            f"{where}.region = {region!r}: is not a region of provider {provider!r}; "
            f"take one that begins with '{provider.lower()}:', or provider = {cloud!r}"
        )
    return True


def link_table(config: Config, sites: Sequence[Site], uplink_bps: float, downlink_bps: float) -> LinkTable:
    """The table over `sites`, the first of which is the learner's."""
    distinct = list(dict.fromkeys(sites))
    matrix = _matrix(config.network.epoch)
    local = config.network.local_mbps * 1e6 if config.network.local_mbps else 0.0
    capacity, rtt, egress = [], [], []
    for a in distinct:
        capacity.append(tuple(_capacity_bps(matrix, a, b, local) for b in distinct))
        rtt.append(tuple(_rtt_s(matrix, a, b) for b in distinct))
        egress.append(tuple(_egress(matrix, a, b) for b in distinct))
    return LinkTable(
        sites=tuple(site.name for site in distinct),
        capacity_bps=tuple(capacity),
        rtt_s=tuple(rtt),
        egress_usd_per_gb=tuple(egress),
        learner_site=distinct[0].name,
        learner_uplink_bps=uplink_bps,
        learner_downlink_bps=downlink_bps,
        streams=config.network.streams,
    )


def check_region(config: Config, where: str, region: str) -> None:
    """Refuse a region that the matrix does not have."""
    with key("network.epoch", config.network.epoch):
        matrix = _matrix(config.network.epoch)
    with key(where, region):
        matrix.index(region)


def card_bps(config: Config, region: str) -> float:
    """The highest rate that a VM of the region showed: a lower bound of its network card."""
    matrix = _matrix(config.network.epoch)
    at = matrix.index(region)
    return float(matrix.capacity_bps[at, at])


def _capacity_bps(matrix: traces.RegionMatrix, a: Site, b: Site, local_bps: float) -> float:
    if a.region == b.region and local_bps:
        return local_bps
    if not (a.inside and b.inside):
        return UNLIMITED_BPS
    return float(matrix.capacity_bps[matrix.index(a.region), matrix.index(b.region)])


def _rtt_s(matrix: traces.RegionMatrix, a: Site, b: Site) -> float:
    rtt = float(matrix.rtt_s[matrix.index(a.region), matrix.index(b.region)])
    if math.isnan(rtt):
        raise UserError(
            f"no round trip is known between {a.region!r} and {b.region!r} in the matrix of {matrix.epoch}; "
            'choose a region nearby, or network.epoch = "2022-01-24"'
        )
    return rtt + a.ping_s + b.ping_s


def _egress(matrix: traces.RegionMatrix, a: Site, b: Site) -> float:
    if a.egress_usd_per_gb is not None:
        return a.egress_usd_per_gb
    if not a.inside:
        return 0.0
    if not b.inside:
        return _internet(a.region)
    usd = float(matrix.egress_usd_per_gb[matrix.index(a.region), matrix.index(b.region)])
    return _internet(a.region) if math.isnan(usd) else usd


@lru_cache(maxsize=256)
def _internet(region: str) -> float:
    return traces.internet_egress_usd_per_gb(region)


@lru_cache(maxsize=8)
def _matrix(epoch: str) -> traces.RegionMatrix:
    return traces.regions(epoch).filled()
