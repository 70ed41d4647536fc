"""What `echo2 compare` is given: a sweep's table with a choice of rows, a run directory, or a folder of them.

sweep.csv:run.staleness=4,kappa=2     the rows of one configuration
runs/first                            one run, simulated or live
runs                                  all runs in it: one configuration with several seeds
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo2.config.overrides import toml_value
from echo2.errors import UserError
from echo2.report.record import read_run
from echo2.study.results import FORMATS, Group, Run, flat, grouped, measures_of, read_sweep, varying
from echo2.traces.nearest import unknown

MOST_SAID = 6


def select(text: str) -> Group:
    """The runs of one configuration that `text` names. None, or several configurations: UserError."""
    path, conditions = _parts(text)
    if not text.strip():
        raise UserError(f"{text!r}: must be a sweep's table or a run directory; see `echo2 compare --help`")
    if not path.exists() and path.suffix not in FORMATS:
        raise UserError(
            f"{text}: there is no such file or folder; must be a table of `echo2 sweep` "
            f"({' or '.join(FORMATS)}) or a run directory"
        )
    runs = _from_folder(path, text) if path.is_dir() else read_sweep(path)
    for key, wanted in conditions:
        runs = _matching(runs, key, wanted, text)
    groups = grouped(runs)
    if len(groups) > 1:
        keys = varying([group.config for group in groups])
        said = "; ".join(f"{key}={_values([g.config.get(key) for g in groups])}" for key in keys[:3])
        raise UserError(
            f"{text}: {len(groups)} configurations, must be one; choose with {path}:KEY=VALUE,... of {said}"
        )
    return groups[0]


def _parts(text: str) -> tuple[Path, list[tuple[str, Any]]]:
    if Path(text).exists() or ":" not in text:
        return Path(text), []
    name, _, rest = text.rpartition(":")
    conditions = []
    for part in rest.split(","):
        key, sign, value = part.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise UserError(f"{text}: {part!r} must be KEY=VALUE, for example {name}:run.staleness=4")
        try:
            conditions.append((key.strip(), toml_value(value)))
        except UserError as error:
            raise UserError(f"{text}: {error}") from None
    return Path(name), conditions


def _matching(runs: Sequence[Run], key: str, wanted: Any, text: str) -> list[Run]:
    known = dict.fromkeys(name for run in runs for name in (*run.config, *run.row))
    if key not in known and key != "seed":
        raise unknown(f"{text}: key", key, known, "keys are columns of the table or of the configuration")
    found = [run for run in runs if _same(_value(run, key), wanted)]
    if not found:
        has = _values([_value(run, key) for run in runs])
        raise UserError(f"{text}: no finished run has {key} = {wanted!r}; it has {has}")
    return found


def _value(run: Run, key: str) -> Any:
    if key == "seed":
        return run.seed
    return run.config[key] if key in run.config else run.row.get(key)


def _same(value: Any, wanted: Any) -> bool:
    """Also across a table's types: 4 and 4.0, a list and its text."""
    return bool(value == wanted) or str(value) == str(wanted)


def _values(values: Sequence[Any]) -> str:
    texts = list(dict.fromkeys("none" if value is None else str(value) for value in values))
    more = f" and {len(texts) - MOST_SAID} more" if len(texts) > MOST_SAID else ""
    return ", ".join(texts[:MOST_SAID]) + more


def _from_folder(folder: Path, text: str) -> list[Run]:
    if (folder / "summary.json").is_file():
        return [_from_directory(folder)]
    inside = sorted(path.parent for path in folder.glob("*/summary.json"))
    if not inside:
        raise UserError(
            f"{text}: holds no summary.json, nor does a folder in it; `echo2 simulate CONFIG --out DIR` or "
            "`echo2 train` write run directories"
        )
    return [_from_directory(path) for path in inside]


def _from_directory(folder: Path) -> Run:
    record = read_run(folder)
    if not record.config_text:
        raise UserError(f"{folder}: holds no config.toml, so it cannot be said what was run")
    config = tomllib.loads(record.config_text)
    if not record.summary.get("complete", False):
        raise UserError(f"{folder}: the run did not finish; finish it, or give another")
    stale = record.summary.get("staleness")
    row = {**record.summary, "staleness_mean": stale.get("mean") if isinstance(stale, dict) else None}
    return Run(
        where=str(folder),
        world=record.world,
        seed=record.seed if isinstance(record.seed, int) else 0,
        version=str(record.summary.get("version", "")),
        config=flat(config),
        measures=measures_of(row, str(folder)),
        row={key: value for key, value in row.items() if isinstance(value, int | float | str)},
    )
