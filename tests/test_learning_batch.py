"""Rollouts to padded micro-batches."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout, Segment, Span
from echo2.runtime.learning.batch import micro_batches
from echo2.runtime.learning.testing import make_rollout

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=12)


def from_shapes(shapes: list[tuple[int, int]]) -> list[Rollout]:
    """Rollouts whose every token and log-prob tells where it belongs."""
    return [
        make_rollout(
            group,
            0,
            [1000 * group + t for t in range(tokens)],
            0.0,
            prompt_ids=[900 + t for t in range(prompt)],
            logprobs=[-(100 * group + t + 1) for t in range(tokens)],
        )
        for group, (prompt, tokens) in enumerate(shapes)
    ]


def everyone(rollouts: list[Rollout]) -> dict[str, float]:
    """An advantage for each, its group's number."""
    return {r.rollout_id: float(r.group_id) for r in rollouts}


@given(SHAPES, st.integers(14, 60))
def test_every_completion_token_counts_exactly_once(shapes: list[tuple[int, int]], budget: int) -> None:
    """What the mask selects are the completion tokens of all rollouts with their own log-probs, no more."""
    rollouts = from_shapes(shapes)
    micros = micro_batches(rollouts, everyone(rollouts), budget)
    seen: list[tuple[str, int, float]] = []
    for micro in micros:
        for row, name in enumerate(micro.rollout_ids):
            where = micro.mask[row]
            seen += [
                (name, int(t), float(b))
                for t, b in zip(micro.targets[row][where], micro.behaviour[row][where])
            ]
    wanted = [(r.rollout_id, t, lp) for r in rollouts for t, lp in zip(r.token_ids, r.logprobs)]
    assert sorted(seen) == sorted(wanted)
    assert sum(micro.tokens for micro in micros) == sum(r.tokens for r in rollouts)
    assert all((micro.behaviour[~micro.mask] == 0).all() for micro in micros)


@given(SHAPES, st.integers(14, 60))
def test_micro_batches_keep_the_budget_and_the_order(shapes: list[tuple[int, int]], budget: int) -> None:
    """Rows times padded length stay within the budget, and lengths never rise from row to row."""
    rollouts = from_shapes(shapes)
    micros = micro_batches(rollouts, everyone(rollouts), budget)
    assert all(micro.input_ids.numel() <= budget for micro in micros)
    lengths = [int(n) for micro in micros for n in micro.attention_mask.sum(dim=1)]
    assert lengths == sorted(lengths, reverse=True)
    assert all(int(m.attention_mask[0].sum()) == m.input_ids.shape[1] for m in micros)


@given(SHAPES)
def test_rows_keep_their_sequence_and_advantage(shapes: list[tuple[int, int]]) -> None:
    """Each row is prompt, completion, padding, with the advantage of its own rollout."""
    rollouts = {r.rollout_id: r for r in from_shapes(shapes)}
    for micro in micro_batches(list(rollouts.values()), everyone(list(rollouts.values())), 100):
        for row, name in enumerate(micro.rollout_ids):
            kept = micro.input_ids[row][micro.attention_mask[row].bool()].tolist()
            assert kept == [*rollouts[name].prompt_ids, *rollouts[name].token_ids]
            assert micro.advantages[row] == rollouts[name].group_id


def test_rollouts_without_an_advantage_are_left_out() -> None:
    """Only rollouts that have an advantage reach a micro-batch."""
    rollouts = from_shapes([(1, 2), (1, 3)])
    micros = micro_batches(rollouts, {"1:0": 1.0}, 10)
    assert [micro.rollout_ids for micro in micros] == [("1:0",)]


def test_tokens_of_the_environment_are_masked() -> None:
    """Spans take out tokens in the middle of a completion, with their recorded log-probs."""
    written = make_rollout(0, 0, [5, 6, 7], 0.0, logprobs=[-1.0, -9.0, -2.0])
    rollout = dataclasses.replace(written, environment=(Span(1, 2),))
    (micro,) = micro_batches([rollout], {"0:0": 1.0}, 10)
    assert micro.targets[micro.mask].tolist() == [5, 7]
    assert micro.behaviour.tolist() == [[0.0, -1.0, 0.0, -2.0]]


def test_version_is_that_of_the_whole_sequence_or_none() -> None:
    """A rollout whose segments carry two versions has no single version."""
    whole = make_rollout(0, 0, [5, 6], 0.0, version=7)
    mixed = dataclasses.replace(make_rollout(1, 0, [5, 6], 0.0), segments=(Segment(0, 6), Segment(1, 7)))
    (micro,) = micro_batches([whole, mixed], {"0:0": 1.0, "1:0": 1.0}, 100)
    assert torch.equal(micro.versions, torch.tensor([7, -1]))


@pytest.mark.parametrize(
    ("change", "budget", "message"),
    [
        ({"token_ids": (), "logprobs": ()}, 99, "rollout 0:0 has 2 prompt and 0 completion tokens"),
        ({"prompt_ids": ()}, 99, "rollout 0:0 has 0 prompt and 2 completion tokens"),
        ({"logprobs": (-1.0,)}, 99, "rollout 0:0 has 1 log-probs for 2 tokens"),
        ({}, 3, "rollout 0:0 is 4 tokens long with its prompt, above the learner's token budget of 3"),
    ],
)
def test_a_rollout_that_cannot_be_trained_is_named(
    change: dict[str, tuple[float, ...]], budget: int, message: str
) -> None:
    """Empty, mismatched or overlong rollouts are refused with their id and the numbers."""
    rollout = dataclasses.replace(make_rollout(0, 0, [5, 6], 0.0), **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        micro_batches([rollout], {"0:0": 1.0}, budget)
