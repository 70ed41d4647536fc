"""A run as the report sees it: everything its directory holds, simulated or live.

`summary.json` is needed. Used where they are there: `plan.json` (what `echo2 plan --json` prints: the plan,
the dated prices, the notes on where numbers come from), `log.jsonl`, `config.toml`, and `baselines.json`
(summaries of other systems in the same world, each with its `system`).
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.report.digest import LogDigest, digest

Data = dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """What was planned (`plan`), what came of it (`summary`, `log`), and where the numbers come from.

    `world` is "simulated" or "live". `baselines` are summaries of other systems in the same world.
    """

    name: str
    world: str
    summary: Data
    plan: Data | None
    log: LogDigest | None
    config_text: str
    notes: tuple[str, ...]
    prices: tuple[Data, ...]
    seed: int | None
    baselines: tuple[Data, ...]

    @property
    def S(self) -> int | None:  # noqa: N802
        """The staleness bound, from the plan or the log."""
        if self.plan is not None and "S" in self.plan:
            return int(self.plan["S"])
        return None if self.log is None else self.log.settings.get("staleness_bound")


def read_run(directory: Path) -> RunRecord:
    """Read a run directory. Missing or broken files: UserError with the file and what is wrong."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such run directory; `echo2 simulate CONFIG --out DIR` writes one")
    summary = _json(directory / "summary.json", dict)
    if summary is None:
        raise UserError(f"{directory}: holds no summary.json; `echo2 simulate CONFIG --out DIR` writes one")
    plan = _json(directory / "plan.json", dict)
    planned: Data = plan or {}
    log_path = directory / "log.jsonl"
    config_text = _text(directory / "config.toml")
    config = _toml(directory / "config.toml", config_text)
    return RunRecord(
        name=str(planned.get("name") or config.get("name") or directory.resolve().name),
        world=str(summary.get("world") or "simulated"),
        summary=summary,
        plan=plan,
        log=digest(log_path) if log_path.is_file() else None,
        config_text=config_text,
        notes=tuple(str(note) for note in planned.get("notes") or summary.get("notes") or ()),
        prices=tuple(planned.get("prices") or ()),
        seed=config.get("seed", summary.get("seed")),
        baselines=tuple(_json(directory / "baselines.json", list) or ()),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _toml(path: Path, text: str) -> Data:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML ({error}); was it cut off?") from error


def _json(path: Path, kind: type) -> Any:
    """The JSON of a file; None when there is none."""
    text = _text(path)
    if not text:
        return None
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); was it cut off?") from error
    if not isinstance(data, kind):
        raise UserError(f"{path}: holds a {type(data).__name__}, expected a {kind.__name__}")
    return data
