"""Makes one line of what pydantic says: file, key path, value, allowed range, fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from echo2.config.model import Config
from echo2.errors import UserError

UNITS = {
    "_mbps": "Mbit/s (10^6 bit/s)",
    "_gb": "GB (10^9 bytes)",
    "_usd_per_gb": "USD per GB (10^9 bytes)",
    "_usd_per_gpu_h": "USD per GPU and hour",
    "_usd_per_h": "USD per hour",
    "tokens_per_s": "tokens per second",
    "_per_h": "events per hour",
    "_s": "seconds",
}
WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "finite_number": "a finite number",
    "model_type": "a section",
    "tuple_type": "a list",
}
LONGEST_VALUE = 60


def as_user_error(
    error: ValidationError, source: str, overridden: Mapping[str, str], table: dict[str, Any]
) -> UserError:
    """The first mistake as a `UserError`, unknown keys before others, with how many more there are.

    `overridden` maps a key path to the option (`--set ...`) that set it, which is then blamed.
    """
    found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path, text = _line(found[0], table)
    more = f" (and {len(found) - 1} more mistakes)" if len(found) > 2 else ""
    more = " (and 1 more mistake)" if len(found) == 2 else more
    return UserError(f"{_culprit(path, text, overridden) or source}: {text}{more}")


def blamed(message: str, source: str, overridden: Mapping[str, str]) -> str:
    """A message that begins with a key path, after the option that set that key, or else the source."""
    path = re.split(r" = | is missing", message, maxsplit=1)[0]
    where = _culprit(path, message, overridden) or source
    return f"{where}: {message}" if where else message


def _culprit(path: str, message: str, overridden: Mapping[str, str]) -> str:
    """The option that set this key, a part of it, or a key that the message speaks of; empty if none did."""
    if path in overridden:
        return overridden[path]
    for at, option in overridden.items():
        if f"{at}.".startswith(f"{path}.") or f"{path}.".startswith(f"{at}."):
            return option
    return next((option for at, option in overridden.items() if f"{at} = " in message), "")


def dotted(location: tuple[int | str, ...], data: Any) -> str:
    """A key path in which a pool goes by its name where it has one: pool.spot.count."""
    parts: list[str] = []
    at = data
    for step in location:
        try:
            at = at[step]
        except (KeyError, IndexError, TypeError):
            at = None
        name = at.get("name") if isinstance(step, int) and isinstance(at, dict) else None
        parts.append(name if isinstance(name, str) else str(step))
    return ".".join(parts)


def _line(detail: ErrorDetails, table: dict[str, Any]) -> tuple[str, str]:
    """(key path, what is wrong with it)."""
    location = detail["loc"]
    if detail["type"] == "value_error":
        message = str(detail["ctx"]["error"])
        if not location:
            return message.split(" = ", 1)[0], message
        path = dotted(location, table)
        return path, f"{path} = {_shown(detail['input'])}: {message}"
    path = dotted(location, table)
    if detail["type"] == "extra_forbidden":
        return path, _unknown_key(location, path)
    if detail["type"] == "missing":
        return path, f"{path} is missing; {_about(location)}"
    return path, f"{path} = {_shown(detail['input'])}: {_range(detail, location)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."


def _range(detail: ErrorDetails, location: tuple[int | str, ...]) -> str:
    """What would be allowed, and in which unit."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        return _choice(str(detail["input"]), str(context["expected"]))
    if kind == "string_too_short":
        return "must not be empty"
    limits = _limits(location)
    unit = _unit(str(location[-1]))
    wanted = WANTED.get(kind, "")
    written = " without a unit" if isinstance(detail["input"], str) and unit else ""
    text = f"must be {wanted} {limits}".rstrip() if wanted else f"must be {limits}"
    if location == ("pool",):
        return f"{text}; begin each pool with [[pool]]"
    if unit:
        return f"{text}{written}; give {unit}"
    least = context.get("ge")
    return text + (f"; the least is {least:g}" if kind == "greater_than_equal" and least is not None else "")


def _choice(value: str, expected: str) -> str:
    names = re.findall(r"'([^']*)'", expected)
    close = difflib.get_close_matches(value, names, n=1)
    return f"must be {expected}" + (f"; did you mean {close[0]!r}?" if close else "")


def _unit(key: str) -> str:
    return next((unit for suffix, unit in UNITS.items() if key.endswith(suffix)), "")


def _field(location: tuple[int | str, ...]) -> Any:
    """The pydantic field a path leads to, or None."""
    model: type[BaseModel] = Config
    field = None
    for step in location:
        if isinstance(step, int):
            continue
        field = model.model_fields.get(str(step))
        if field is None:
            return None
        inner = _section_of(field.annotation)
        if inner is not None:
            model = inner
    return field


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _section_of(arg))), None)


def _limits(location: tuple[int | str, ...]) -> str:
    field = _field(location)
    return limits_of(field) if field is not None else ""


def limits_of(field: Any) -> str:
    """The allowed range of a number, from the field's own constraints; empty where there is none."""
    low = high = ""
    for item in _constraints(field):
        for name, sign in (("gt", ">"), ("ge", ">=")):
            if (value := getattr(item, name, None)) is not None:
                low = f"{sign} {_number(value)}"
        if (value := getattr(item, "le", None)) is not None:
            high = f"<= {_number(value)}"
    return " and ".join(part for part in (low, high) if part)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:g}"


def _constraints(field: Any) -> list[Any]:
    found = list(field.metadata)
    for arg in get_args(field.annotation):
        for item in getattr(arg, "__metadata__", ()):
            found += getattr(item, "metadata", [item])
    return found


def _about(location: tuple[int | str, ...]) -> str:
    field = _field(location)
    about = " ".join((field.description or "").split()) if field is not None else ""
    return f"it is needed: {about}" if about else "it is needed"


def _unknown_key(location: tuple[int | str, ...], path: str) -> str:
    """Names the nearest key of the same section, or the section that has the key."""
    key, above = str(location[-1]), path.split(".")[:-1]
    parent = _section_of(_field(location[:-1]).annotation) if location[:-1] else Config
    known = list(parent.model_fields) if parent is not None else []
    where = f"section [{'.'.join(above)}]" if above else "the top of the file"
    homes = [name for name, field in Config.model_fields.items()
             if (section := _section_of(field.annotation)) and key in section.model_fields]  # fmt: skip
    if homes and not above:
        return f"unknown key {key!r} in {where}; it belongs in [{homes[0]}]"
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    close += [name for name in known if not close and name.rsplit("_", 1)[0] == key.rsplit("_", 1)[0]]
    if close:
        return f"unknown key {key!r} in {where}; did you mean {close[0]!r}?"
    if homes:
        return f"unknown key {key!r} in {where}; it belongs in [{homes[0]}]"
    return f"unknown key {key!r} in {where}; known: {', '.join(known)}"
