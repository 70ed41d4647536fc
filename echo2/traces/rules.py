"""The rules that tie values and rows of a trace together, one function a kind. Called by `reading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from echo2.errors import UserError
from echo2.traces.gpus import gpu
from echo2.traces.schema import Kind

LEAST_USD_PER_GPU_HOUR = 0.02
BIG_GPU_GB = 16
MASS_TOLERANCE = 1e-3


def check_rows(file: str, frame: Any, kind: Kind) -> None:
    """Raise UserError at the first row that contradicts itself or another row."""
    rule = _RULES.get(kind.name)
    if rule is not None:
        rule(file, frame)


def _first(wrong: Any) -> int:
    import numpy as np

    return int(np.argmax(np.asarray(wrong)))


def _refuse(file: str, row: int, message: str) -> None:
    raise UserError(f"{file} row {row + 1} (line {row + 2}): {message}")


def _link(file: str, frame: Any, down: str = "down_mbps", up: str = "up_mbps") -> None:
    import numpy as np

    ids, times = frame["trace_id"].to_numpy(), frame["t_s"].to_numpy(dtype=np.float64)
    if len(set(ids)) != 1 + int(np.sum(ids[1:] != ids[:-1])):
        raise UserError(f"{file}: rows of one trace_id must stand together; sort by trace_id, then t_s")
    back = np.zeros(len(ids), dtype=bool)
    back[1:] = (ids[1:] == ids[:-1]) & (times[1:] <= times[:-1])
    if back.any():
        row = _first(back)
        _refuse(file, row, f"t_s = {times[row]:g} is not after {times[row - 1]:g}; sort by t_s, no repeats")
    ok = frame["ok"].to_numpy() == 1
    silent = ok & np.isnan(frame[down].to_numpy(np.float64)) & np.isnan(frame[up].to_numpy(np.float64))
    if silent.any():
        _refuse(file, _first(silent), f"ok = 1 but neither {down} nor {up} is given; give one, or set ok = 0")


def _link_shape(file: str, frame: Any) -> None:
    _link(file, frame, "down_ratio", "up_ratio")


def _region_pair(file: str, frame: Any) -> None:
    for row, (src, dst) in enumerate(zip(frame["src"], frame["dst"])):
        for name in (src, dst):
            if ":" not in name:
                _refuse(file, row, f"region {name!r} is not cloud:region, like aws:us-east-1")
    twice = frame.duplicated(["epoch_utc", "src", "dst"]).to_numpy()
    if twice.any():
        row = _first(twice)
        _refuse(file, row, f"{frame['src'].iloc[row]} to {frame['dst'].iloc[row]} stands twice; keep one row")


def _access(file: str, frame: Any) -> None:
    for way in ("down", "up"):
        q25, q50, q75 = (frame[f"{way}_{q}_mbps"].to_numpy() for q in ("p25", "p50", "p75"))
        wrong = (q25 > q50) | (q50 > q75)
        if wrong.any():
            _refuse(file, _first(wrong), f"{way} quartiles must rise: p25 <= p50 <= p75")


def _price(file: str, frame: Any) -> None:
    for row, (name, usd) in enumerate(zip(frame["gpu"], frame["usd_per_gpu_hour"])):
        if usd < LEAST_USD_PER_GPU_HOUR and gpu(name).vram_gb >= BIG_GPU_GB:
            _refuse(
                file,
                row,
                f"usd_per_gpu_hour = {usd:g} for {name} is an error, not a bargain: at least "
                f"{LEAST_USD_PER_GPU_HOUR} for a GPU of {BIG_GPU_GB} GB or more; check unit and GPU count",
            )


def _availability(file: str, frame: Any) -> None:
    import numpy as np

    start, end = frame["start_s"].to_numpy(np.float64), frame["end_s"].to_numpy(np.float64)
    if (end <= start).any():
        row = _first(end <= start)
        _refuse(file, row, f"end_s = {end[row]:g} is not after start_s = {start[row]:g}")
    last: dict[tuple[str, str], float] = {}
    for row, key in enumerate(zip(frame["trace_id"], frame["node"])):
        if start[row] < last.get(key, 0.0):
            _refuse(
                file,
                row,
                f"start_s = {start[row]:g} lies before the end of the row before it ({last[key]:g}); "
                "sort by start_s, no overlap within a node",
            )
        last[key] = end[row]
    wrong = (frame["node"].to_numpy() != "") & (frame["alive"].to_numpy(np.float64) > 1)
    if wrong.any():
        _refuse(file, _first(wrong), "alive must be 0 or 1 when a node is named; leave node empty for counts")


def _length(file: str, frame: Any) -> None:
    import numpy as np

    low, high = frame["tokens_lo"].to_numpy(np.float64), frame["tokens_hi"].to_numpy(np.float64)
    if (high < low).any():
        _refuse(file, _first(high < low), "tokens_hi must be >= tokens_lo")
    for (population, kind), part in frame.groupby(["population", "kind"], sort=False):
        total = float(part["mass"].sum())
        if abs(total - 1) > MASS_TOLERANCE:
            raise UserError(f"{file}: {kind} masses of {population!r} sum to {total:.4f}; they must sum to 1")
        bins = part["tokens_lo"].to_numpy(np.float64)
        if (bins[1:] <= part["tokens_hi"].to_numpy(np.float64)[:-1]).any():
            raise UserError(f"{file}: {kind} bins of {population!r} overlap or go back; sort by tokens_lo")


def _nic_bucket(file: str, frame: Any) -> None:
    wrong = frame["burst_mbps"].to_numpy() < frame["sustained_mbps"].to_numpy()
    if wrong.any():
        _refuse(file, _first(wrong), "burst_mbps must be >= sustained_mbps")


_RULES: dict[str, Callable[[str, Any], None]] = {
    "link": _link,
    "link_shape": _link_shape,
    "region_pair": _region_pair,
    "access": _access,
    "price": _price,
    "availability": _availability,
    "length": _length,
    "nic_bucket": _nic_bucket,
}
