"""Checkpoints: bit-exact, atomic, and nothing in them is run."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from echo2.errors import UserError
from echo2.runtime.learning import checkpoint
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.testing import sample_groups, tiny_qwen3

SETTINGS = LearnerSettings(learning_rate=1e-3, warmup_steps=5, weight_decay=0.01, token_budget=40)


def fresh(tied: bool = True, seed: int = 0, hidden: int = 64) -> Learner:
    """A learner of a tiny model."""
    return Learner(tiny_qwen3(seed=seed, tied=tied, hidden=hidden), SETTINGS)


def run(learner: Learner, steps: int) -> list[dict[str, Any]]:
    """Sample from the learner's own model and train, on the global generator; all but the seconds."""
    found = []
    for _ in range(steps):
        rollouts = sample_groups(
            learner.model, [[1, 2], [3]], 4, 4, lambda ids: float(sum(ids) % 5), version=learner.version
        )
        found.append(learner.step(rollouts).as_dict() | {"seconds": None})
    return found


def assert_equal(left: Learner, right: Learner) -> None:
    """Version, weights and optimiser are bit-equal."""
    assert left.version == right.version
    for name, tensor in left.model.state_dict().items():
        assert torch.equal(tensor, right.model.state_dict()[name]), name
    states = left.optimizer.state_dict()["state"], right.optimizer.state_dict()["state"]
    assert states[0].keys() == states[1].keys()
    for index, part in states[0].items():
        assert all(torch.equal(value, states[1][index][key]) for key, value in part.items())


@pytest.mark.parametrize("tied", [True, False])
def test_a_resumed_run_is_the_run_never_stopped(tmp_path: Path, tied: bool) -> None:
    """Three steps, a resume in a new learner and three more equal six steps, bit for bit, samples too."""
    whole, first = fresh(tied), fresh(tied)
    torch.manual_seed(11)
    wanted = run(whole, 6)
    torch.manual_seed(11)
    early = run(first, 3)
    path = checkpoint.save(first, tmp_path, {"frontier": 7})
    second = fresh(tied, seed=99)
    torch.manual_seed(12345)
    assert checkpoint.load(second, path) == {"frontier": 7}
    assert_equal(first, second)
    assert early + run(second, 3) == wanted
    assert_equal(whole, second)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    """A run saved before its first step and after each is the run never saved, bit for bit."""
    plain, saved = fresh(), fresh()
    torch.manual_seed(3)
    wanted = run(plain, 3)
    torch.manual_seed(3)
    found = []
    for _ in range(3):
        checkpoint.load(saved, checkpoint.save(saved, tmp_path))
        found += run(saved, 1)
    assert found == wanted
    assert_equal(plain, saved)


def test_generators_are_restored(tmp_path: Path) -> None:
    """After loading, torch and Python draw what they would have drawn after saving."""
    path = checkpoint.save(fresh(), tmp_path)
    wanted = (torch.rand(3).tolist(), random.random())
    checkpoint.load(fresh(), path)
    assert (torch.rand(3).tolist(), random.random()) == wanted


def test_a_checkpoint_is_a_model_directory(tmp_path: Path) -> None:
    """Hugging Face loads the directory and gets the learner's weights."""
    learner = fresh()
    run(learner, 1)
    model = AutoModelForCausalLM.from_pretrained(checkpoint.save(learner, tmp_path), dtype=torch.float32)
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_newest_is_by_version_and_complete_only(tmp_path: Path) -> None:
    """The highest version wins; leftovers of a crash are not seen."""
    assert checkpoint.newest(tmp_path) is None
    for version in (9, 100):
        learner = fresh()
        learner.version = version
        checkpoint.save(learner, tmp_path)
    (tmp_path / ".version-00000999.1.partial").mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "version-00000100"


def test_a_crash_while_writing_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fails before the rename, what was there still loads and nothing half-written stays."""
    learner = fresh()
    path = checkpoint.save(learner, tmp_path, {"n": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="No space left on device; free some space"):
        checkpoint.save(learner, tmp_path, {"n": 2})
    assert checkpoint.load(fresh(), path) == {"n": 1}
    assert os.listdir(tmp_path) == [path.name]


def test_saving_a_version_again_replaces_it(tmp_path: Path) -> None:
    """The second checkpoint of a version takes the place of the first."""
    learner = fresh()
    checkpoint.save(learner, tmp_path, {"n": 1})
    path = checkpoint.save(learner, tmp_path, {"n": 2})
    assert checkpoint.load(fresh(), path) == {"n": 2}
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.TRAINER])
def test_a_damaged_file_is_refused_and_nothing_changes(tmp_path: Path, name: str) -> None:
    """One flipped byte is noticed by its digest before any state is touched."""
    learner = fresh()
    run(learner, 1)
    path = checkpoint.save(learner, tmp_path)
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    other, untouched = fresh(seed=3), fresh(seed=3)
    with pytest.raises(UserError, match=f"{name} is missing or damaged"):
        checkpoint.load(other, path)
    assert_equal(other, untouched)


def test_a_pickle_in_its_place_is_not_run(tmp_path: Path) -> None:
    """A trainer file that would run code on unpickling is refused, though its digest fits."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    path = checkpoint.save(fresh(), tmp_path)
    torch.save({"optimizer": Evil(), "generators": {}}, path / checkpoint.TRAINER)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    manifest["sha256"][checkpoint.TRAINER] = checkpoint._sha256(path / checkpoint.TRAINER)
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(fresh(), path)
    assert not (tmp_path / "owned").exists()


def test_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    """Another model, another format, an older version and no checkpoint at all are named."""
    path = checkpoint.save(fresh(hidden=32), tmp_path)
    with pytest.raises(UserError, match="is of another model"):
        checkpoint.load(fresh(), path)
    ahead = fresh(hidden=32)
    ahead.version = 5
    with pytest.raises(UserError, match="is of version 0, older than the learner's 5"):
        checkpoint.load(ahead, path)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text()) | {"format": 9}
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has format 9"):
        checkpoint.load(fresh(hidden=32), path)
    with pytest.raises(UserError, match="no readable checkpoint"):
        checkpoint.load(fresh(), tmp_path / "version-00000077")
