"""What a GPU-hour costs: a quantile of dated quotes, never a number without its source.

Called by the planner and the command line for pools that give no price of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.traces.catalogue import of_kind, open_trace
from echo2.traces.gpus import canonical
from echo2.traces.nearest import unknown
from echo2.traces.schema import MARKETS

CHEAPEST = "cheapest"


@dataclass(frozen=True)
class PriceQuote:
    """USD per GPU-hour: the `quantile` of `quotes` quotes dated `date`, and where they stand."""

    usd_per_gpu_hour: float
    date: str
    providers: tuple[str, ...]
    quotes: int
    source_urls: tuple[str, ...]
    market: str
    gpu: str = ""
    quantile: float = 0.5


def price(
    gpu: str,
    market: str = "spot",
    provider: str | None = None,
    region: str | None = None,
    quantile: float = 0.5,
    path: str | Path | None = None,
) -> PriceQuote:
    """The `quantile` (linear) of matching quotes of the newest table that has any.

    `market`: on_demand, spot, marketplace, or cheapest (the lowest quote over all three). `path`: your own
    price file instead of the shipped ones. Unknown GPU, market, provider or region: UserError with the
    nearest names.
    """
    import numpy as np

    if market not in (*MARKETS, CHEAPEST):
        raise unknown("market", market, (*MARKETS, CHEAPEST))
    if not 0 <= quantile <= 1:
        raise UserError(f"price quantile = {quantile:g} must be in 0..1; 0.5 is the median")
    name = canonical(gpu)
    rows = _newest(_tables(path), name, market, provider, region)
    if market == CHEAPEST:
        rows = rows[rows["usd_per_gpu_hour"] == rows["usd_per_gpu_hour"].min()]
    return PriceQuote(
        usd_per_gpu_hour=float(np.quantile(rows["usd_per_gpu_hour"].to_numpy(np.float64), quantile)),
        date=str(rows["date"].max()),
        providers=tuple(sorted(set(rows["provider"]))),
        quotes=len(rows),
        source_urls=tuple(sorted(set(rows["source_url"]))),
        market=str(rows["market"].iloc[0]) if market == CHEAPEST else market,
        gpu=name,
        quantile=quantile,
    )


def offers(gpu: str, path: str | Path | None = None) -> set[tuple[str, str]]:
    """(provider in lower case, market) of everybody who quotes a GPU; empty where nobody does."""
    name = canonical(gpu)
    found: set[tuple[str, str]] = set()
    for table in _tables(path):
        rows = table[table["gpu"].str.lower() == name.lower()]
        found |= set(zip(rows["provider"].str.lower(), rows["market"], strict=True))
    return found


def _tables(path: str | Path | None) -> list[Any]:
    """Price tables, newest first."""
    if path is not None:
        return [open_trace(path, "price").frame]
    frames = [loaded.frame for loaded in of_kind("price")]
    return sorted(frames, key=lambda frame: str(frame["date"].max()), reverse=True)


def _newest(tables: list[Any], gpu: str, market: str, provider: str | None, region: str | None) -> Any:
    """Matching rows of the newest table that has any; else the error names the first filter that fails."""
    import pandas as pd

    filters = [("gpu", gpu), ("provider", provider), ("region", region)]
    if market != CHEAPEST:
        filters.append(("market", market))
    for table in tables:
        rows = table
        for column, wanted in filters:
            if wanted is not None:
                rows = rows[rows[column].str.lower() == wanted.lower()]
        if not rows.empty:
            return rows
    rows = pd.concat(tables)
    passed: list[str] = []
    for column, wanted in filters:
        if wanted is None:
            continue
        kept = rows[rows[column].str.lower() == wanted.lower()]
        if kept.empty:
            among = f" (with {', '.join(passed)})" if passed else ""
            raise unknown(f"price{among}: {column}", wanted, [c for c in rows[column] if c])
        rows = kept
        passed.append(wanted)
    raise UserError(f"no one price table has {', '.join(passed)} together; leave one of them out")
