"""Writes a configuration as TOML: the resolved form, and the commented template of `echo2 init`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from echo2.config.model import Config

WIDTH = 100


def dumps(config: Config) -> str:
    """The resolved configuration, defaults filled in; reading it again gives the same `Config`."""
    return _document(config, comments=False)


def template(config: Config) -> str:
    """The same with each key explained, and keys without a value as comments."""
    return _document(config, comments=True)


def _document(config: Config, comments: bool) -> str:
    lines = list(_section(config, comments))
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            lines += ["", *_about(value, comments), f"[{name}]", *_section(value, comments)]
    for i, pool in enumerate(config.pool):
        # The meaning of the keys is said once, at the first pool.
        lines += ["", *_about(pool, comments and i == 0), "[[pool]]", *_section(pool, comments and i == 0)]
    return "\n".join(lines).strip() + "\n"


def _about(section: BaseModel, comments: bool) -> list[str]:
    return [f"# {' '.join((type(section).__doc__ or '').split())}"] if comments else []


def _section(section: BaseModel, comments: bool) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel) or (isinstance(section, Config) and name == "pool"):
            continue
        if comments:
            yield from _comment(field)
        if value is not None:
            yield f"{name} = {literal(value)}"
        elif comments:
            yield f"# {name} ="


def _comment(field: FieldInfo) -> list[str]:
    text = " ".join((field.description or "").split())
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def literal(value: Any) -> str:
    """A value in TOML's notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, BaseModel):
        pairs = ((name, getattr(value, name)) for name in type(value).model_fields)
        return "{ " + ", ".join(f"{name} = {literal(v)}" for name, v in pairs if v is not None) + " }"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {literal(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    return repr(value)
