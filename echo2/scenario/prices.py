"""What machines cost: the user's price, or a median of dated quotes with its source."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from echo2 import traces
from echo2.config import Learner, Pool
from echo2.errors import UserError
from echo2.scenario.naming import key

USER = "the configuration"


@dataclass(frozen=True)
class UsedPrice:
    """A price in use: of what, USD/h per GPU or worker, since when, from whom.

    `date` is empty for a price of the user's own.
    """

    what: str
    usd_per_h: float
    unit: str
    date: str
    source: str
    urls: tuple[str, ...] = ()

    def age_days(self, today: datetime.date) -> int | None:
        """Days since the quote; None for a price of the user's own."""
        return (today - datetime.date.fromisoformat(self.date[:10])).days if self.date else None


def learner_price(learner: Learner) -> UsedPrice:
    """The learner's price per GPU-hour."""
    if learner.price_usd_per_gpu_h is not None:
        return UsedPrice("learner", learner.price_usd_per_gpu_h, "GPU", "", USER)
    with key("learner.provider", learner.provider):
        return _quoted("learner", learner.gpu, learner.market, learner.provider, "price_usd_per_gpu_h")


def pool_price(pool: Pool) -> UsedPrice:
    """The price of a pool's workers: per worker if the user gave it, else per GPU."""
    if pool.price_usd_per_h is not None:
        return UsedPrice(f"pool {pool.name}", pool.price_usd_per_h, "worker", "", USER)
    with key(f"pool.{pool.name}.provider", pool.provider):
        return _quoted(f"pool {pool.name}", pool.gpu, pool.market, pool.provider, "price_usd_per_h")


def _quoted(what: str, gpu: str, market: str, provider: str, own: str) -> UsedPrice:
    try:
        quote = traces.price(gpu, market, provider)
    except UserError as error:
        raise UserError(f"{error}; or give {own}") from None
    name = quote.providers[0] if quote.providers else provider
    count = f"median of {quote.quotes} quotes" if quote.quotes > 1 else "one quote"
    source = f"{quote.gpu} {quote.market.replace('_', ' ')} at {name}, {count}"
    return UsedPrice(what, quote.usd_per_gpu_hour, "GPU", quote.date, source, quote.source_urls)
