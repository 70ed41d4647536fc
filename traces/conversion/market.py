"""GPU prices: gpu-pricing (May 2026), and the cloud table of Full Stack Deep Learning with its history."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from conversion.output import Origin, Shipment
from echo2.traces.gpus import canonical, is_known

GPU_PRICING = Origin("github.com/tardellirs/gpu-pricing", "8f09a68030967f5c269c304493abf0911dd19858", "MIT")
FSDL = Origin("github.com/the-full-stack/website", "2bddc6d52544dc258e7e34396c6958377f72816b", "MIT")
FSDL_URL = (
    "https://github.com/the-full-stack/website/blob/2bddc6d52544dc258e7e34396c6958377f72816b/docs/cloud-gpus/"
    "cloud-gpus.csv"
)
FSDL_DATE = "2025-03-07"
COLUMNS = ["date", "provider", "region", "gpu", "gpus", "vram_gb", "market", "usd_per_gpu_hour", "source_url"]
MARKETPLACE_TIERS = ("marketplace", "community")
# Instance price / number of GPUs must agree with the table's own price per GPU within this factor.
AGREE = 1.25
LEAST_USD = 0.02


def convert(raw: Path, out: Shipment) -> None:
    """Write prices/."""
    _quotes(raw / "gpu-pricing-2026-05", out)
    _clouds(raw / "fsdl-cloud-gpus-2025-03", out)


def _tidy(frame: pd.DataFrame, extra: list[str]) -> pd.DataFrame:
    frame = frame[[*COLUMNS, *extra]]
    return frame.sort_values(
        [*COLUMNS[:2], "gpu", "market", "usd_per_gpu_hour", "gpus", *extra], kind="stable"
    )


def _quotes(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "offerings.csv")
    serverless = (rows["provider_id"] == "runpod") & rows["is_spot"]
    sound = rows["gpu_model"].map(is_known) & ~serverless
    dear = (rows["vram_gb"] < 16) | (rows["price_usd_hour"] >= LEAST_USD)
    kept = rows[sound & dear]
    market = pd.Series("on_demand", index=kept.index)
    market[kept["is_spot"]] = "spot"
    market[kept["tier"].isin(MARKETPLACE_TIERS)] = "marketplace"
    frame = pd.DataFrame(
        {
            "date": kept["collected_at"],
            "provider": kept["provider_id"],
            "region": "",
            "gpu": [canonical(g, v) for g, v in zip(kept["gpu_model"], kept["vram_gb"])],
            "gpus": 1,
            "vram_gb": kept["vram_gb"],
            "market": market,
            "usd_per_gpu_hour": kept["price_usd_hour"],
            "source_url": kept["source_url"],
            "tier": kept["tier"],
            "listed_as": kept["gpu_model"],
        }
    )
    written = out.write("prices/quotes_2026-05", _tidy(frame, ["tier", "listed_as"]))
    notes = (
        f"{len(frame)} of {len(rows)} single-GPU quotes of 21 providers. tier is the provider's word: "
        "marketplace "
        "and community count as marketplace, other interruptible ones as spot, the rest as on_demand. Left "
        "out: "
        f"{int(serverless.sum())} runpod rows marked spot (above its on-demand price, serverless) and "
        f"{int((~rows['gpu_model'].map(is_known)).sum())} cards with altered memory."
    )
    span = ("2026-05-24", "2026-05-24")
    out.add(written, "prices-2026-05", "price", GPU_PRICING, span, "measured", "", notes)


def _clouds(raw: Path, out: Shipment) -> None:
    table = pd.read_csv(raw / "cloud_gpus.csv").assign(first_seen=FSDL_DATE, last_seen=FSDL_DATE)
    table["vram_gb"] = table["gpu_ram_gb"] / table["gpus"]
    frame, left = _by_market(table, ["instance"])
    written = out.write("prices/clouds_2025-03", frame)
    notes = (
        "Instance types of 18 clouds incl. AWS, GCP and Azure, on demand and (where given) spot, hand-kept; "
        "price "
        f"= instance price / GPUs. {left} rows left out where that is more than 25 % off the table's own "
        "price per GPU."
    )
    out.add(written, "prices-clouds-2025-03", "price", FSDL, (FSDL_DATE, FSDL_DATE), "measured", "", notes)
    history = pd.read_csv(raw / "price_history.csv")
    history["vram_gb"] = pd.to_numeric(history["gpu_type"].str.extract(r"\((\d+)")[0])
    history = history[history["last_seen"] < FSDL_DATE]
    frame, left = _by_market(history, ["last_seen"])
    written = out.write("prices/history_2022-2025", frame)
    notes = (
        "Quotes that stood in earlier versions of the table of prices-clouds-2025-03: date is the first "
        "version "
        f"with the quote, last_seen the last. {left} rows left out (typing errors, or a range of GPU counts)."
    )
    span = (str(history["first_seen"].min()), str(history["last_seen"].max()))
    out.add(written, "prices-history-2022", "price", FSDL, span, "measured", "", notes)


def _by_market(table: pd.DataFrame, extra: list[str]) -> tuple[pd.DataFrame, int]:
    """One row a market from rows with an on-demand and a spot column; (frame, rows left out)."""
    gpus = pd.to_numeric(table["gpus"], errors="coerce")
    each = table["on_demand_usd_hour"] / gpus
    ratio = each / table["per_gpu_usd_hour"]
    sound = ratio.between(1 / AGREE, AGREE) & table["gpu_type"].map(is_known) & (each >= LEAST_USD)
    rows, gpus = table[sound], gpus[sound].astype(int)
    parts = []
    for market, column in (("on_demand", "on_demand_usd_hour"), ("spot", "spot_usd_hour")):
        part = pd.DataFrame(
            {
                "date": rows["first_seen"],
                "provider": rows["cloud"],
                "region": "",
                "gpu": [canonical(g) for g in rows["gpu_type"]],
                "gpus": gpus,
                "vram_gb": rows["vram_gb"],
                "market": market,
                "usd_per_gpu_hour": (rows[column] / gpus).round(4),
                "source_url": FSDL_URL,
                **{name: rows[name] for name in extra},
            }
        )
        parts.append(part[part["usd_per_gpu_hour"] >= LEAST_USD])
    return _tidy(pd.concat(parts), extra), int((~sound).sum())
