"""A learner over two processes is the learner of one."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.learning import checkpoint
from echo2.runtime.learning.fsdp import shard
from echo2.runtime.learning.learner import Learner, NonFiniteError
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.testing import make_rollout, tiny_qwen3
from echo2.runtime.learning.weights import whole_weights

SETTINGS = LearnerSettings(learning_rate=1e-3, token_budget=20, max_grad_norm=0.5)


def batch(spoilt: bool = False) -> list[Rollout]:
    """Three groups of different lengths, in an odd number of micro-batches; one rollout may be spoilt."""
    rollouts = []
    for group, tokens in enumerate((2, 5, 7)):
        for index in range(4):
            ids = [(3 * group + 5 * index + t) % 31 + 1 for t in range(tokens)]
            logprob = float("nan") if spoilt and (group, index) == (0, 3) else -3.4
            rollouts.append(make_rollout(group, index, ids, float(index), logprobs=[logprob] * tokens))
    return rollouts


def go_on(learner: Learner) -> list[float | None]:
    """The mean ratio of three more steps: from the second on it tells of the optimiser's state too."""
    return [learner.step(batch()).ratio_mean for _ in range(3)]


def train(learner: Learner, directory: Path) -> dict[str, Any]:
    """Two steps, a step that fails, a checkpoint, and what is to be compared."""
    metrics = [learner.step(batch()) for _ in range(2)]
    try:
        learner.step(batch(spoilt=True))
        failure: tuple[str, ...] = ()
    except NonFiniteError as error:
        failure = error.rollout_ids
    weights = {name: t.clone() for name, t in whole_weights(learner.model).items()}
    path = checkpoint.save(learner, directory)
    after = go_on(learner)
    return {
        "metrics": [m.as_dict() | {"seconds": None} for m in metrics],
        "failure": failure,
        "weights": weights,
        "path": str(path),
        "after": after,
    }


def process(rank: int, port: int, directory: Path) -> None:
    """One rank of two, with tied and untied embeddings; the first leaves what it found in files."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for tied in (True, False):
        place = directory / str(tied)
        learner = Learner(shard(tiny_qwen3(tied=tied)), SETTINGS)
        assert learner.ranks.size == 2 and learner._score.plain_head
        found = train(learner, place / "two")
        resumed = Learner(shard(tiny_qwen3(seed=5, tied=tied)), SETTINGS)
        checkpoint.load(resumed, place / "one" / "version-00000002")
        found["resumed"] = go_on(resumed)
        if rank == 0:
            torch.save(found, place / "found.pt")
    dist.destroy_process_group()


def assert_close(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Metrics agree to float32 accuracy, counts and names exactly."""
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert theirs[name] == (
            pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value
        ), name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one process and then two have left what they found: starting two costs most of the time."""
    directory = tmp_path_factory.mktemp("fsdp")
    for tied in (True, False):
        found = train(Learner(tiny_qwen3(tied=tied), SETTINGS), directory / str(tied) / "one")
        torch.save(found, directory / str(tied) / "one.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(process, (port, directory), nprocs=2)  # type: ignore[no-untyped-call]
    return directory


@pytest.mark.parametrize("tied", [True, False])
def test_two_processes_do_what_one_does(place: Path, tied: bool) -> None:
    """Losses, norms, metrics, weights and refusals agree, with an odd number of micro-batches."""
    one = torch.load(place / str(tied) / "one.pt", weights_only=True)
    two = torch.load(place / str(tied) / "found.pt", weights_only=True)
    assert one["metrics"][0]["micro_batches"] % 2 == 1
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert_close(mine, theirs)
    assert one["failure"] == two["failure"] == ("0:3",)
    assert one["weights"].keys() == two["weights"].keys()
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], tensor, rtol=1e-4, atol=1e-5)
    assert two["after"] == pytest.approx(one["after"], rel=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_fits_any_number_of_processes(place: Path, tied: bool) -> None:
    """Two processes go on from the checkpoint of one, and one from that of two, as if never stopped."""
    one = torch.load(place / str(tied) / "one.pt", weights_only=True)
    two = torch.load(place / str(tied) / "found.pt", weights_only=True)
    assert two["resumed"] == pytest.approx(one["after"], rel=1e-3)
    back = Learner(tiny_qwen3(seed=5, tied=tied), SETTINGS)
    checkpoint.load(back, Path(two["path"]))
    assert go_on(back) == pytest.approx(one["after"], rel=1e-3)


def test_sharding_needs_a_process_group() -> None:
    """Without torchrun the error says so."""
    with pytest.raises(UserError, match="start the learner with torchrun"):
        shard(tiny_qwen3())
