"""Rates of single links over time, their shapes, access lines and network-card buckets.

Called by the simulator (a link's rate at time t), by the live link shaper (the same traces throttle real
transfers) and by the planner (levels). No pair of clouds has a long time series with a licence: a varying
pair is its measured level x a shape measured elsewhere, and reports must say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo2.errors import UserError
from echo2.traces.catalogue import of_kind, open_trace
from echo2.traces.nearest import unknown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LinkShape:
    """A link's rate as a multiple of its usual one: step functions over `t_s` (N,), 0 where `ok` is false."""

    t_s: FloatArray
    down: FloatArray
    up: FloatArray
    ok: BoolArray
    name: str = ""

    @property
    def duration_s(self) -> float:
        """Seconds from the first row to the last, which ends the trace."""
        return float(self.t_s[-1] - self.t_s[0])


@dataclass(frozen=True, eq=False)
class LinkSeries:
    """One link: step functions over `t_s` (N,) in seconds; rates in bit/s, 0 where `ok` is false.

    A value holds until the next row; the last row ends the trace. `rtt_s` is nan where unknown; a side
    that was not measured is nan throughout.
    """

    t_s: FloatArray
    down_bps: FloatArray
    up_bps: FloatArray
    rtt_s: FloatArray
    ok: BoolArray
    name: str = ""

    @property
    def duration_s(self) -> float:
        """Seconds from the first row to the last, which ends the trace."""
        return float(self.t_s[-1] - self.t_s[0])

    def normalised(self) -> LinkShape:
        """The shape: rates divided by their time-weighted median while the link was up, so median 1."""
        hold = _hold(self.t_s)
        down = self.down_bps / weighted_quantile(self.down_bps[self.ok], hold[self.ok], 0.5)
        up = self.up_bps / weighted_quantile(self.up_bps[self.ok], hold[self.ok], 0.5)
        return LinkShape(self.t_s, down, up, self.ok, self.name)


@dataclass(frozen=True)
class NicBucket:
    """A VM's network card: `burst_bps` until `bucket_bits` above the sustained rate are used up."""

    burst_bps: float
    sustained_bps: float
    bucket_bits: float
    instance: str = ""

    @property
    def burst_s(self) -> float:
        """Seconds at full rate from a full bucket."""
        over = self.burst_bps - self.sustained_bps
        return self.bucket_bits / over if over > 0 else float("inf")


@dataclass(frozen=True)
class AccessLevel:
    """Quartiles (p25, p50, p75) of the lines of a country or provider, bit/s; median round trip, s."""

    name: str
    down_bps: tuple[float, float, float]
    up_bps: tuple[float, float, float]
    rtt_s: float
    tests: int


def _hold(t_s: FloatArray) -> FloatArray:
    """Seconds each value holds; a single row counts once."""
    import numpy as np

    return np.append(np.diff(t_s), 0.0) if len(t_s) > 1 else np.ones(1)


def weighted_quantile(values: FloatArray, weight_s: FloatArray, p: float) -> float:
    """The value below which the link spends a share `p` of its (known) time; nan when nothing is known."""
    import numpy as np

    known = np.isfinite(values) & (weight_s > 0)
    if not known.any():
        return float("nan")
    order = np.argsort(values[known], kind="stable")
    reached = np.cumsum(weight_s[known][order])
    return float(values[known][order][np.searchsorted(reached, p * reached[-1])])


def _series(id_or_path: str | Path, kind: str) -> tuple[Any, Any, str]:
    loaded = open_trace(id_or_path, kind)
    ids = list(dict.fromkeys(loaded.frame["trace_id"]))
    if len(ids) > 1:
        raise UserError(f"{loaded.name} holds {len(ids)} series; pick one with '{id_or_path}#{ids[0]}'")
    ok = loaded.frame["ok"].to_numpy() == 1
    if not ok.any():
        raise UserError(
            f"{loaded.name} is never up (ok = 0 everywhere); it needs at least one row with ok = 1"
        )
    return loaded.frame, ok, loaded.name


def _rate(frame: Any, ok: Any, column: str, unit: float) -> Any:
    import numpy as np

    values = frame[column].to_numpy(np.float64) * unit
    return np.where(ok, values, 0.0 if np.isfinite(values).any() else np.nan)


def link(id_or_path: str | Path) -> LinkSeries:
    """One link over time: a shipped trace by id, or your own file (`path`, `path#trace_id`)."""
    import numpy as np

    frame, ok, name = _series(id_or_path, "link")
    return LinkSeries(
        frame["t_s"].to_numpy(np.float64),
        _rate(frame, ok, "down_mbps", 1e6),
        _rate(frame, ok, "up_mbps", 1e6),
        frame["rtt_ms"].to_numpy(np.float64) * 1e-3,
        ok,
        name,
    )


def shape(id_or_path: str | Path) -> LinkShape:
    """A shape to put on a level: a shipped `link_shape`, or any `link` normalised to its median."""
    import numpy as np

    if open_trace(id_or_path).kind.name == "link":
        return link(id_or_path).normalised()
    frame, ok, name = _series(id_or_path, "link_shape")
    down, up = (_rate(frame, ok, f"{way}_ratio", 1.0) for way in ("down", "up"))
    return LinkShape(frame["t_s"].to_numpy(np.float64), down, up, ok, name)


def nic_bucket(instance: str) -> NicBucket:
    """The measured token bucket of an EC2 instance type (c5.large ...). Unknown: UserError."""
    frame = of_kind("nic_bucket")[0].frame
    row = frame[frame["instance"] == instance]
    if row.empty:
        raise unknown("instance", instance, frame["instance"])
    first = row.iloc[0]
    return NicBucket(
        float(first["burst_mbps"]) * 1e6,
        float(first["sustained_mbps"]) * 1e6,
        float(first["bucket_gbit"]) * 1e9,
        instance,
    )


def access(name: str) -> AccessLevel:
    """Quartiles of the lines of a country ("US", "global") or provider ("Starlink"). Unknown: UserError."""
    frame = of_kind("access")[0].frame
    row = frame[frame["name"].str.lower() == name.strip().lower()]
    if row.empty:
        raise unknown("access line", name, frame["name"])
    first = row.iloc[0]
    down, up = (
        (
            float(first[f"{way}_p25_mbps"]) * 1e6,
            float(first[f"{way}_p50_mbps"]) * 1e6,
            float(first[f"{way}_p75_mbps"]) * 1e6,
        )
        for way in ("down", "up")
    )
    return AccessLevel(str(first["name"]), down, up, float(first["ping_p50_ms"]) * 1e-3, int(first["n"]))
