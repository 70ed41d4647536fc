"""The folder of a live run: what is where, and whether a run may begin or go on there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
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
    def run_key(self) -> Path:
        """The private key that signs manifests, through all lives."""
        return self.path / "run.key"

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
    def broadcasts(self) -> Path:
        """One JSON line a broadcast, over all lives: predicted, bound and achieved seconds."""
        return self.path / "broadcasts.jsonl"

    @property
    def log(self) -> Path:
        """Facts and decisions of this life."""
        return self.path / ("log.jsonl" if self.life == 1 else f"log-{self.life}.jsonl")


def check_free(path: Path) -> None:
    """A new run may begin at `path`. Raises UserError where something is already; changes nothing."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(
            f"{path}: there is something already; go on with it by --resume, or choose another --out"
        )


def begin(path: Path, config_text: str, identity: Mapping[str, Any]) -> RunDir:
    """Make the folder of a new run. Raises UserError where one is already, or nothing can be written."""
    check_free(path)
    run = RunDir(path, f"run-{secrets.token_hex(6)}", 1)
    try:
        for folder in (path, run.checkpoints, run.snapshots, run.workers):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
    record(run, config_text, identity)
    return run


def find(path: Path, identity: Mapping[str, Any]) -> RunDir:
    """The next life of the run at `path`; changes nothing, for another learner may be at work there.

    Raises UserError where there is no run, and for a configuration of another run than this.
    """
    try:
        state: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
        run = RunDir(path, str(state["run_id"]), int(state["life"]) + 1)
        kept = dict(state.get("identity", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no run to resume is there (run.json: {error}); start it without --resume"
        ) from error
    for key, now in identity.items():
        if key in kept and kept[key] != now:
            raise UserError(
                f"{_difference(key, kept[key], now)} the run in {path} was started with; a run keeps it for "
                "all its life: set it back, or start another run with another --out"
            )
    return run


def record(run: RunDir, config_text: str, identity: Mapping[str, Any]) -> None:
    """Write the configuration and the state of this life; for whoever holds the ledger's lock."""
    state = {"run_id": run.run_id, "life": run.life, "identity": dict(identity)}
    part = run.path / "run.json.part"
    try:
        (run.path / "config.toml").write_text(config_text, encoding="utf-8")
        part.write_text(json.dumps(state) + "\n", encoding="utf-8")
        part.replace(run.path / "run.json")
    except OSError as error:
        raise UserError(
            f"{run.path}: cannot be written ({error.strerror}); free some space or check its rights"
        ) from error


def _difference(key: str, was: object, now: object) -> str:
    if key == "train.model":
        return "train.model: its configuration and tokenizer files are not those that"
    return f"{key} = {now!r} is not the {was!r} that"
