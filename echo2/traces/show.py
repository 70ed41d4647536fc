"""What the command line shows of a trace: rows for a table, and one picture a kind.

Called by `echo2 traces show`. Figures come from the same typed views the planner uses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.traces.catalogue import Loaded, open_trace
from echo2.traces.lengths import lengths
from echo2.traces.links import LinkSeries, LinkShape, link, shape, weighted_quantile
from echo2.traces.pictures import DRAWERS
from echo2.traces.spot import availability

Rows = list[tuple[str, str]]
MOST_LISTED = 12
SAID = ("basis", "source")


def summary(id_or_path: str | Path) -> Rows:
    """Name and value of what matters in a trace, for a table."""
    loaded = open_trace(id_or_path)
    rows: Rows = [("trace", loaded.name), ("kind", f"{loaded.kind.name}: {loaded.kind.about}")]
    if loaded.entry is not None:
        e = loaded.entry
        days = " to ".join(d for d in (e.measured_from_utc, e.measured_to_utc) if d) or "not stated"
        rows += [
            ("source", f"{e.source} @ {e.source_commit[:12]}" if e.source_commit else e.source),
            ("licence", e.licence),
            ("measured (UTC)", days),
            ("basis", e.basis),
        ]
    rows.append(("rows", f"{len(loaded.frame):,}"))
    rows += _SUMMARIES.get(loaded.kind.name, _plain)(id_or_path, loaded)
    if loaded.entry is not None and loaded.entry.notes:
        rows.append(("notes", loaded.entry.notes))
    return rows


def draw(id_or_path: str | Path, png_path: str | Path) -> Path:
    """Draw a trace as a PNG picture; returns its path. Kinds without a picture: UserError."""
    loaded = open_trace(id_or_path)
    drawer = DRAWERS.get(loaded.kind.name)
    if drawer is None:
        raise UserError(f"no picture for kind {loaded.kind.name}; kinds: {', '.join(sorted(DRAWERS))}")
    target = Path(png_path)
    if not target.parent.is_dir():
        raise UserError(f"folder {target.parent} for the picture does not exist; make it first")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawer(id_or_path, loaded, axes)
    basis = f" ({loaded.entry.basis})" if loaded.entry is not None else ""
    axes.set_title(f"{loaded.name}{basis}")
    figure.savefig(target, dpi=120, format="png")
    return target


def _quantiles(values: Any, unit: str, digits: int = 3) -> str:
    import numpy as np

    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not known.size:
        return "unknown"
    low, middle, high = (float(v) for v in np.quantile(known, [0.1, 0.5, 0.9]))
    return f"{low:.{digits}g} / {middle:.{digits}g} / {high:.{digits}g} {unit}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _over_time(series: LinkSeries | LinkShape, values: Any, unit: str) -> str:
    import numpy as np

    hold = np.append(np.diff(series.t_s), 0.0)
    if len(hold) == 1:
        hold[:] = 1.0
    at = [weighted_quantile(values[series.ok], hold[series.ok], p) for p in (0.1, 0.5, 0.9)]
    return " / ".join(f"{v:.3g}" for v in at) + f" {unit}" if np.isfinite(at[0]) else "unknown"


def _link_rows(id_or_path: str | Path, loaded: Loaded) -> Rows:
    if _many_series(loaded):
        return _plain(id_or_path, loaded)
    if loaded.kind.name == "link":
        series = link(id_or_path)
        down, up, unit = series.down_bps / 1e6, series.up_bps / 1e6, "Mbit/s"
        rest: Rows = [("round trip p10/50/90", _quantiles(series.rtt_s[series.ok] * 1e3, "ms"))]
        view: LinkSeries | LinkShape = series
    else:
        view = shape(id_or_path)
        down, up, unit, rest = view.down, view.up, "x usual", []
    return [
        ("duration", _duration(view.duration_s)),
        ("down p10/50/90 of time", _over_time(view, down, unit)),
        ("up p10/50/90 of time", _over_time(view, up, unit)),
        *rest,
        ("outages", str(int((~view.ok).sum()))),
    ]


def _region_rows(id_or_path: str | Path, loaded: Loaded) -> Rows:
    frame = loaded.frame
    return [
        ("regions", f"{len(set(frame['src']) | set(frame['dst']))}"),
        ("capacity p10/50/90", _quantiles(frame["capacity_mbps"], "Mbit/s", 4)),
        ("round trip p10/50/90", _quantiles(frame["rtt_ms"], "ms")),
        ("egress p10/50/90", _quantiles(frame["egress_usd_per_gb"], "USD/GB")),
    ]


def _price_rows(id_or_path: str | Path, loaded: Loaded) -> Rows:
    frame = loaded.frame
    common = frame["gpu"].value_counts().head(8).index
    rows: Rows = [("providers", str(frame["provider"].nunique())), ("dates", _span(frame["date"]))]
    for name in common:
        values = frame[frame["gpu"] == name]["usd_per_gpu_hour"]
        rows.append((f"{name} p10/50/90", f"{_quantiles(values, 'USD/GPU-h')} ({len(values)} quotes)"))
    return rows


def _span(values: Any) -> str:
    first, last = str(values.min()), str(values.max())
    return first if first == last else f"{first} to {last}"


def _availability_rows(id_or_path: str | Path, loaded: Loaded) -> Rows:
    if _many_series(loaded):
        return _plain(id_or_path, loaded)
    trace = availability(id_or_path)
    up = [(end - start) / 3600 for slot in trace.nodes for start, end in slot]
    return [
        ("duration", _duration(trace.duration_s)),
        ("machines, peak and mean", f"{trace.peak} / {trace.mean_alive:.2f}"),
        ("losses", f"{trace.preemptions} ({trace.preemptions_per_node_hour:.2f} per machine-hour)"),
        ("up p10/50/90", _quantiles(up, "h")),
    ]


def _length_rows(id_or_path: str | Path, loaded: Loaded) -> Rows:
    if _many_series(loaded):
        return _plain(id_or_path, loaded)
    rows: Rows = []
    for kind in sorted(set(loaded.frame["kind"])):
        tokens = lengths(id_or_path, kind)
        at = " / ".join(f"{float(tokens.quantile(p)):,.0f}" for p in (0.1, 0.5, 0.9, 0.99))
        rows.append((f"{kind} mean", f"{tokens.mean:,.0f} tokens (cv {tokens.cv:.2f})"))
        rows.append((f"{kind} p10/50/90/99", f"{at} tokens"))
    return rows


def _many_series(loaded: Loaded) -> bool:
    return bool(loaded.kind.series) and loaded.frame[loaded.kind.series].nunique() > 1


def _plain(id_or_path: str | Path, loaded: Loaded) -> Rows:
    """Number columns by quantile, text columns by how many values."""
    if _many_series(loaded):
        names = list(dict.fromkeys(loaded.frame[loaded.kind.series]))
        return [("series", ", ".join(names[:8]) + (", ..." if len(names) > 8 else ""))]
    rows: Rows = []
    for column in (c for c in loaded.kind.columns if loaded.entry is None or c.name not in SAID):
        values = loaded.frame[column.name]
        if column.form == "number" and not column.choices:
            rows.append((f"{column.name} p10/50/90", _quantiles(values, "").strip()))
        elif values.nunique() <= MOST_LISTED:
            listed = sorted(set(values))
            rows.append(
                (column.name, ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in listed))
            )
    return rows


def _joined(values: list[Any]) -> str:
    return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


_SUMMARIES: dict[str, Callable[[str | Path, Loaded], Rows]] = {
    "link": _link_rows,
    "link_shape": _link_rows,
    "region_pair": _region_rows,
    "price": _price_rows,
    "availability": _availability_rows,
    "length": _length_rows,
}
