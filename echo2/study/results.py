"""Finished runs, read back: the rows of a sweep's table, or run directories (simulated or live).

Called by `echo2 pareto` and `echo2 compare`. What is read was perhaps edited or cut off since: everything
that is missing or not a number is one UserError that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.study.intervals import DONE, Interval, t_interval

FORMATS = (".parquet", ".csv")
MEASURES = ("steps", "wall_s", "steps_per_s", "learner_utilisation", "step_cost_usd", "staleness_mean")
COLUMNS = ("seed", "status", "version", "config", *MEASURES)
# More of anything (USD, seconds) is a damaged number, and would overflow in a variance.
MOST = 1e15


@dataclass(frozen=True)
class Run:
    """One finished run. `config` maps key paths (`run.staleness`, `pool.NAME.count`) to values, without the
    seed and the name; `row` is all that is known of it; `where` says where it was read."""

    where: str
    world: str
    seed: int
    version: str
    config: Mapping[str, Any]
    measures: Mapping[str, float]
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The runs of one configuration, one for each seed."""

    config: Mapping[str, Any]
    runs: tuple[Run, ...]

    def interval(self, measure: str) -> Interval:
        """Mean and 95 % interval of a measure over the seeds."""
        return t_interval([run.measures[measure] for run in self.runs])

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(sorted(run.seed for run in self.runs))


def read_sweep(path: Path) -> list[Run]:
    """The finished runs of a sweep's table. None, or a table that is not one of ours: UserError."""
    rows = _rows(path)
    runs = [_run(row, f"{path}: row {i + 1}") for i, row in enumerate(rows) if row["status"] in DONE]
    if not runs:
        what = "holds no row" if not rows else f"none of its {len(rows)} rows is a finished run"
        raise UserError(f"{path}: {what}; run `echo2 sweep CONFIG --out {path}` first")
    return runs


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by configuration, in the order of their first. A seed that came twice counts once."""
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(run.config, sort_keys=True, default=str), {})[run.seed] = run
    return [Group(next(iter(same.values())).config, tuple(same.values())) for same in found.values()]


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The key paths in which configurations differ, in the order of the file."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration by key paths, pools by their names; without the seed, the name and what is not set."""
    return {key: value for key, value in _flat(config, "") if key not in ("seed", "name")}


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif key == "pool" and not prefix:
            for pool in value:
                yield from _flat(pool, f"pool.{pool['name']}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _rows(path: Path) -> list[dict[str, Any]]:
    import pandas as pd

    if path.suffix not in FORMATS:
        raise UserError(f"{path}: must be a table of `echo2 sweep`, {' or '.join(FORMATS)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file; `echo2 sweep CONFIG --out {path}` writes one")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(f"{path}: Parquet needs pyarrow; install echo2[parquet], or give a .csv")
    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError) as error:
        said = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: cannot be read as a table ({said}); was it cut off?") from None
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise UserError(
            f"{path}: has no column {', '.join(missing)}; give a table as `echo2 sweep` writes it"
        )
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def _run(row: Mapping[str, Any], where: str) -> Run:
    try:
        config = json.loads(row["config"])
        settings, seed = flat(config), int(config["seed"])
        settings["run.steps"]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{where}: its config is not a configuration; was the table edited?") from None
    return Run(where, "simulated", seed, str(row["version"]), settings, measures_of(row, where), row)


def measures_of(row: Mapping[str, Any], where: str) -> dict[str, float]:
    """The measures of a row or summary, each 0 to `MOST`. Anything else: UserError."""
    found = {}
    for name in MEASURES:
        try:
            found[name] = float(row[name])
        except (KeyError, TypeError, ValueError):
            found[name] = math.nan
        if not 0 <= found[name] <= MOST:
            raise UserError(
                f"{where}: {name} = {row.get(name)!r} must be a finite number of 0 to {MOST:g}; run it again"
            )
    return found
