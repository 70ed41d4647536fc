"""A recorded live run as validation reads it: its log, configuration, identity and the swaps its workers saw.

Reads a run's folder, or a compact record of one (the same names, the log as `log.jsonl.gz`). Called by
`check`. Only the first life is read: a resumed one begins in the middle of another's work.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from echo2.errors import UserError
from echo2.policy import wire
from echo2.policy.decisions import Decision
from echo2.policy.facts import Fact
from echo2.policy.settings import SchedulerSettings
from echo2.sim.log import DECISIONS, END, FORMAT, Entry

SWAP_LINE = re.compile(r"version (\d+) live: transfer ([\d.]+) s, check ([\d.]+) s, pause ([\d.]+) s")


@dataclass(frozen=True)
class Recorded:
    """A run: `entries` are its facts with their decisions; `pauses_s` by worker and version, where known.

    `identity` is what `run.json` says the run keeps, `notes` what a compact record adds (`record.json`).
    """

    path: Path
    settings: SchedulerSettings
    entries: tuple[Entry, ...]
    identity: dict[str, Any]
    notes: dict[str, Any]
    pauses_s: dict[str, dict[int, float]]
    lives: int

    @property
    def config(self) -> Path:
        """The run's configuration file."""
        return self.path / "config.toml"


def read(path: Path) -> Recorded:
    """Read a run. Missing, foreign or damaged files: UserError with the file and what is wrong."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run folder; `echo2 train CONFIG --out {path}` writes one")
    state = _json(path / "run.json")
    if not state:
        raise UserError(f"{path}: holds no run.json, so it is not a live run; `echo2 train` writes one")
    log = _found(path / "log.jsonl")
    settings, entries = _log(log)
    pauses = {name: dict(swaps) for name, swaps in _json(path / "swaps.json").items()}
    lives = max(1, int(state.get("life", 1)))
    notes = _json(path / "record.json")
    known = {w: {int(v): float(s) for v, s in swaps.items()} for w, swaps in pauses.items()}
    return Recorded(
        path=path,
        settings=settings,
        entries=tuple(entries),
        identity=dict(state.get("identity", {})),
        notes=notes,
        pauses_s=known or swaps_of(path),
        lives=lives,
    )


def swaps_of(path: Path) -> dict[str, dict[int, float]]:
    """Pauses in seconds by worker and version, from the logs of the workers that ran here."""
    found: dict[str, dict[int, float]] = {}
    for log in sorted(path.glob("workers/*/worker.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        if swaps := {int(m[1]): float(m[4]) for m in SWAP_LINE.finditer(text)}:
            found[log.parent.name] = swaps
    return found


def _found(path: Path) -> Path:
    """The file, or its compressed form."""
    packed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and not packed.is_file():
        raise UserError(f"{path}: no such file; a live run writes it, a compact record holds {packed.name}")
    return path if path.is_file() else packed


def _lines(path: Path) -> Iterator[str]:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                yield from stream
        else:
            with path.open(encoding="utf-8") as stream:
                yield from stream
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as a run log ({error}); was it cut off?") from None


def _log(path: Path) -> tuple[SchedulerSettings, list[Entry]]:
    settings: SchedulerSettings | None = None
    entries: list[Entry] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            data = json.loads(line)
            kind = data["kind"]
            if settings is None:
                settings = _settings(data)
            elif kind == END:
                break
            elif kind in DECISIONS:
                entries[-1][1].append(cast(Decision, wire.from_json(data)))
            else:
                entries.append((cast(Fact, wire.from_json(data)), []))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            if not line.endswith("\n"):
                break  # the run was killed while it wrote this line
            raise UserError(f"{path}:{number}: not a line of a run log of this version ({error})") from None
    if settings is None:
        raise UserError(f"{path}: is empty; give the folder of a run that has taken steps")
    return settings, entries


def _settings(data: dict[str, Any]) -> SchedulerSettings:
    fields = {key: value for key, value in data.items() if key not in ("kind", "format")}
    if data.get("kind") != "Settings" or data.get("format") != FORMAT:
        raise ValueError(f"it must begin with settings of format {FORMAT}")
    made: SchedulerSettings = wire.build(SchedulerSettings, fields, "Settings")
    return made


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); copy the run's folder anew") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds a {type(data).__name__}, expected an object")
    return data
