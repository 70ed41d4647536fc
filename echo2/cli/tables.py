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


class _Console(Console):
    """Leaves a closed pipe (`| head`) to the entry point; rich would end with exit code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """A console of at most 100 columns."""
    plain = Console(stderr=stderr)
    width = min(WIDTH, plain.width) if plain.is_terminal else WIDTH
    return _Console(stderr=stderr, highlight=False, width=width)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], flexible: int | None = -1
) -> Table:
    """A table: the first column and the `flexible` one to the left, others right-aligned.

    The flexible one (the last unless said otherwise) takes what room is left, and is folded.
    """
    made = _plain(title)
    for i, column in enumerate(columns):
        folds = flexible is not None and i == flexible % len(columns)
        made.add_column(
            escape(column),
            justify="left" if i == 0 or folds else "right",
            no_wrap=not folds,
            overflow="fold",
            header_style="dim",
        )
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


def _plain(title: str, header: bool = True) -> Table:
    return Table(
        title=escape(title) or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=header,
    )


def lines(out: Console, title: str, texts: Iterable[str]) -> None:
    """A titled list of sentences."""
    listed = _plain(title, header=False)
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
