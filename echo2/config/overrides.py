"""`--set key.path=value` and the axes of a sweep: changes to a table before it is checked.

A pool is addressed by name (`pool.spot.count`), by number (`pool.0.count`) or all of them (`pool.*.speed`).
"""

from __future__ import annotations

import copy
import datetime
import tomllib
from collections.abc import Sequence
from typing import Any

from echo2.errors import UserError
from echo2.traces.nearest import unknown

# Of two keys that exclude each other, the overridden one replaces the one of the file.
EITHER = (("rollout.tokens", "rollout.lengths"), ("rollout.lengths", "rollout.tokens"))


def apply(
    table: dict[str, Any], overrides: Sequence[str], option: str = "--set"
) -> tuple[dict[str, Any], dict[str, str]]:
    """A changed copy, and for each changed key path the option and text that changed it.

    `option` is where the overrides come from, for messages: `--set`, or `--grid` of a sweep.
    """
    if not overrides:
        return table, {}
    changed = copy.deepcopy(table)
    overridden: dict[str, str] = {}
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise UserError(f"{option} {text!r}: must be key.path=value, for example run.staleness=4")
        steps = key.strip().split(".")
        try:
            typed = toml_value(value)
        except UserError as error:
            raise UserError(f"{option} {text!r}: {error}") from None
        named = f"{option} {text}"
        for path in _set(changed, steps, typed, named):
            overridden[path] = named
    for path, other in EITHER:
        section, _, key = other.partition(".")
        if path in overridden and other not in overridden and isinstance(changed.get(section), dict):
            changed[section].pop(key, None)
    return changed, overridden


def toml_value(text: str) -> Any:
    """A value as TOML would type it; a bare word is a text."""
    text = text.strip()
    if not text:
        raise UserError('a value is missing; write "" for an empty text')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        # No key is a date; a text that looks like one (network.epoch) needs no quotes here.
        return text if isinstance(value, datetime.date | datetime.time) else value
    except (tomllib.TOMLDecodeError, RecursionError):
        if not set(text) & set("\"'[]{}\n#"):
            return text
        raise UserError(f"{text!r} is not a value of TOML; put texts in quotes, lists in [ ]") from None


def split_values(text: str) -> list[Any]:
    """`a,b,c` as values; commas inside brackets, braces and quotes do not separate."""
    parts, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    return [toml_value(part) for part in [*parts, text[start:]]]


def _set(table: dict[str, Any], steps: list[str], value: Any, named: str) -> list[str]:
    """Set the value at a path in place; returns the paths changed. `named`: the option, for messages."""
    if steps[0] == "pool" and len(steps) > 1:
        pools = table.get("pool", [])
        chosen = _pools(pools, steps[1], named)
        if len(steps) < 3:
            raise UserError(f"{named}: name a key of the pool, for example pool.{steps[1]}.count=8")
        for pool in chosen:
            _put(pool, steps[2:], value, named)
        return [".".join(["pool", str(pool.get("name", "")), *steps[2:]]) for pool in chosen]
    _put(table, steps, value, named)
    return [".".join(steps)]


def _pools(pools: Any, which: str, named: str) -> list[dict[str, Any]]:
    tables = [pool for pool in pools if isinstance(pool, dict)] if isinstance(pools, list) else []
    found = [pool for pool in tables if pool.get("name") == which]
    if which == "*":
        found = tables
    elif not found and which.isdigit() and int(which) < len(tables):
        found = [tables[int(which)]]
    if not found:
        names = [str(pool.get("name")) for pool in tables]
        raise unknown(f"{named}: pool", which, names, "pool.* means all of them")
    return found


def _put(table: dict[str, Any], steps: list[str], value: Any, named: str) -> None:
    for step in steps[:-1]:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise UserError(f"{named}: {step!r} is not a section; keys look like run.staleness")
    table[steps[-1]] = value
