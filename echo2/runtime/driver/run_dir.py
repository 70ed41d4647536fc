"""The folder of a live run: what is where, and whether a run may begin or go on there."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.errors import UserError


@dataclass(frozen=True)
class RunDir:
    """Paths of a run. `life` counts from 1, one more with each resume; each life has a log of its own."""

    path: Path
    run_id: str
    life: int

    @property
    def ledger(self) -> Path:
        """The durable ledger of rollouts."""
        return self.path / "ledger.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of the learner."""
        return self.path / "checkpoints"

    @property
    def snapshots(self) -> Path:
        """Published weights as chunks."""
        return self.path / "snapshots"

    @property
    def workers(self) -> Path:
        """Work folders and logs of local workers."""
        return self.path / "workers"

    @property
    def metrics(self) -> Path:
        """One JSON line a step, over all lives."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The summary, written at every end."""
        return self.path / "summary.json"

    @property
    def log(self) -> Path:
        """Facts and decisions of this life."""
        return self.path / ("log.jsonl" if self.life == 1 else f"log-{self.life}.jsonl")


def begin(path: Path, config_text: str) -> RunDir:
    """A new run. Raises UserError where one is already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(
            f"{path}: there is something already; go on with it by --resume, or choose another --out"
        )
    run = RunDir(path, f"run-{secrets.token_hex(6)}", 1)
    try:
        for folder in (path, run.checkpoints, run.snapshots, run.workers):
            folder.mkdir(parents=True, exist_ok=True)
        (path / "config.toml").write_text(config_text, encoding="utf-8")
        _write_state(run)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
    return run


def resume(path: Path, config_text: str) -> RunDir:
    """Go on with the run at `path`, with the configuration as it is now."""
    try:
        state: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
        run = RunDir(path, str(state["run_id"]), int(state["life"]) + 1)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no run to resume is there (run.json: {error}); start it without --resume"
        ) from error
    (path / "config.toml").write_text(config_text, encoding="utf-8")
    _write_state(run)
    return run


def _write_state(run: RunDir) -> None:
    part = run.path / "run.json.part"
    part.write_text(json.dumps({"run_id": run.run_id, "life": run.life}) + "\n", encoding="utf-8")
    part.replace(run.path / "run.json")
