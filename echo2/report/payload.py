"""The run as compact data inside the page: columns of JSON, gzip, base64.

Called by `page`; read by assets/data.js.
A column is {"d": differences of whole numbers}, {"f": numbers or null}, or {"s": texts, "i": their indices}.
Times are whole milliseconds since the run began.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Sequence
from typing import Any

from echo2.report.course import BINS, Course, WorkerCourse
from echo2.report.decisions import Cell, DecisionTable, KindTable
from echo2.report.digest import LogDigest
from echo2.report.style import idle_look

Data = dict[str, Any]
LANE_BINS = 262_144


def pack(data: Data) -> str:
    """JSON, gzip, base64: the same bytes for the same data."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode("ascii")


def unpack(text: str) -> Data:
    """What `pack` made a text of."""
    data: Data = json.loads(gzip.decompress(base64.b64decode(text)))
    return data


def column(values: Sequence[Cell]) -> Data:
    """The smallest form of a column."""
    if all(type(value) is int for value in values):
        return {"d": _differences(values)}  # type: ignore[arg-type]
    if all(value is None or isinstance(value, int | float) for value in values):
        return {"f": [_short(value) for value in values]}  # type: ignore[arg-type]
    places: dict[str, int] = {}
    index = [places.setdefault("" if value is None else str(value), len(places)) for value in values]
    return {"s": list(places), "i": index}


def values_of(packed: Data) -> list[Any]:
    """The values of a column; floats come back with six digits."""
    if "d" in packed:
        out, last = [], 0
        for difference in packed["d"]:
            last += difference
            out.append(last)
        return out
    return list(packed["f"]) if "f" in packed else [packed["s"][i] for i in packed["i"]]


def run_data(world: str, S: int | None, log: LogDigest) -> Data:
    """All of a run that the charts and lists of the page need, decisions apart."""
    causes = list(log.idle_by_cause())
    return {
        "format": 1,
        "world": world,
        "S": S,
        "end": _ms(log.end_s),
        "lives": [_ms(t) for t in log.lives_s],
        "causes": causes,
        "labels": [idle_look(cause).label for cause in causes],
        "train": {
            "t": _times(t for t, _, _ in log.train),
            "s": _times(s for _, s, _ in log.train),
            "v": column([v for _, _, v in log.train]),
        },
        "idle": {
            "t": _times(t for t, _, _ in log.idle),
            "s": _times(s for _, s, _ in log.idle),
            "c": column([causes.index(c) for _, _, c in log.idle]),
        },
        "running": _bins(log.running),
        "ages": _ages(log),
        "versions": _versions(log),
        "workers": _workers(log),
    }


def decision_data(table: DecisionTable) -> Data:
    """Every decision: the kind of each, and a table for every kind."""
    kinds = list(table.kinds)
    return {
        "order": column(table.order),
        "kinds": [{"kind": kind, **_kind(table.kinds[kind])} for kind in kinds],
    }


def _kind(table: KindTable) -> Data:
    rows = len(table.t_s)
    return {
        "t": _times(table.t_s),
        "reason": column(table.reason),
        "bound": column(table.bound),
        "fields": [[n, column([*c, *[None] * (rows - len(c))])] for n, c in table.columns.items()],
    }


def _ages(log: LogDigest) -> Data:
    ages = log.ages
    return {
        "t": _times(a.t_s for a in ages),
        "version": column([a.version for a in ages]),
        "low": column([a.lowest for a in ages]),
        "mean": column([a.mean for a in ages]),
        "high": column([a.highest for a in ages]),
    }


def _versions(log: LogDigest) -> Data:
    rows = list(log.versions.values())
    return {
        "version": column([v.version for v in rows]),
        "t": _times(v.published_s for v in rows),
        "topology": column([v.topology for v in rows]),
        "workers": column([len(v.arrivals_s) + len(v.targets) for v in rows]),
        "GB": column([v.size_bytes / 1e9 for v in rows]),
        "achieved": column([v.tail_s for v in rows]),
        "mean": column([sum(v.arrivals_s) / len(v.arrivals_s) if v.arrivals_s else None for v in rows]),
        "predicted": column([v.planned_s or None for v in rows]),
        "bound": column([v.bound_s for v in rows]),
        "egress": column([v.egress_usd for v in rows]),
        "never": column([len(v.targets) for v in rows]),
        "reroutes": column([v.reroutes for v in rows]),
        "later": column([v.caught_up for v in rows]),
        "reason": column([v.reason for v in rows]),
    }


def _workers(log: LogDigest) -> Data:
    """The lanes: workers that were up or were sent something, the longest up first."""
    shown = [w for w in log.workers.values() if w.up or w.receiving]
    shown.sort(key=lambda w: (-sum(b - a for a, b, _ in w.up), w.worker_id))
    merged = 1 + len(shown) * BINS // LANE_BINS
    return {
        "id": [w.worker_id for w in shown],
        "up": [_spans([(a, b) for a, b, _ in w.up], [c for _, _, c in w.up]) for w in shown],
        "got": [_received(w) for w in shown],
        "busy": [_bins(w.running, merged, 0.0 if not w.offer else w.offer["slots"]) for w in shown],
    }


def _spans(spans: list[tuple[float, float]], texts: list[str]) -> Data:
    return {"t": _times(a for a, _ in spans), "s": _times(b - a for a, b in spans), "text": column(texts)}


def _received(worker: WorkerCourse) -> Data:
    got = worker.receiving
    data = _spans([(a, b) for a, b, _, _ in got], [o for *_, o in got])
    return {**data, "v": column([v for _, _, v, _ in got])}


def _bins(course: Course, merged: int = 1, full: float = 0.0) -> Data:
    """Means of equal bins; as per mille of `full` where that is given."""
    means = course.means()
    if merged > 1:
        groups = [means[i : i + merged] for i in range(0, len(means), merged)]
        means = [sum(group) / len(group) for group in groups]
    scale = 1000.0 / full if full >= 1 else 10.0
    return {
        "width": course.width_s * merged * 1000.0,
        "scale": 0.001 if full >= 1 else 0.1,
        "y": column([round(value * scale) for value in means]),
    }


def _times(seconds: Any) -> Data:
    return column([_ms(value) for value in seconds])


def _ms(seconds: float) -> int:
    return round(1000.0 * seconds) if math.isfinite(seconds) else 0


def _differences(values: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *values[:-1]], values)]


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
