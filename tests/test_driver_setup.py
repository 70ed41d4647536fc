"""What cannot run is refused before a model is loaded, with the key and the fix."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live_run import REPOSITORY, write_config

from echo2.config import load
from echo2.errors import UserError
from echo2.policy.planner import plan_run, settings_for
from echo2.runtime.driver.setup import Setup, check_setup, load_tokenizer, stop_tokens
from echo2.scenario import build

SHIPPED = REPOSITORY / "assets" / "tiny-sort"


def checked(folder: Path, *sets: str, model: str = "") -> Setup:
    """The checked setup of the small configuration with overrides."""
    loaded = load(write_config(folder, model=model), list(sets))
    built = build(loaded.config, loaded.base_dir)
    return check_setup(built, settings_for(built.problem, plan_run(built.problem)), loaded.base_dir)


def copied(folder: Path, *without: str) -> Path:
    """The shipped model without some files."""
    place = folder / "model"
    shutil.copytree(SHIPPED, place)
    for name in without:
        for file in place.glob(name):
            file.unlink()
    return place


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (['train.model="nowhere"'], "train.model = 'nowhere': there is no directory"),
        (['run.reading="stall"'], 'use "overlap"'),
        (['train.tls_cert="cert.pem"'], "train.tls_cert = 'cert.pem': needs train.tls_key beside it"),
        (['train.tls_key="key.pem"'], "train.tls_key = 'key.pem': needs train.tls_cert beside it"),
        (['train.tls_cert="c.pem"', 'train.tls_key="k.pem"'], "train.tls_cert = 'c.pem': there is no file"),
        (["train.max_prompt_tokens=120"], "make a context of 132 tokens, but the model at .* takes 128"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, sets: list[str], words: str) -> None:
    """A missing model, half a TLS pair, too long a context: one line each."""
    with pytest.raises(UserError, match=words):
        checked(tmp_path, *sets)


def test_a_baseline_is_for_the_simulator(tmp_path: Path) -> None:
    """A system that only the simulator knows is refused with what to write instead."""
    loaded = load(write_config(tmp_path))
    built = build(loaded.config, loaded.base_dir)
    settings = settings_for(built.problem, plan_run(built.problem))
    baseline = loaded.config.run.model_copy(update={"system": "colocated"})
    built = replace(built, config=loaded.config.model_copy(update={"run": baseline}))
    with pytest.raises(UserError, match="baselines are simulated only"):
        check_setup(built, settings, loaded.base_dir)


def test_vllm_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local pool with engine vllm needs the package here; a remote pool does not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sets = ['pool.w.engine="vllm"']
    with pytest.raises(UserError, match=r"pool\.w\.engine = 'vllm': vllm is not installed; pip install"):
        checked(tmp_path, *sets)
    assert checked(tmp_path, *sets, "pool.w.local=false").config.pool[0].engine == "vllm"


def test_files_of_an_endpoint_are_beside_the_configuration(tmp_path: Path) -> None:
    """Relative paths start at the file's folder, and routes that cannot be used are refused at once."""
    sets = ['pool.w.engine="openai"', 'pool.w.endpoint="http://a:1"', 'pool.w.endpoint_weights="shared"']
    routes = 'pool.w.endpoint_routes="routes.json"'
    with pytest.raises(UserError, match=r"pool\.w\.endpoint_routes = 'routes\.json': .*cannot be used"):
        checked(tmp_path, *sets, routes)
    (tmp_path / "routes.json").write_text('{"version": ""}')
    pool = checked(tmp_path, *sets, routes).config.pool[0]
    assert pool.endpoint_weights == str(tmp_path / "shared")
    assert pool.endpoint_routes == str(tmp_path / "routes.json")


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    """A model directory without tokenizer files is refused before anything is loaded or written."""
    model = copied(tmp_path, "tokenizer*", "vocab*", "merges*")
    with pytest.raises(UserError, match="has no tokenizer"):
        checked(tmp_path, model=str(model))


def test_a_damaged_tokenizer_is_one_line(tmp_path: Path) -> None:
    """Whatever the tokenizer library raises becomes an error that names the directory."""
    model = copied(tmp_path)
    (model / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(UserError, match="no tokenizer can be loaded"):
        load_tokenizer(model)


def test_the_identity_is_that_of_the_content(tmp_path: Path) -> None:
    """A model that has moved is the same; one with another configuration, or another seed, is not."""
    first = checked(tmp_path).identity
    moved = copied(tmp_path)
    assert checked(tmp_path, model=str(moved)).identity == first
    assert checked(tmp_path, "seed=4").identity == {**first, "seed": 4}
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "rope_theta": 1.0}))
    assert checked(tmp_path, model=str(moved)).identity["train.model"] != first["train.model"]


class Tokenizer:
    """Knows its end-of-text token only."""

    def __init__(self, eos_token_id: int | None) -> None:
        self.eos_token_id = eos_token_id


@pytest.mark.parametrize(
    ("eos", "generation", "tokens"),
    [(2, None, (2,)), (2, 7, (2, 7)), (None, [9, 7], (7, 9)), (7, [7], (7,)), (2, "none", (2,))],
)
def test_completions_end_at_every_end_token(
    tmp_path: Path, eos: int | None, generation: Any, tokens: tuple[int, ...]
) -> None:
    """The tokenizer's end-of-text token and those of generation_config.json, each once, ascending."""
    if generation is not None:
        content = {} if generation == "none" else {"eos_token_id": generation}
        (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert stop_tokens(Tokenizer(eos), tmp_path) == tokens


def test_a_model_without_an_end_is_refused(tmp_path: Path) -> None:
    """No end token anywhere, or a damaged generation_config.json, is a clear error."""
    with pytest.raises(UserError, match="end-of-text token"):
        stop_tokens(Tokenizer(None), tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config\.json: cannot be read"):
        stop_tokens(Tokenizer(2), tmp_path)
