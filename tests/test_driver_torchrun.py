"""A process's place in torchrun, as its environment tells it, and what its children are not told."""

from __future__ import annotations

import pytest

from echo2.runtime.driver.environment import is_of_torchrun
from echo2.runtime.driver.torchrun import Place, place

GIVEN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Place(3, 4, 1)),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"RANK": None}, None),
        ({"MASTER_ADDR": None}, None),
    ],
)
def test_a_place_is_one_among_several(
    changes: dict[str, str | None], expected: Place | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a process that torchrun started beside others has a place; alone it trains as without torchrun."""
    for name, value in (GIVEN | changes).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert place() == expected


def test_children_are_not_told_of_torchrun() -> None:
    """A local worker that found these would join the learner's process group; all else is inherited."""
    of_it = (*GIVEN, "MASTER_PORT", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
    assert all(is_of_torchrun(name) for name in of_it)
    assert not any(is_of_torchrun(name) for name in ("PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
