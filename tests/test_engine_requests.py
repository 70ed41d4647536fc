"""What may be asked of an engine: sampling, limits, seeds and the model directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.learning.sampling import Sampling
from echo2.runtime.rollout.engine import SwapMode, WeightUpdateError, check_next_version, swap_mode
from echo2.runtime.rollout.model_dir import read_limits
from echo2.runtime.rollout.request import (
    EngineLimits,
    GroupRequest,
    SamplingSettings,
    group_seed,
    rollout_seed,
)
from echo2.runtime.rollout.vllm_engine import VllmSettings, require_vllm

LIMITS = EngineLimits(vocab_size=100, context_tokens=32)


def group(prompt: tuple[int, ...] = (1, 2), rollouts: int = 1, **sampling: object) -> GroupRequest:
    return GroupRequest(7, prompt, rollouts, SamplingSettings(**{"max_tokens": 8, **sampling}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"stop_token_ids": (3, -1)}, "holds -1"),
        ({"seed": -5}, "seed is -5"),
        ({"seed": 2**63}, r"in \[0, 2\^63\)"),
    ],
)
def test_settings_that_cannot_be_sampled_with_are_refused(values: dict[str, object], says: str) -> None:
    """A bad sampling value is named with its range."""
    with pytest.raises(UserError, match=says):
        SamplingSettings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": -1}])
def test_the_distribution_checks_itself(values: dict[str, float]) -> None:
    """Temperature, top-p and top-k out of range raise before any engine sees them."""
    with pytest.raises(UserError):
        Sampling(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (group(rollouts=0), "group 7 asks for 0 rollouts"),
        (group(prompt=()), "group 7 has an empty prompt"),
        (group(prompt=(1,) * 25), r"25 tokens \+ max_tokens 8 = 33 exceeds the context of 32.*at most 7"),
        (group(prompt=(1, 100)), r"token id 100 is outside the vocabulary \[0, 100\)"),
        (group(stop_token_ids=(101,)), "token id 101"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(request_: GroupRequest, says: str) -> None:
    """The error names the group, the value and the limit."""
    with pytest.raises(UserError, match=says):
        LIMITS.check(request_)


def test_a_request_that_just_fits_is_taken() -> None:
    """Prompt and completion may fill the context to the last token."""
    LIMITS.check(group(prompt=(1,) * 24))


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**9), st.integers(0, 1000))
def test_seeds_of_neighbours_differ(seed: int, prompt: int, index: int) -> None:
    """A seed is in range, repeats, and is not that of the next rollout, prompt, version or run."""
    own = rollout_seed(group_seed(seed, prompt, 3), index)
    assert 0 <= own < 2**63 and own == rollout_seed(group_seed(seed, prompt, 3), index)
    others = {
        rollout_seed(group_seed(seed, prompt, 3), index + 1),
        rollout_seed(group_seed(seed, prompt + 1, 3), index),
        rollout_seed(group_seed(seed, prompt, 4), index),
        rollout_seed(group_seed(seed + 1, prompt, 3), index),
    }
    assert own not in others


def test_versions_only_go_up() -> None:
    """An update to the version held, or an older one, is refused."""
    check_next_version(4, 3)
    for version in (3, 2):
        with pytest.raises(WeightUpdateError, match="engine is at version 3"):
            check_next_version(version, 3)


def test_an_unknown_swap_mode_is_named() -> None:
    """The error lists the modes there are."""
    with pytest.raises(WeightUpdateError, match="'drain'; use keep, wait or abort"):
        swap_mode("drain", SwapMode.KEEP)
    assert [swap_mode(mode, SwapMode.KEEP) for mode in (None, "abort")] == [SwapMode.KEEP, SwapMode.ABORT]


@pytest.mark.parametrize(
    ("config", "says"),
    [(None, "no config.json"), ("{", "unusable"), ("{}", "vocab_size")],
)
def test_a_directory_without_a_usable_configuration_is_refused(
    tmp_path: Path, config: str | None, says: str
) -> None:
    """A model directory needs a config.json with the two limits."""
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=says):
        read_limits(tmp_path)


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    """The context may be lowered, not raised; nested text configurations are read too."""
    config = {"text_config": {"vocab_size": 9, "max_position_embeddings": 64}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_limits(tmp_path, 16) == EngineLimits(9, 16)
    with pytest.raises(UserError, match=r"context_tokens is 65, but model .* has 64"):
        read_limits(tmp_path, 65)


def test_vllm_missing_is_told_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for vLLM where there is none names the command that installs it."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=r"vLLM is not installed; run: pip install 'echo2\[vllm\]'"):
        require_vllm()


def test_vllm_settings_out_of_range_are_named(tmp_path: Path) -> None:
    """Counts below one and negative cache sizes are refused."""
    for values, says in (
        ({"max_running": 0}, "max_running is 0"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0"),
        ({"kv_cache_bytes": -1}, "kv_cache_bytes is -1"),
    ):
        with pytest.raises(UserError, match=says):
            VllmSettings(tmp_path, **values)  # type: ignore[arg-type]


def test_importing_the_rollout_plane_loads_no_heavy_library() -> None:
    """Protocol, requests and every engine's settings import without torch, vLLM or transformers."""
    modules = ("engine", "request", "streams", "weights", "simulated", "transformers_engine", "vllm_engine")
    code = "import sys\n" + "".join(f"import echo2.runtime.rollout.{name}\n" for name in modules)
    code += "print([m for m in ('torch', 'vllm', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
