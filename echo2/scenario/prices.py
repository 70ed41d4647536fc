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
    return _quoted("learner", "learner", learner, "price_usd_per_gpu_h")


def pool_price(pool: Pool) -> UsedPrice:
    """The price of a pool's workers: per worker if the user gave it, else per GPU."""
    if pool.price_usd_per_h is not None:
        return UsedPrice(f"pool {pool.name}", pool.price_usd_per_h, "worker", "", USER)
    return _quoted(f"pool {pool.name}", f"pool.{pool.name}", pool, "price_usd_per_h")


def _quoted(what: str, where: str, rented: Learner | Pool, own: str) -> UsedPrice:
    """The catalogue's price; a market or provider without a quote is named, with those that have one."""
    gpu, market, provider = rented.gpu, rented.market, rented.provider
    own = f"{where}.{own}"
    with key(f"{where}.gpu", gpu):
        try:
            offered = traces.offers(gpu)
        except UserError as error:
            raise UserError(f"{error}; or give its price, {own}") from None
        if not offered:
            raise UserError(f"no price of it is known; give {own}")
    markets = sorted({of for at, of in offered if at == provider.lower()})
    if not markets:
        known = sorted({at for at, of in offered if market in (of, traces.CHEAPEST)})
        have = f"{market} prices are known at {', '.join(known)}" if known else f"nobody quotes it {market}"
        raise UserError(f"{where}.provider = {provider!r}: no price of {gpu!r} there; {have}; or give {own}")
    if market not in (*markets, traces.CHEAPEST):
        raise UserError(
            f"{where}.market = {market!r}: no such price of {gpu!r} at {provider!r}; set market = "
            f"{' or '.join(repr(of) for of in markets)}, or give {own}"
        )
    quote = traces.price(gpu, market, provider)
    name = quote.providers[0] if quote.providers else provider
    count = f"median of {quote.quotes} quotes" if quote.quotes > 1 else "one quote"
    source = f"{quote.gpu} {quote.market.replace('_', ' ')} at {name}, {count}"
    return UsedPrice(what, quote.usd_per_gpu_hour, "GPU", quote.date, source, quote.source_urls)
