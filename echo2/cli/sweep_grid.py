"""The points of a sweep: every combination of the grid's values, times the seeds.

All points are checked before the first one runs, so a bad value ends a sweep at once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echo2.cli.code_version import code_version
from echo2.config import Config, LoadedConfig
from echo2.config.load import checked
from echo2.config.model import MAX_SEED
from echo2.config.overrides import split_values
from echo2.config.toml import literal
from echo2.errors import UserError
from echo2.scenario.naming import resolved

MOST_POINTS = 100_000


@dataclass(frozen=True)
class Point:
    """One run of a sweep. `values` are its grid coordinates; `key` names configuration, traces and code."""

    index: int
    values: tuple[tuple[str, Any], ...]
    loaded: LoadedConfig
    key: str
    version: str

    @property
    def config(self) -> Config:
        """Its configuration, seed included."""
        return self.loaded.config


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
    table: dict[str, Any], path: Path, sets: Sequence[str], grid: Sequence[str], seeds: int = 1
) -> list[Point]:
    """All different points, the seed varying fastest. One that is not a valid configuration: UserError."""
    sides = axes(grid)
    number = seeds * math.prod(len(values) for _, values in sides)
    if number > MOST_POINTS:
        raise UserError(
            f"--grid: {number:,} points; must be <= {MOST_POINTS:,}; give fewer values or --seeds"
        )
    made: dict[tuple[str, str], Point] = {}
    version, digests = code_version(), Digests(path.parent)
    for values in itertools.product(*(side for _, side in sides)):
        named = tuple(zip((name for name, _ in sides), values))
        cells = [f"{name}={literal(value)}" for name, value in named]
        loaded = checked(table, path, sets, cells)
        if loaded.config.seed + seeds - 1 > MAX_SEED:
            raise UserError(f"--seeds {seeds}: seeds must be <= {MAX_SEED:,}; give a smaller first seed")
        for seed in range(loaded.config.seed, loaded.config.seed + seeds):
            mine = replace(loaded, config=loaded.config.replaced(seed=seed))
            point = Point(len(made), named, mine, key_of(mine.config, digests), version)
            made.setdefault((point.key, str(cells)), point)
    return list(made.values())


def key_of(config: Config, digests: Digests) -> str:
    """A digest of the whole configuration, of the user's own traces in it, and of the code."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    names = [config.rollout.lengths, config.network.epoch, config.learner.link_shape]
    names += [name for pool in config.pool for name in (pool.link_shape, pool.availability)]
    files = [digests.of(name) for name in names if name]
    return hashlib.sha256("\n".join([code_version(), text, *files]).encode()).hexdigest()[:24]


class Digests:
    """Digests of the content of trace files, each read once. Relative paths start at `base_dir`."""

    def __init__(self, base_dir: Path) -> None:
        self._base_dir = base_dir
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Of the file that a trace's name in the configuration means; empty for what is none, as an id."""
        path = resolved(name, self._base_dir).partition("#")[0]
        if path not in self._known:
            try:
                self._known[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            except OSError:
                self._known[path] = ""
        return self._known[path]
