"""A run as the report sees it: everything its directory holds, simulated or live.

`summary.json` is needed. Used where they are there: `plan.json` (what `echo2 plan --json` prints: the plan,
the dated prices, the notes on where numbers come from), `log.jsonl` and the logs of later lives of a live run
(`log-2.jsonl`, ...), `config.toml`, `baselines.json` (summaries of other systems in the same world, each with
its `system`) and `side-by-side.json` (simulations of a live run). A folder with a `run.json`
is of a live run.
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

    `world` is "simulated" or "live". `baselines` are summaries of other systems in the same world. `beside`
    are (label, basis, numbers) of the same run as planned and simulated, for a live one.
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
    beside: tuple[tuple[str, str, Data], ...] = ()

    @property
    def S(self) -> int | None:  # noqa: N802
        """The staleness bound, from the plan or the log."""
        if self.plan is not None and "S" in self.plan:
            return int(self.plan["S"])
        return None if self.log is None else self.log.settings.get("staleness_bound")

    @property
    def rate_bound(self) -> tuple[float, str] | None:
        """Steps/s that the run could not have beaten, and what sets it; None where nothing was trained.

        A live run's summary has none: then it is the learner's own, 1 / mean training time.
        """
        bound = self.summary.get("upper_bound_steps_per_s")
        if bound is not None:
            return float(bound), str(self.summary.get("upper_bound_term", "unknown"))
        train_s = self.summary.get("train_s_mean") or 0.0
        return (1.0 / train_s, "learner: 1 / mean training time") if train_s > 0 else None


def read_run(directory: Path, with_log: bool = True) -> RunRecord:
    """Read a run directory; without its logs where only the numbers matter, which is much quicker.

    Missing or broken files: UserError with the file and what is wrong.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such run directory; `echo2 simulate CONFIG --out DIR` writes one")
    summary = _json(directory / "summary.json", dict)
    if summary is None:
        raise UserError(f"{directory}: holds no summary.json; `echo2 simulate CONFIG --out DIR` writes one")
    plan = _json(directory / "plan.json", dict)
    planned: Data = plan or {}
    logs = _logs(directory) if with_log else []
    config_text = _text(directory / "config.toml")
    config = _toml(directory / "config.toml", config_text)
    return RunRecord(
        name=str(planned.get("name") or config.get("name") or directory.resolve().name),
        world=str(summary.get("world") or _world(directory)),
        summary=summary,
        plan=plan,
        log=digest(logs) if logs else None,
        config_text=config_text,
        notes=tuple(str(note) for note in planned.get("notes") or summary.get("notes") or ()),
        prices=tuple(planned.get("prices") or ()),
        seed=config.get("seed", summary.get("seed")),
        baselines=tuple(_json(directory / "baselines.json", list) or ()),
        beside=_beside(_json(directory / "side-by-side.json", dict) or {}),
    )


def _beside(data: Data) -> tuple[tuple[str, str, Data], ...]:
    """Simulations of a live run in `side-by-side.json`: of its file alone, and with what it measured."""
    out: list[tuple[str, str, Data]] = []
    if "simulated" in data:
        out.append(("plan", "planned", data["simulated"].get("plan", {})))
        out.append(("simulation of its file", "simulated", data["simulated"]))
    if "calibrated" in data:
        out.append(("simulation with what was measured", "simulated", data["calibrated"]))
    return tuple(out)


def _world(directory: Path) -> str:
    return "live" if (directory / "run.json").is_file() else "simulated"


def _logs(directory: Path) -> list[Path]:
    """The logs of the run's lives, in order."""
    later = sorted(directory.glob("log-*.jsonl"), key=lambda path: (len(path.name), path.name))
    return [path for path in (directory / "log.jsonl", *later) if path.is_file()]


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
