"""The JSON form of facts and decisions: one line each, stable to the byte.

Used by the run log of both worlds, by replay and by the live HTTP API. Floats are written with `repr`
precision, so a value survives the round trip exactly; keys keep the order of the dataclass fields, so the
same decision is the same bytes whatever the process or hash seed. Not-finite floats are refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from echo2.policy import decisions, facts

KINDS: dict[str, type] = {cls.__name__: cls for cls in (*get_args(facts.Fact), *get_args(decisions.Decision))}
Message = facts.Fact | decisions.Decision


class WireError(ValueError):
    """A line that is not a fact or decision of this version: names the field and the value."""


def dumps(message: Message) -> str:
    """One line of JSON without the newline."""
    try:
        return json.dumps(to_json(message), separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise WireError(f"{type(message).__name__} holds a number that is not finite: {message}") from error


def loads(line: str) -> Message:
    """The fact or decision of one line. Raises `WireError`."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise WireError(f"not JSON: {line[:80]!r} ({error})") from error
    return from_json(data)


@cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def to_json(message: Message) -> dict[str, Any]:
    """A dict with `kind` first, then the fields in their order."""
    cls: Any = type(message)
    out: dict[str, Any] = {"kind": cls.__name__}
    for name in _field_names(cls):
        value = getattr(message, name)
        out[name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return out


def from_json(data: object) -> Message:
    """The inverse of `to_json`; types are checked, unknown and missing fields refused."""
    if not isinstance(data, dict) or data.get("kind") not in KINDS:
        raise WireError(f"unknown kind: {str(data)[:120]!r}; known: {', '.join(sorted(KINDS))}")
    kind = data["kind"]
    fields = {key: value for key, value in data.items() if key != "kind"}
    message: Message = build(KINDS[kind], fields, kind)
    return message


def build(cls: type, data: dict[str, Any], where: str) -> Any:
    """A dataclass from JSON data; types are checked, unknown and missing fields refused."""
    converters = _converters(cls)
    if unknown := sorted(set(data) - set(converters)):
        raise WireError(f"{where} has no field {unknown[0]!r}; it has {', '.join(converters)}")
    values = {}
    for name, value in data.items():
        try:
            values[name] = converters[name](value, f"{where}.{name}")
        except TypeError as error:
            raise WireError(f"{where}.{name} = {value!r}: {error}") from error
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise WireError(f"{where}: {error}") from error


@cache
def _converters(cls: type) -> dict[str, Callable[[Any, str], Any]]:
    hints = get_type_hints(cls)
    return {field.name: _converter(hints[field.name]) for field in dataclasses.fields(cls)}


def _converter(hint: Any) -> Callable[[Any, str], Any]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return lambda value, where: build(hint, _expect(value, dict, where), where)
    if get_origin(hint) is tuple:
        item = _converter(get_args(hint)[0])
        return lambda value, where: tuple(item(v, where) for v in _expect(value, (list, tuple), where))
    if get_origin(hint) in (Union, types.UnionType):
        raise TypeError(f"no wire form for {hint}")
    if hint is float:
        return lambda value, where: _finite(float(_expect(value, (int, float), where)), where)
    if hint in (int, str, bool):
        return lambda value, where: _expect(value, hint, where)
    return lambda value, where: _expect(value, str, where)


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise WireError(f"{where} = {value}: expected a finite number")
    return value


def _expect(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = kind if isinstance(kind, tuple) else (kind,)
        raise WireError(f"{where} = {value!r}: expected {' or '.join(k.__name__ for k in names)}")
    return value
