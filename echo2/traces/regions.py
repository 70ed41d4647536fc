"""The matrix of cloud regions: capacity, round trip and egress price of every pair.

Called by the planner (link model) and the simulator (placing workers). Rates are capacity (64 streams
between two large VMs): one flow gets less, about 2.55 MiB per round trip (docs/traces.md).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.traces.catalogue import entries, open_trace
from echo2.traces.nearest import unknown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

BASE_EPOCH = "2022-01-24"
# RTT between two VMs of one region: median of hivemind's pings inside a zone (docs/traces.md).
SAME_REGION_RTT_S = 0.0007
# Regions without a ping, and one in the same metropolis that has them; for `filled`.
TWINS = {
    "aws:eu-west-3": "azure:francecentral",
    "azure:eastus2": "azure:eastus",
    "azure:westus2": "gcp:us-west1",
    "aws:eu-central-2": "gcp:europe-west6",
    "aws:me-central-1": "azure:uaenorth",
}


@dataclass(frozen=True, eq=False)
class RegionMatrix:
    """R regions; (R, R) arrays indexed [src, dst]; nan is unknown. Do not change the arrays.

    The diagonal (two VMs of one region) is filled: capacity is the highest rate the region's VM showed
    to or from anywhere (a lower bound of its network card), RTT 0.7 ms, egress 0 USD/GB.
    """

    regions: tuple[str, ...]
    capacity_bps: FloatArray
    rtt_s: FloatArray
    egress_usd_per_gb: FloatArray
    epoch: str = ""

    def index(self, region: str) -> int:
        """Row and column of `region`. Unknown: UserError with the nearest names."""
        try:
            return self.regions.index(region)
        except ValueError:
            raise unknown("region", region, self.regions, f"regions of {self.epoch}") from None

    def filled(self) -> RegionMatrix:
        """The same, an unknown RTT taken from a region of the same metropolis where there is one (ours)."""
        import numpy as np

        use = {r: TWINS[r] for r in self.regions if TWINS.get(r) in self.regions}
        stand_in = np.array([self.index(use.get(r, r)) for r in self.regions])
        rtt = np.where(np.isnan(self.rtt_s), self.rtt_s[np.ix_(stand_in, stand_in)], self.rtt_s)
        return RegionMatrix(self.regions, self.capacity_bps, rtt, self.egress_usd_per_gb, self.epoch)


def regions(epoch: str | Path = BASE_EPOCH) -> RegionMatrix:
    """The matrix of a shipped epoch ("2022-01-24", "2022-11-28"), a trace id, or your own file by path."""
    if isinstance(epoch, str):
        epochs = {e.measured_from_utc[:10]: e.trace_id for e in entries() if e.kind == "region_pair"}
        looks_like_name = "." not in epoch and "/" not in epoch and not epoch.startswith("skyplane")
        if epoch not in epochs and looks_like_name:
            raise unknown("epoch of regions", epoch, epochs)
        epoch = epochs.get(epoch, epoch)
    return _matrix(str(epoch))


@lru_cache(maxsize=4)
def _matrix(source: str) -> RegionMatrix:
    import numpy as np

    loaded = open_trace(source, "region_pair")
    frame = loaded.frame
    epochs = sorted(set(frame["epoch_utc"]))
    if len(epochs) > 1:
        raise UserError(f"{loaded.name} holds epochs {', '.join(epochs)}; keep one epoch a file")
    names = tuple(sorted(set(frame["src"]) | set(frame["dst"])))
    at = {name: i for i, name in enumerate(names)}
    rows = np.array([at[name] for name in frame["src"]])
    columns = np.array([at[name] for name in frame["dst"]])
    matrices = []
    for column, unit in (("capacity_mbps", 1e6), ("rtt_ms", 1e-3), ("egress_usd_per_gb", 1.0)):
        matrix = np.full((len(names), len(names)), np.nan)
        matrix[rows, columns] = frame[column].to_numpy(np.float64) * unit
        matrices.append(matrix)
    capacity, rtt, egress = matrices
    best = np.fmax(np.nan_to_num(capacity).max(axis=0), np.nan_to_num(capacity).max(axis=1))
    for matrix, same in ((capacity, best), (rtt, SAME_REGION_RTT_S), (egress, 0.0)):
        np.fill_diagonal(matrix, np.where(np.isnan(np.diag(matrix)), same, np.diag(matrix)))
        matrix.flags.writeable = False
    return RegionMatrix(names, capacity, rtt, egress, epochs[0])


def internet_egress_usd_per_gb(region: str) -> float:
    """List price of sending 1 GB (10^9 bytes) from `region` to the internet: to a worker outside the clouds.

    It is what the cloud asks for traffic to another cloud (the same tariff): the median over such pairs.
    `region` may be a cloud alone ("aws"): the median over its regions. Unknown: UserError.
    """
    known = _internet_prices()
    if ":" not in region:
        of_cloud = [usd for name, usd in known.items() if name.startswith(region + ":")]
        if of_cloud:
            return statistics.median(of_cloud)
    if region not in known:
        raise unknown("egress price of region", region, [*known, *{n.split(":")[0] for n in known}])
    return known[region]


@lru_cache(maxsize=1)
def _internet_prices() -> dict[str, float]:
    """USD/GB to other clouds by region, the base epoch before the later one."""
    import numpy as np

    known: dict[str, float] = {}
    for e in entries():
        if e.kind == "region_pair":
            matrix = regions(e.trace_id)
            cloud = np.array([r.split(":")[0] for r in matrix.regions])
            for i, name in enumerate(matrix.regions):
                prices = matrix.egress_usd_per_gb[i][cloud != cloud[i]]
                if np.isfinite(prices).any():
                    known.setdefault(name, float(np.nanmedian(prices)))
    return known
