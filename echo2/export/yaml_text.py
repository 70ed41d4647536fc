"""Plain data as YAML text: mappings, lists, texts, numbers, booleans and nothing else.

Texts are quoted as in JSON, which YAML reads alike, and those of several lines become block scalars. So no
YAML library is needed to write, and none can read it otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# YAML 1.1 reads these as truth values.
NOT_PLAIN = frozenset(["y", "yes", "n", "no", "true", "false", "on", "off", "null"])


def dumps(data: Mapping[str, Any], comments: tuple[str, ...] = ()) -> str:
    """A YAML document with comment lines above it. ValueError for what is not plain data."""
    return "\n".join([*(f"# {line}" for line in comments), *_mapping(data, 0)]) + "\n"


def _mapping(data: Mapping[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        plain = PLAIN_KEY.fullmatch(key) and key.lower() not in NOT_PLAIN
        name = key if plain else json.dumps(key)
        pad = "  " * depth
        if isinstance(value, Mapping) and value:
            lines += [f"{pad}{name}:", *_mapping(value, depth + 1)]
        elif isinstance(value, str) and "\n" in value:
            body = [f"{pad}  {line}".rstrip() for line in value.rstrip("\n").split("\n")]
            lines += [f"{pad}{name}: |", *body]
        else:
            lines.append(f"{pad}{name}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, Mapping) and not value:
        return "{}"
    raise ValueError(f"{value!r} is not plain data")
