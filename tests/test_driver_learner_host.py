"""The learner's host: checkpoints never run ahead of the ledger, and damage costs steps, not the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver_kit import rollout, ticket
from live_run import REPOSITORY, write_config

from echo2.config import load
from echo2.errors import UserError
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.states import LedgerError
from echo2.runtime.driver.learner_host import LearnerHost, load_model

MODEL = REPOSITORY / "assets" / "tiny-sort"


def made(folder: Path, **changes: Any) -> LearnerHost:
    """A learner of the shipped model with checkpoints in the folder."""
    train = load(write_config(folder)).config.train.model_copy(update=changes)
    return LearnerHost(train, MODEL, 12, folder / "checkpoints", staleness_bound=1)


def trained(host: LearnerHost, ledger: Ledger) -> None:
    """One step on one group of two rollouts of the version before it."""
    group = host.version
    ledger.dispatch([ticket(group, index) for index in range(2)])
    found = [rollout(group, index) for index in range(2)]
    ledger.finish([replace(one, segments=(replace(one.segments[0], version=group),)) for one in found])
    ledger.set_rewards({f"{group}:0": 1.0, f"{group}:1": 0.0})
    host.step(ledger, host.version, [group], publish=False)


def started(folder: Path, steps: int) -> None:
    """A run of some steps with a checkpoint after each, all kept."""
    host, ledger = made(folder, keep_checkpoints=100), Ledger(folder / "ledger.sqlite")
    host.save({"usd": 0.0})
    for _ in range(steps):
        trained(host, ledger)
        host.save({"usd": float(host.version)})
    ledger.close()


def damage(checkpoint: Path) -> None:
    """Flip the end of a checkpoint's weights."""
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"damaged!")


def test_a_damaged_checkpoint_costs_its_steps_only(tmp_path: Path) -> None:
    """The older one is loaded, the ledger goes back to it, and the steps between are made anew and kept."""
    started(tmp_path, steps=3)
    damage(tmp_path / "checkpoints" / "version-00000003")
    host = made(tmp_path, keep_checkpoints=1)
    assert host.resume() == {"usd": 2.0} and host.version == 2
    assert len(host.passed_over) == 1 and "version-00000003" in host.passed_over[0]
    ledger = Ledger(tmp_path / "ledger.sqlite")
    recovery = ledger.recover(host.version)
    assert recovery.rolled_back == 2 and recovery.finished_groups == (2,) and ledger.version == 2
    host.step(ledger, 2, [2], publish=False)
    host.save({})
    assert [path.name for path in host.checkpoints()] == ["version-00000003"]
    ledger.close()
    assert made(tmp_path).resume() == {}


def test_where_no_checkpoint_is_whole_nothing_is_touched(tmp_path: Path) -> None:
    """All damaged: the error names the newest, and they stay where they are, for whoever can mend them."""
    started(tmp_path, steps=1)
    names = [path.name for path in made(tmp_path).checkpoints()]
    for name in names:
        damage(tmp_path / "checkpoints" / name)
    with pytest.raises(UserError, match="version-00000001"):
        made(tmp_path).resume()
    assert [path.name for path in made(tmp_path).checkpoints()] == names


def test_nothing_to_resume_is_an_error(tmp_path: Path) -> None:
    """A folder without checkpoints says so."""
    with pytest.raises(UserError, match="no checkpoint is there to resume from"):
        made(tmp_path).resume()


def test_a_step_that_is_not_recorded_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the ledger cannot commit, no checkpoint is written ahead of it: the last one stands."""
    host, ledger = made(tmp_path), Ledger(tmp_path / "ledger.sqlite")
    host.save({})

    def full(version: int, new_version: int) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(ledger, "commit", full)
    with pytest.raises(LedgerError, match="full"):
        trained(host, ledger)
    with pytest.raises(UserError, match="the checkpoint of version 0 stands"):
        host.save({})
    monkeypatch.undo()
    ledger.close()
    again, ledger = made(tmp_path), Ledger(tmp_path / "ledger.sqlite")
    again.resume()
    assert ledger.recover(again.version).finished_groups == (0,)
    ledger.close()


@pytest.mark.parametrize("refused", [True, False])
def test_a_step_that_fails_frees_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Refused by the learner, the weights are as they were and may be saved; broken off, they may not."""
    host, ledger = made(tmp_path), Ledger(tmp_path / "ledger.sqlite")

    def fails(rollouts: Any) -> Any:
        raise UserError("rollout 0:0 is not finite") if refused else RuntimeError("out of memory")

    monkeypatch.setattr(host.learner, "step", fails)
    with pytest.raises((UserError, RuntimeError)):
        trained(host, ledger)
    assert ledger.claimed is None and host.version == 0
    if refused:
        host.save({})
    else:
        with pytest.raises(UserError, match="a step that failed"):
            host.save({})
    ledger.close()


def test_a_damaged_model_is_one_line(tmp_path: Path) -> None:
    """Weights that cannot be read become an error that names the directory."""
    (tmp_path / "config.json").write_bytes((MODEL / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="no model can be loaded from it"):
        load_model(tmp_path)
