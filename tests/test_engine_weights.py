"""Weights are checked whole before an engine touches its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo2.errors import UserError
from echo2.runtime.rollout.engine import WeightUpdateError
from echo2.runtime.rollout.weights import Manifest, load, manifest_of, read_manifest, stage

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


def weights() -> dict[str, torch.Tensor]:
    return {
        "model.embed_tokens.weight": torch.arange(6.0).reshape(3, 2),
        "b": torch.ones(2, dtype=torch.bfloat16),
    }


EXPECTED = Manifest({"model.embed_tokens.weight": ("F32", (3, 2)), "b": ("BF16", (2,))})


def test_a_manifest_is_the_same_from_memory_file_and_shards(tmp_path: Path) -> None:
    """Headers tell names, dtypes and shapes exactly as the tensors do, in however many files."""
    tensors = weights()
    save_file(tensors, tmp_path / "whole.safetensors")
    (tmp_path / "shards").mkdir()
    for i, name in enumerate(tensors):
        save_file({name: tensors[name]}, tmp_path / "shards" / f"{i}.safetensors")
    found = [
        read_manifest(tmp_path / "whole.safetensors"),
        read_manifest(tmp_path / "shards"),
        manifest_of(tensors),
    ]
    assert found == [EXPECTED] * 3 and len({m.checksum for m in found}) == 1


def test_staged_tensors_are_what_was_given_and_then_gone() -> None:
    """The temporary file holds the tensors bit by bit, and lives as long as the context."""
    with stage(weights(), EXPECTED) as path:
        read = load(path)
        assert all(torch.equal(read[name], tensor) for name, tensor in weights().items())
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.pop("b"), "tensor b is missing"),
        (lambda w: w.update(c=torch.ones(1)), "tensor c is not in the model"),
        (
            lambda w: w.update(b=torch.ones(3, dtype=torch.bfloat16)),
            r"tensor b is BF16 \[3\], the model has BF16 \[2\]",
        ),
        (lambda w: w.update(b=torch.ones(2)), "tensor b is F32"),
        (lambda w: w["b"].__setitem__(0, torch.nan), "tensor b has 1 of 2 values NaN"),
        (lambda w: w["b"].fill_(-torch.inf), "tensor b has 2 of 2 values"),
    ],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_weights_that_are_not_the_models_are_refused(
    change: object, says: str, as_file: bool, tmp_path: Path
) -> None:
    """A missing, extra, misshapen, retyped or non-finite tensor is named, in memory or in a file."""
    tensors = weights()
    change(tensors)  # type: ignore[operator]
    given: object = tensors
    if as_file:
        given = tmp_path / "w.safetensors"
        save_file(tensors, given)
    with pytest.raises(WeightUpdateError, match=says), stage(given, EXPECTED):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    """A download that stopped early, anywhere, is never taken for weights."""
    file = tmp_path / "w.safetensors"
    save_file(weights(), file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"w\.safetensors is not a whole safetensors file"):
        read_manifest(file)
    with pytest.raises(WeightUpdateError), stage(file, EXPECTED):
        pass


def test_no_weights_at_all_are_named(tmp_path: Path) -> None:
    """An empty directory and a missing file say what is expected there."""
    for path in (tmp_path, tmp_path / "gone.safetensors"):
        with pytest.raises(UserError, match="no safetensors weights"):
            read_manifest(path)


def test_a_tied_head_may_be_sent_along_only_if_it_is_the_embedding() -> None:
    """`state_dict` of a tied model repeats the embedding: accepted when equal, refused when not."""
    tensors = weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    with stage(tensors, EXPECTED) as path:
        assert read_manifest(path) == EXPECTED
    tensors["lm_head.weight"][0, 0] += 1
    with (
        pytest.raises(WeightUpdateError, match=r"lm_head\.weight is not in the model"),
        stage(tensors, EXPECTED),
    ):
        pass


def test_the_main_dtype_is_that_of_most_tensors() -> None:
    """An engine told "auto" runs in the dtype the model directory is stored in."""
    assert Manifest({"a": ("BF16", (1,)), "b": ("BF16", (1,)), "c": ("F32", (1,))}).main_dtype == "bfloat16"
