"""Region matrices (skyplane) and single transfers (hivemind-multi-cloud)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from conversion.output import Origin, Shipment

EPOCHS = {
    "2022-01-24": "00fe4c436c36207f34b93c1fb4194580e9f92e49",
    "2022-11-28": "1e920e4ad3bbb44c723c7182302887d1b415c597",
}
HIVEMIND = Origin(
    "github.com/cirquit/hivemind-multi-cloud", "654cc023d1ee5e049d8ed72ed66194e137fcc114", "MIT"
)
REGION_NOTES = (
    "64 TCP streams for 5 s between one large VM a region (AWS m5.8xlarge, GCP n2-standard-32, Azure "
    "D32_v5), receiver's rate: capacity of the pair, not of one flow. PREMIUM tier only. One zone was "
    "measured a GCP region, the zone letter is dropped. RTT pinged April 2022 (small VMs), egress list "
    "price May 2022, AWS gaps from the December 2022 price list; a pair not listed takes its source's median "
    "price to other clouds (or, inside AWS, to other regions); unknown stays empty."
)


def convert(raw: Path, out: Shipment) -> None:
    """Write regions/ and links/flows."""
    _regions(raw / "skyplane", out)
    _flows(raw / "hivemind-multi-cloud", out)


def _region(name: pd.Series) -> pd.Series:
    return name.str.replace(r"^(gcp:.+)-[a-f]$", r"\1", regex=True)


def _regions(raw: Path, out: Shipment) -> None:
    grids = pd.read_csv(raw / "throughput_grids.csv.gz")
    rtt = _round_trips(raw)
    egress = _egress(raw)
    for epoch, commit in EPOCHS.items():
        grid = grids[grids["measured_at"].str.startswith(epoch) & grids["success"]]
        frame = pd.DataFrame(
            {
                "epoch_utc": epoch,
                "src": _region(grid["src_region"]),
                "dst": _region(grid["dst_region"]),
                "src_tier": grid["src_tier"],
                "dst_tier": grid["dst_tier"],
                "capacity_mbps": grid["throughput_received_mbps"],
                "streams": grid["iperf3_connections"],
            }
        )
        pairs = list(zip(frame["src"], frame["dst"]))
        frame["rtt_ms"] = [rtt.get(pair) for pair in pairs]
        frame["egress_usd_per_gb"] = [egress.get((s, d), egress.get((s, _tariff(s, d)))) for s, d in pairs]
        frame = frame.sort_values(["src", "dst"])
        origin = Origin("github.com/skyplane-project/skyplane", commit, "Apache-2.0")
        written = out.write(f"regions/skyplane_{epoch}", frame)
        notes = REGION_NOTES
        if epoch > "2022-06":
            notes += " GCP to GCP is about 4 x the January rates: another VM type or tier, not drift."
        out.add(written, f"skyplane-{epoch}", "region_pair", origin, (epoch, epoch), "measured", notes=notes)


def _round_trips(raw: Path) -> dict[tuple[str, str], float]:
    rows = pd.read_csv(raw / "latency_2022-04.csv.gz")
    rows = rows[(rows["src_tier"] == "PREMIUM") & (rows["dst_tier"] == "PREMIUM")]
    keys = zip(_region(rows["src_region"]), _region(rows["dst_region"]))
    return dict(zip(keys, rows["avg_rtt_ms"]))


def _tariff(src: str, dst: str) -> str:
    """What traffic from `src` to `dst` is charged as, when the pair itself is not in the price list."""
    if src[:3] != dst[:3]:
        return "another cloud"
    return "another AWS region" if src.startswith("aws") else "not listed"


def _egress(raw: Path) -> dict[tuple[str, str], float]:
    """USD/GB by (src, dst) and by (src, tariff): a tariff's price is the median of the listed pairs."""
    rows = pd.read_csv(raw / "egress_cost_2022-05.csv.gz")
    rows["src"], rows["dest"] = _region(rows["src"]), _region(rows["dest"])
    price = dict(zip(zip(rows["src"], rows["dest"]), rows["egress_usd_per_gb"]))
    aws = pd.read_csv(raw / "aws_transfer_costs_2022-12.csv")
    aws = aws.assign(src="aws:" + aws["src"], dst="aws:" + aws["dst"])
    for src, dst, usd in aws.itertuples(index=False):
        price.setdefault((src, "another cloud" if dst == "aws:internet" else dst), usd)
    between = aws[aws["dst"] != "aws:internet"].groupby("src")["egress_usd_per_gb"].median()
    price.update({(src, "another AWS region"): usd for src, usd in between.items()})
    abroad = rows[rows["src"].str[:3] != rows["dest"].str[:3]].groupby("src")["egress_usd_per_gb"].median()
    price.update({(src, "another cloud"): usd for src, usd in abroad.items()})
    return price


def _site(host: str, experiment: str) -> str:
    """`cloud:continent` of one of the authors' host labels; it depends on the experiment (from the pings)."""
    for mark, site in (("lambda", "lambda:us"), ("aws", "aws:us"), ("azure", "azure:us")):
        if mark in host:
            return site
    for mark in ("rtx8000", "8xv100", "vm-gpu"):
        if mark in host:
            return f"onprem-{mark}:eu"
    if host.endswith("-us"):
        return "gcp:us"
    if host.endswith("-eu") or host.startswith("gc-t4-2-eu-") or experiment[-5:] in ("3-P.0", "3-R.0"):
        return "gcp:eu"
    number = int(host.rsplit("-", 1)[1])
    within_one_zone = "/1-0.2" in experiment
    if experiment.startswith("experiment-set-1") and not within_one_zone:
        if number >= 20:
            return "gcp:australia"
        if number >= 10:
            return "gcp:asia"
        if number >= (3 if experiment.endswith("/1-1") else 5):
            return "gcp:eu"
    return "gcp:us"


def _flows(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "iperf_points.csv")
    where = list(zip(rows["src_host"], rows["dst_host"], rows["experiment"]))
    frame = pd.DataFrame(
        {
            "src_site": [_site(s, e) for s, _, e in where],
            "dst_site": [_site(d, e) for _, d, e in where],
            "streams": rows["tcp_streams"],
            "throughput_mbps": rows["throughput_mbps"],
            "rtt_ms": rows["ping_ms"],
            "measured_at": rows["measured_at"],
            "experiment": rows["experiment"],
            "src_host": rows["src_host"],
            "dst_host": rows["dst_host"],
        }
    )
    written = out.write("links/hivemind_flows", frame)
    notes = (
        "iperf between hosts of geo-distributed training runs, `streams` TCP connections, 5 repetitions; "
        "sites as cloud:continent from the authors' host labels and the pings; measured_at is the source's "
        "local clock. experiment-set-4 repeats rows of 3-R.2."
    )
    span = (rows["measured_at"].min()[:10], rows["measured_at"].max()[:10])
    out.add(written, "hivemind-flows", "flow_point", HIVEMIND, span, "measured", notes=notes)
