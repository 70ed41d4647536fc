"""Network cards of cloud VMs (Uta et al.), a home line (WizardTim), and quartiles of home lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from conversion.output import Origin, Shipment

UTA = Origin(
    "github.com/alexandru-uta/cloud_network_variability_data",
    "bd2b03c9e5716a27f75a9099ee74a6748c3fe9be",
    "Apache-2.0",
)
WIZARDTIM = Origin("github.com/WizardTim/speedtest-data", "9b405c3", "CC BY 4.0")
ACCESS = Origin(
    "github.com/internetspeedtest-net/internetspeedtest-dataset",
    "6347be2267d916945091af947abfe845429d088b",
    "CC BY 4.0",
)
HOME_STEP_S = 1800.0
GAP_S = 5400.0
ABSURD_PING_MS = 10_000.0
AEST = pd.Timedelta(hours=10)
# A run whose burst rate is the sustained rate never emptied its bucket.
DRAINED = 1.05


def convert(raw: Path, out: Shipment) -> None:
    """Write links/ec2_nic, links/nic_buckets, links/home_* and access/."""
    _ec2(raw / "cloud-network-variability", out)
    _home(raw / "wizardtim-speedtest", out)
    _access(raw / "internetspeedtest-2026-08", out)


def _steps(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Rows at which something changes, and the last one: the same step function, shorter."""
    values = frame[columns].astype(object).where(frame[columns].notna(), "")
    changed = (values != values.shift()).any(axis=1)
    changed.iloc[-1] = True
    return frame[changed]


def _ec2(raw: Path, out: Shipment) -> None:
    samples = pd.read_csv(raw / "token_bucket_1s.csv.gz")
    runs = pd.read_csv(raw / "token_bucket_runs.csv").sort_values("run_id")
    parts = []
    for run in runs["run_id"]:
        rows = samples[samples["run_id"] == run].sort_values("t_s")
        end = rows.iloc[[-1]].assign(t_s=rows["t_s"].iloc[-1] + 1)
        rows = pd.concat([rows, end])
        silent = rows["throughput_mbps"] <= 0
        rate = rows["throughput_mbps"].where(~silent)
        frame = pd.DataFrame(
            {
                "trace_id": f"ec2-{run}",
                "t_s": rows["t_s"],
                "down_mbps": rate,
                "up_mbps": rate,
                "rtt_ms": np.nan,
                "ok": (~silent).astype(int),
            }
        )
        parts.append(_steps(frame, ["down_mbps", "ok"]))
    written = out.write("links/ec2_nic", pd.concat(parts))
    for run in runs.itertuples():
        start = pd.Timestamp(run.start_utc)
        span = (
            f"{start:%Y-%m-%dT%H:%M:%SZ}",
            f"{start + pd.Timedelta(seconds=run.duration_s):%Y-%m-%dT%H:%M:%SZ}",
        )
        notes = (
            f"iperf3 between two {run.instance} in {run.region}, 1 s samples, unchanged ones left out; one "
            "direction was measured (sender's up = receiver's down, so both columns). Burst "
            f"{run.burst_gbps} "
            f"Gbit/s lasted {run.burst_duration_s:.0f} s, then {run.sustained_gbps} (mostly not in the "
            "series)."
        )
        out.add(written, f"ec2-{run.run_id}", "link", UTA, span, "measured", "1", notes)
    _buckets(runs, out)


def _buckets(runs: pd.DataFrame, out: Shipment) -> None:
    drained = runs[runs["burst_gbps"] > DRAINED * runs["sustained_gbps"]].copy()
    over = drained["burst_gbps"] - drained["sustained_gbps"]
    drained["bucket_gbit"] = over * drained["burst_duration_s"]
    rows = []
    for instance, part in drained.groupby("instance"):
        rows.append(
            {
                "instance": instance,
                "burst_mbps": round(part["burst_gbps"].max() * 1e3, 1),
                "sustained_mbps": round(part["sustained_gbps"].median() * 1e3, 1),
                "bucket_gbit": round(part["bucket_gbit"].median(), 1),
                "bucket_gbit_min": round(part["bucket_gbit"].min(), 1),
                "bucket_gbit_max": round(part["bucket_gbit"].max(), 1),
                "runs": len(part),
            }
        )
    frame = pd.DataFrame(rows).sort_values("sustained_mbps")
    notes = (
        "By instance: highest burst rate, median sustained rate, median of (burst - sustained) x burst time. "
        "Some runs burst at 5.0 Gbit/s instead of 9.7: same bucket, twice as long. Runs that never drained "
        "left out."
    )
    span = ("2019-09-05", "2019-09-10")
    out.add(
        out.write("links/nic_buckets", frame),
        "ec2-nic-buckets",
        "nic_bucket",
        UTA,
        span,
        "derived",
        "",
        notes,
    )


def _home(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "residential_cable_brisbane_2017-2019.csv.gz")
    local = pd.to_datetime(rows["start_local_aest"])
    t_s = (local - local.iloc[0]).dt.total_seconds()
    dead = (rows["download_mbps"] <= 0) | (rows["upload_mbps"] <= 0)
    frame = pd.DataFrame(
        {
            "t_s": t_s,
            "down_mbps": rows["download_mbps"].where(~dead),
            "up_mbps": rows["upload_mbps"].where(~dead),
            "rtt_ms": rows["ping_ms"].where(~dead & (rows["ping_ms"] <= ABSURD_PING_MS)),
            "ok": (~dead).astype(int),
            "month": local.dt.strftime("%Y-%m"),
        }
    )
    frame = _with_gaps(frame)
    raw_line = frame.drop(columns="month")
    raw_line.insert(0, "trace_id", "home-brisbane-2017")
    start, end = (f"{t - AEST:%Y-%m-%dT%H:%M:%SZ}" for t in (local.iloc[0], local.iloc[-1]))
    span = (start, end)
    note = (
        "speedtest-cli every 30 min on one cable line in Brisbane (local time taken as UTC+10); a gap over "
        "1.5 h or a test at 0 is an ok = 0 row (collector or line, not told apart), pings over 10 s left out."
    )
    written = out.write("links/home_brisbane", raw_line)
    out.add(written, "home-brisbane-2017", "link", WIZARDTIM, span, "measured", "1800", note)
    _home_shape(frame, span, out)


def _home_shape(frame: pd.DataFrame, span: tuple[str, str], out: Shipment) -> None:
    usual = frame.groupby("month")[["down_mbps", "up_mbps"]].transform("median")
    shape = pd.DataFrame(
        {
            "trace_id": "home-brisbane-2017-shape",
            "t_s": frame["t_s"],
            "down_ratio": (frame["down_mbps"] / usual["down_mbps"]).round(4),
            "up_ratio": (frame["up_mbps"] / usual["up_mbps"]).round(4),
            "ok": frame["ok"],
        }
    )
    written = out.write("links/home_brisbane_shape", shape)
    note = (
        "home-brisbane-2017 divided by the median of its calendar month: a shape to put on another level. "
        "Two changes of the line's plan fall inside a month and show as 0.2 to 2.3 around days 200 and 530."
    )
    out.add(written, "home-brisbane-2017-shape", "link_shape", WIZARDTIM, span, "derived", "1800", note)


def _with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """An ok = 0 row half an hour after the last test before a gap, and a row that ends the trace."""
    after = frame["t_s"].shift(-1) - frame["t_s"]
    gaps = frame[after > GAP_S].copy()
    gaps["t_s"] += HOME_STEP_S
    gaps[["down_mbps", "up_mbps", "rtt_ms"]] = np.nan
    gaps["ok"] = 0
    end = frame.iloc[[-1]].copy()
    end["t_s"] += HOME_STEP_S
    return pd.concat([frame, gaps, end]).sort_values("t_s", kind="stable")


def _access(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "access_link_quantiles_2026-08.csv")
    columns = ["level", "name", "country"]
    columns += [f"{way}_{q}_mbps" for way in ("down", "up") for q in ("p25", "p50", "p75")]
    frame = rows[[*columns, "ping_p50_ms"]].assign(n=rows["down_n"])
    notes = (
        "Browser speed tests of visitors, August 2026, quartiles by country (30 tests or more) and provider "
        "(20 or more); n counts download tests; not a representative sample."
    )
    span = ("2026-08-01", "2026-08-31")
    written = out.write("access/home_lines_2026-08", frame)
    out.add(written, "access-2026-08", "access", ACCESS, span, "measured", "", notes)
