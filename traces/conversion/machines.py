"""Spot availability (Bamboo, FrontierCS) and token counts (ServeGen, Azure)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from conversion.output import Origin, Shipment

BAMBOO = Origin("github.com/uclasystem/bamboo", "80809293289419d40a870b4a9ccb8df0082ce3fb", "MIT")
FRONTIERCS = Origin("github.com/FrontierCS/Frontier-CS", "4d508c1954766e0dda0347e1f14946978ef6b761", "MIT")
SERVEGEN = Origin("github.com/alibaba/ServeGen", "f891d1189eb32b3868dfc443800c4150548c282a", "Apache-2.0")
AZURE = Origin("github.com/Azure/AzurePublicDataset", "b469a113cedca53ddc3bdea71a143dc4b7d8700c", "CC BY 4.0")
POLL_S = 60.0
COLUMNS = ["trace_id", "start_s", "end_s", "pool", "node", "alive"]
NODE_TRACES = (
    ("bamboo-p3", "aws_p3_events.csv", "aws p3 (V100), one zone"),
    ("bamboo-g4dn", "aws_g4dn_events.csv", "aws g4dn (T4), one zone"),
)
COUNT_TRACES = (
    ("bamboo-a100", "gcp_a100x1_us-east1-b_counts.csv", "gcp a100 us-east1-b", "2021-12-11"),
    ("bamboo-v100", "gcp_v100x1_us-east1-c_counts.csv", "gcp v100 us-east1-c", "2021-12-10"),
)
POPULATIONS = ("all", "client_35", "client_66", "client_48")
EXACT_TOKENS = 256
BIN_WIDTH = 1.015


def convert(raw: Path, out: Shipment) -> None:
    """Write spot/ and lengths/."""
    _bamboo_nodes(raw / "bamboo", out)
    _bamboo_counts(raw / "bamboo", out)
    _frontiercs(raw / "frontiercs-spot-availability", out)
    _servegen(raw / "servegen", out)
    _azure(raw / "azure-llm-inference-2023", out)


def _bamboo_nodes(raw: Path, out: Shipment) -> None:
    parts = []
    for trace_id, file, pool in NODE_TRACES:
        events = pd.read_csv(raw / file)
        end = events["t_s"].max() + POLL_S
        since: dict[str, float] = {}
        rows = []
        for t_s, event, node in zip(events["t_s"], events["event"], events["node"]):
            if event == "add":
                since[node] = t_s
            else:
                rows.append((trace_id, since.pop(node), t_s, pool, node, 1))
        rows += [(trace_id, start, end, pool, node, 1) for node, start in since.items()]
        parts.append(pd.DataFrame(rows, columns=COLUMNS).sort_values(["start_s", "end_s", "node"]))
    written = out.write("spot/bamboo_nodes", pd.concat(parts))
    for trace_id, _, pool in NODE_TRACES:
        notes = (
            f"Spot VMs of {pool}, one row a VM; the trace ends one poll (60 s) after its last event. Day not "
            "stated."
        )
        out.add(written, trace_id, "availability", BAMBOO, ("", ""), "measured", "60", notes)


def _bamboo_counts(raw: Path, out: Shipment) -> None:
    parts = []
    for trace_id, file, pool, _ in COUNT_TRACES:
        polls = pd.read_csv(raw / file)
        times = np.append(polls["t_s"].to_numpy(float), polls["t_s"].iloc[-1] + POLL_S)
        frame = pd.DataFrame(
            {
                "trace_id": trace_id,
                "start_s": times[:-1],
                "end_s": times[1:],
                "pool": pool,
                "node": "",
                "alive": polls["alive"],
            }
        )
        run = (frame["alive"] != frame["alive"].shift()).cumsum()
        parts.append(frame.groupby(run).agg({**dict.fromkeys(COLUMNS, "first"), "end_s": "last"}))
    written = out.write("spot/bamboo_counts", pd.concat(parts)[COLUMNS])
    for trace_id, _, pool, day in COUNT_TRACES:
        notes = (
            f"Number of spot VMs alive in {pool} by poll; a VM lost and replaced between two polls is not "
            "seen."
        )
        out.add(written, trace_id, "availability", BAMBOO, (day, ""), "measured", "60", notes)


def _frontiercs(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "spot_availability_rle.csv.gz")
    start = rows["start_s"].min()
    names = {s: "frontiercs-" + s.replace("_", "-") for s in rows["series"]}
    frame = pd.DataFrame(
        {
            "trace_id": rows["series"].map(names),
            "start_s": rows["start_s"] - start,
            "end_s": rows["end_s"] - start,
            "pool": rows["series"],
            "node": "",
            "alive": rows["available"],
        }
    ).sort_values(["trace_id", "start_s"])
    written = out.write("spot/frontiercs", frame)
    for series in sorted(names):
        notes = (
            f"Whether a spot VM of {series} (zone, card, cards a VM) could be had, 600 s steps, AWS "
            "us-west-2, "
            "October/November 2022: one slot, 0 or 1."
        )
        out.add(
            written,
            names[series],
            "availability",
            FRONTIERCS,
            ("2022-10", "2022-11"),
            "measured",
            "600",
            notes,
        )


def _servegen(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "deepseek_r1_token_histograms.csv.gz")
    rows = rows[rows["population"].isin(POPULATIONS)].copy()
    rows["population"] = "r1-" + rows["population"]
    order = ["population", "kind", "tokens_lo"]
    written = out.write("lengths/deepseek_r1", rows.sort_values(order))
    for population in POPULATIONS:
        notes = (
            "Tokens of production DeepSeek-R1 requests (reasoning included), one day, "
            + ("73 clients" if population == "all" else population)
            + "; exact bins up to 256 tokens, then 1.5 % wide. Single requests, not rollouts of one prompt."
        )
        out.add(written, f"r1-{population}", "length", SERVEGEN, ("", ""), "measured", "", notes)


def _azure(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "azure_conv_2023.csv.gz")
    frames = [
        _histogram("azure-conv", "input", rows["context_tokens"]),
        _histogram("azure-conv", "output", rows["generated_tokens"]),
    ]
    written = out.write("lengths/azure_conv_2023", pd.concat(frames))
    notes = (
        "19,366 chat requests of one hour, binned here (exact to 256, then 1.5 %): short answers, a contrast."
    )
    span = ("2023-11-16", "2023-11-16")
    out.add(written, "azure-conv", "length", AZURE, span, "measured", "", notes)


def _histogram(population: str, kind: str, tokens: pd.Series) -> pd.DataFrame:
    low = [*range(EXACT_TOKENS + 1)]
    while low[-1] <= tokens.max():
        low.append(max(low[-1] + 1, int(low[-1] * BIN_WIDTH)))
    counts, _ = np.histogram(tokens, bins=np.array(low) - 0.5)
    frame = pd.DataFrame(
        {
            "population": population,
            "kind": kind,
            "tokens_lo": low[:-1],
            "tokens_hi": np.array(low[1:]) - 1,
            "mass": counts / counts.sum(),
        }
    )
    return frame[frame["mass"] > 0].round({"mass": 10})
