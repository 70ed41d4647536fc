"""The key reference of docs/configuration.md, made from the sections themselves.

`python -m echo2.config.reference` prints it; a test holds the page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from echo2.config.errors import limits_of
from echo2.config.model import Config
from echo2.config.sections import Pool, PriceChange
from echo2.config.toml import literal


def markdown() -> str:
    """One table a section: key, default, allowed, meaning."""
    lines = ["### top of the file", "", *_table(Config)]
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            lines += ["", f"### [{name}]", "", _about(section), "", *_table(section)]
    lines += ["", "### [[pool]]", "", _about(Pool), "", *_table(Pool)]
    lines += ["", "### price_changes of [sim]", "", _about(PriceChange), "", *_table(PriceChange)]
    return "\n".join(lines) + "\n"


def _table(section: type[BaseModel]) -> Iterator[str]:
    yield "| key | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, field in section.model_fields.items():
        if name == "pool" and section is Config:
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        meaning = " ".join((field.description or "").split())
        yield f"| `{name}` | {_default(field.default)} | {_allowed(field)} | {meaning} |"


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "needed"
    return "" if value is None else f"`{literal(value)}`"


def _allowed(field: Any) -> str:
    choices = [c for c in _choices(field.annotation) if isinstance(c, str)]
    if choices and choices != ["auto"]:
        return ", ".join(f"`{choice}`" for choice in choices)
    limits = limits_of(field)
    return f'"auto" or a number {limits}' if choices else limits


def _choices(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for inner in get_args(annotation):
            yield from _choices(inner)


def _about(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split())


if __name__ == "__main__":
    sys.stdout.write(markdown())
