"""The points of a sweep: every combination of the grid's values, times the seeds.

All points are checked before the first one runs, so a bad value ends a sweep at once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from echo2.cli.code_version import code_version
from echo2.config import Config, parse
from echo2.config.overrides import split_values
from echo2.config.toml import literal
from echo2.errors import UserError
from echo2.scenario.naming import resolved


@dataclass(frozen=True)
class Point:
    """One run of a sweep. `values` are its grid coordinates; `key` names configuration and code."""

    index: int
    values: tuple[tuple[str, Any], ...]
    config: Config
    base_dir: Path
    source: str
    key: str
    version: str


def axes(grid: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """`key=a,b,c` each as (key, values)."""
    found: list[tuple[str, list[Any]]] = []
    for text in grid:
        key, separator, values = text.partition("=")
        if not separator or not key.strip() or not values.strip():
            raise UserError(f"--grid {text!r}: must be key=a,b,c, for example run.staleness=2,4,8")
        if key.strip() in (name for name, _ in found):
            raise UserError(
                f"--grid {text!r}: {key.strip()} is given twice; put all its values in one --grid"
            )
        try:
            found.append((key.strip(), split_values(values)))
        except UserError as error:
            raise UserError(f"--grid {text!r}: {error}") from None
    return found


def points(
    table: dict[str, Any], path: Path, sets: Sequence[str], grid: Sequence[str], seeds: int | None
) -> list[Point]:
    """All points, the seed varying fastest. A point that is not a valid configuration: UserError."""
    sides = axes(grid)
    base = parse(table, str(path), sets) if not sides else None
    made: list[Point] = []
    version = code_version()
    for values in itertools.product(*(side for _, side in sides)):
        named = tuple(zip((name for name, _ in sides), values))
        overrides = [*sets, *(f"{name}={literal(value)}" for name, value in named)]
        config = base or _parsed(table, str(path), overrides, len(sets))
        for seed in range(config.seed, config.seed + (seeds or 1)):
            mine = config.replaced(seed=seed)
            made.append(
                Point(len(made), named, mine, path.parent, str(path), key_of(mine, path.parent), version)
            )
    return made


def _parsed(table: dict[str, Any], source: str, overrides: Sequence[str], sets: int) -> Config:
    """As `parse`, with a mistake in a value of the grid named as one."""
    try:
        return parse(table, source, overrides)
    except UserError as error:
        message = str(error)
        for text in overrides[sets:]:
            message = message.replace(f"--set {text}", f"--grid {text}")
            message = message.replace(f"--set {text!r}", f"--grid {text!r}")
        raise UserError(message) from None


def key_of(config: Config, base_dir: Path) -> str:
    """A digest of the whole configuration, of the user's own traces in it, and of the code."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    names = [config.rollout.lengths, config.network.epoch, config.learner.link_shape]
    names += [name for pool in config.pool for name in (pool.link_shape, pool.availability)]
    paths = sorted({resolved(name, base_dir).partition("#")[0] for name in names if name})
    files = [_digest(path) for path in paths]
    return hashlib.sha256("\n".join([code_version(), text, *files]).encode()).hexdigest()[:24]


@lru_cache(maxsize=1024)
def _digest(path: str) -> str:
    """Of the content of a file; empty for what is none, as the id of a shipped trace."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
