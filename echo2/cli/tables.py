"""Tables that fit 100 columns. All printing for people goes through here; numbers keep their units."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from echo2.scenario import Scenario

WIDTH = 100


def console(stderr: bool = False) -> Console:
    """A console of at most 100 columns."""
    plain = Console(stderr=stderr)
    width = min(WIDTH, plain.width) if plain.is_terminal else WIDTH
    return Console(stderr=stderr, highlight=False, width=width)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], wide: int = -1) -> Table:
    """A table; all columns but the first and the `wide` one (counted from the end) are right-aligned."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=False
    )
    last = len(columns) + wide if wide < 0 else wide
    for i, column in enumerate(columns):
        flexible = i == last
        made.add_column(
            column,
            justify="left" if i == 0 or flexible else "right",
            no_wrap=not flexible,
            overflow="fold",
            header_style="dim",
        )
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


def lines(out: Console, title: str, texts: Iterable[str]) -> None:
    """A titled list of sentences."""
    listed = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
    )
    listed.add_column(no_wrap=True)
    listed.add_column(overflow="fold")
    for text in texts:
        listed.add_row("-", escape(text))
    if listed.row_count:
        out.print(listed)
        out.print()


def price_rows(built: Scenario, today: datetime.date | None = None) -> list[tuple[str, str, str, str]]:
    """(of what, USD/h, how old, from where) of every price in use."""
    now = today or datetime.date.today()
    rows = []
    for price in built.prices:
        days = price.age_days(now)
        age = f"{price.date[:10]}, {days} days old" if days is not None else "given"
        rows.append((price.what, f"{price.usd_per_h:.3f} per {price.unit}", age, price.source))
    return rows


def print_sources(out: Console, built: Scenario) -> None:
    """Prices with their age, and where the other numbers come from."""
    out.print(table("Prices (USD/h)", ["of", "price", "quoted", "source"], price_rows(built)))
    out.print()
    lines(out, "Where the numbers come from", built.notes)
