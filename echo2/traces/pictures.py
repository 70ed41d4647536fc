"""One picture for each kind of trace, drawn on given matplotlib axes. Called by `show.draw`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from echo2.traces.catalogue import Loaded
from echo2.traces.lengths import lengths
from echo2.traces.links import link, shape
from echo2.traces.regions import regions
from echo2.traces.spot import availability

Drawer = Callable[[str | Path, Loaded, Any], None]
FLOW_BITS_PER_RTT = 2.55 * 2**20 * 8


def _draw_link(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    if loaded.kind.name == "link":
        series = link(id_or_path)
        down, up, unit, t_s = series.down_bps / 1e6, series.up_bps / 1e6, "Mbit/s", series.t_s
    else:
        curve = shape(id_or_path)
        down, up, unit, t_s = curve.down, curve.up, "multiple of the usual rate", curve.t_s
    size, name = (86400.0, "days") if t_s[-1] > 2 * 86400 else (60.0, "minutes")
    axes.step(t_s / size, down, where="post", label="down", linewidth=0.6)
    axes.step(t_s / size, up, where="post", label="up", linewidth=0.6, linestyle="--")
    axes.set(xlabel=f"time ({name})", ylabel=unit, ylim=(0, None))
    axes.legend(loc="lower right")


def _draw_regions(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    import numpy as np

    matrix = regions(id_or_path)
    cloud = np.array([r.split(":")[0] for r in matrix.regions])
    off = ~np.eye(len(cloud), dtype=bool)
    for name in sorted(set(cloud)):
        mine = off & (cloud == name)[:, None]
        axes.scatter(matrix.rtt_s[mine] * 1e3, matrix.capacity_bps[mine] / 1e9, s=4, label=f"from {name}")
    rtt = np.linspace(5, 400, 200)
    axes.plot(
        rtt, FLOW_BITS_PER_RTT / rtt / 1e6, "k--", linewidth=1, label="one TCP flow (2.55 MiB per round trip)"
    )
    axes.set(xlabel="round trip (ms)", ylabel="Gbit/s", yscale="log")
    axes.legend(loc="upper right")


def _draw_flows(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    frame: Any = loaded.frame
    for streams, part in frame.groupby("streams"):
        label = f"{int(streams)} stream{'s' if streams > 1 else ''}"
        axes.scatter(part["rtt_ms"], part["throughput_mbps"], s=10, label=label)
    axes.set(xlabel="round trip (ms)", ylabel="Mbit/s", xscale="log", yscale="log")
    axes.legend()


def _draw_availability(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    trace = availability(id_or_path)
    for j, slot in enumerate(trace.nodes):
        spans = [(start / 3600, (end - start) / 3600) for start, end in slot]
        axes.broken_barh(spans, (j + 0.1, 0.8))
    axes.set(xlabel="time (h)", ylabel="slot", xlim=(0, trace.duration_s / 3600), ylim=(0, trace.peak))


def _draw_lengths(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    import numpy as np

    share = np.linspace(0, 1, 1001)
    for kind in sorted(set(loaded.frame["kind"])):
        axes.plot(lengths(id_or_path, kind).quantile(share), share, label=kind)
    axes.set(xlabel="tokens", ylabel="share of requests up to this long", xscale="log", ylim=(0, 1))
    axes.legend()


def _draw_prices(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    frame: Any = loaded.frame
    names = list(frame.groupby("gpu").size().sort_values(ascending=False, kind="stable").head(12).index)
    names.sort(key=lambda n: float(frame[frame["gpu"] == n]["usd_per_gpu_hour"].median()))
    for market, part in frame.groupby("market"):
        part = part[part["gpu"].isin(names)]
        axes.scatter(part["usd_per_gpu_hour"], [names.index(n) for n in part["gpu"]], s=14, label=market)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="USD per GPU-hour", xscale="log")
    axes.legend()


def _draw_engines(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    frame: Any = loaded.frame
    phase = "decode" if (frame["phase"] == "decode").any() else "train"
    frame = frame[frame["phase"] == phase]
    if phase == "train":
        best = frame.groupby(["model", "gpu", "gpus"])["tokens_per_s"].max().sort_values()
        axes.barh([f"{m}, {int(n)} x {g}" for m, g, n in best.index], best.to_numpy())
        axes.set(xlabel="trained tokens/s (best row)", xscale="log")
        axes.tick_params(axis="y", labelsize=6)
        return
    context = float(frame["context_tokens"].median())
    nearest = min(set(frame["context_tokens"]), key=lambda c: abs(c - context))
    for (model, gpu), part in frame[frame["context_tokens"] == nearest].groupby(["model", "gpu"]):
        axes.plot(part["batch"], part["tokens_per_s"], marker=".", linewidth=0.8, label=f"{model} {gpu}")
    axes.set(
        xlabel=f"running sequences, {nearest:.0f} tokens each", ylabel="tokens/s", xscale="log", yscale="log"
    )
    axes.legend(fontsize=5, ncols=2)


def _draw_access(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    import numpy as np

    frame: Any = loaded.frame
    for shift, way in ((-0.15, "down"), (0.15, "up")):
        middle = frame[f"{way}_p50_mbps"].to_numpy(np.float64)
        low, high = (frame[f"{way}_{q}_mbps"].to_numpy(np.float64) for q in ("p25", "p75"))
        at = np.arange(len(frame)) + shift
        axes.errorbar(middle, at, xerr=[middle - low, high - middle], fmt="o", markersize=3, label=way)
    axes.set_yticks(range(len(frame)), list(frame["name"]))
    axes.set(xlabel="Mbit/s (p25, p50, p75)", xscale="log")
    axes.legend()


def _draw_buckets(id_or_path: str | Path, loaded: Loaded, axes: Any) -> None:
    frame: Any = loaded.frame
    for row in frame.itertuples():
        burst_min = row.bucket_gbit * 1e3 / max(row.burst_mbps - row.sustained_mbps, 1e-9) / 60
        rates = [row.burst_mbps / 1e3, row.sustained_mbps / 1e3, row.sustained_mbps / 1e3]
        axes.step([0, burst_min, 60], rates, where="post", label=row.instance)
    axes.set(xlabel="time at full use from a full bucket (minutes)", ylabel="Gbit/s", ylim=(0, None))
    axes.legend()


DRAWERS: dict[str, Drawer] = {
    "link": _draw_link,
    "link_shape": _draw_link,
    "region_pair": _draw_regions,
    "flow_point": _draw_flows,
    "availability": _draw_availability,
    "length": _draw_lengths,
    "price": _draw_prices,
    "engine": _draw_engines,
    "access": _draw_access,
    "nic_bucket": _draw_buckets,
}
