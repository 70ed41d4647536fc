"""The folder of a run: where one may begin, which may go on, and with what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echo2.errors import UserError
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.driver import run_dir

IDENTITY = {"train.model": "abc", "train.task": "digit_sort", "batch.group_size": 8, "seed": 3}


def test_a_life_follows_the_other(tmp_path: Path) -> None:
    """A new run is life 1; finding it changes nothing, and recording makes the next life its present one."""
    run = run_dir.begin(tmp_path / "run", "seed = 3\n", IDENTITY)
    second = run_dir.find(run.path, IDENTITY)
    assert (second.run_id, second.life, second.log.name) == (run.run_id, 2, "log-2.jsonl")
    assert run_dir.find(run.path, IDENTITY).life == 2
    run_dir.record(second, "seed = 3 # changed\n", IDENTITY)
    assert run_dir.find(run.path, IDENTITY).life == 3
    assert (run.path / "config.toml").read_text() == "seed = 3 # changed\n"


def test_a_new_run_takes_no_used_folder(tmp_path: Path) -> None:
    """A folder with anything in it, or a file, is refused and left alone; an empty folder will do."""
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match="something already; go on with it by --resume"):
            run_dir.begin(path, "", IDENTITY)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert run_dir.begin(tmp_path / "empty", "", IDENTITY).life == 1


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A path below a file is refused with the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --out"):
        run_dir.begin(tmp_path / "file" / "run", "", IDENTITY)


@pytest.mark.parametrize("content", [None, "", "[]", '{"run_id": "x"}', '{"run_id": "x", "life": "many"}'])
def test_there_is_nothing_to_resume(tmp_path: Path, content: str | None) -> None:
    """No folder, or a damaged run.json: refused, and nothing is made."""
    path = tmp_path / "run"
    if content is not None:
        path.mkdir()
        (path / "run.json").write_text(content)
    with pytest.raises(UserError, match="no run to resume is there"):
        run_dir.find(path, IDENTITY)
    assert path.exists() == (content is not None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch.group_size": 4}, "batch.group_size = 4 is not the 8 that the run in .* was started with"),
        ({"seed": 4}, "seed = 4 is not the 3 that"),
        ({"train.task": "addition"}, "train.task = 'addition' is not the 'digit_sort' that"),
        ({"train.model": "def"}, "train.model: its configuration and tokenizer files are not those that"),
    ],
)
def test_what_a_run_keeps_cannot_change(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """A resume with another group size, seed, task or model is refused, naming the key and both values."""
    run = run_dir.begin(tmp_path / "run", "", IDENTITY)
    with pytest.raises(UserError, match=words):
        run_dir.find(run.path, {**IDENTITY, **change})
    assert json.loads((run.path / "run.json").read_text())["life"] == 1


def test_a_second_learner_is_kept_out_by_the_ledger(tmp_path: Path) -> None:
    """While one process has the ledger of a run, another cannot open it; afterwards it can."""
    run = run_dir.begin(tmp_path / "run", "", IDENTITY)
    first = Ledger(run.ledger, run.run_id)
    with pytest.raises(UserError, match="in use by another learner"):
        Ledger(run.ledger, run.run_id)
    first.close()
    Ledger(run.ledger, run.run_id).close()
