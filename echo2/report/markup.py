"""Pieces of HTML. All text that comes from a run passes through `esc`; nothing else builds markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def esc(value: object) -> Html:
    """A value as HTML text; `Html` stays as it is."""
    return value if isinstance(value, Html) else Html(escape(str(value), quote=True))


def tag(basis: str) -> Html:
    """The small label that says whether a number is planned, simulated or live."""
    return Html(f'<span class="tag {esc(basis.split()[0])}">{esc(basis)}</span>')


def table(head: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> Html:
    """A table that scrolls inside itself. Columns whose cells are numbers are set right by the style.

    `kind` "sortable" lets the page's script sort it by a click on a column's head.
    """
    top = "".join(f'<th scope="col">{esc(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    return Html(
        f'<div class="scroll"><table class="{esc(kind)}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: object) -> str:
    text = esc(cell)
    number = text.removeprefix("-")[:1].isdigit()
    return f'<td class="n">{text}</td>' if number else f"<td>{text}</td>"


def paragraph(text: object, kind: str = "") -> Html:
    """A paragraph."""
    return Html(f'<p class="{esc(kind)}">{esc(text)}</p>' if kind else f"<p>{esc(text)}</p>")


def bullets(items: Iterable[object]) -> Html:
    """A list."""
    return Html("<ul>" + "".join(f"<li>{esc(item)}</li>" for item in items) + "</ul>")


def section(anchor: str, title: str, *parts: object) -> Html:
    """A section with its heading; empty parts are left out."""
    inside = "".join(esc(part) for part in parts if part)
    return Html(f'<section id="{esc(anchor)}"><h2>{esc(title)}</h2>{inside}</section>')


def details(title: str, *parts: object) -> Html:
    """Something to unfold."""
    return Html(f"<details><summary>{esc(title)}</summary>{join(part for part in parts if part)}</details>")


def missing(name: str) -> Html:
    """Says what is not shown because a file is not there."""
    return paragraph(f"Not shown: this run directory has no {name}.", "missing")


def join(parts: Iterable[object]) -> Html:
    """Several pieces as one."""
    return Html("".join(esc(part) for part in parts))


def num(value: float | None, digits: int = 3) -> str:
    """A number for people: significant digits, thousands set apart."""
    if value is None or value != value:
        return "unknown"
    if value == 0:
        return "0"
    if abs(value) == float("inf"):
        return "without end"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as percent."""
    return "unknown" if share is None else f"{100 * share:.{digits}f} %"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return "unknown"
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f} s"
