"""The transformers engine's batch: rows of any length join and leave, and none notices the others."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("transformers")

from engine_kit import request, tiny_model, worst_error

import echo2.runtime.rollout.decode_batch as decode_batch
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.decode_batch import DecodeBatch, Row
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, group_seed


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(0)


def rows(wanted: GroupRequest) -> list[Row]:
    return [Row.of(wanted, index) for index in range(wanted.rollouts)]


def run(batch: DecodeBatch, arrivals: dict[int, list[Row]]) -> list[tuple[Row, GeneratedRollout]]:
    """Decode until all is done; `arrivals` join before the step of that number."""
    done, at = [], 0
    while batch.rows or any(step >= at for step in arrivals):
        if batch.rows:
            batch.step(0)
        batch.admit(arrivals.get(at, []), 0)
        done += batch.take_finished()
        at += 1
    return done


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_join_and_leave_are_exact(seed: int) -> None:
    """Random prompts, lengths, temperatures and arrival times: every log-prob is that of a pass alone."""
    model, draw = tiny_model(0), random.Random(seed)
    arrivals: dict[int, list[Row]] = {}
    for group in range(8):
        prompt = tuple(draw.randrange(97) for _ in range(draw.randint(1, 40)))
        wanted = request(
            group,
            draw.randint(1, 3),
            draw.randint(1, 30),
            prompt,
            group_seed(seed, group, 0),
            temperature=draw.choice([0.5, 1.0]),
            top_k=draw.choice([0, 0, 20]),
        )
        arrivals.setdefault(draw.randrange(25), []).extend(rows(wanted))
    done = run(DecodeBatch(model), arrivals)
    assert len(done) == sum(map(len, arrivals.values()))
    for row, rollout in done:
        assert len(rollout.token_ids) == row.request.sampling.max_tokens
        assert worst_error(model, row.request, [rollout]) < 5e-5


def test_prefill_in_pieces_is_the_same(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few prompt tokens fit one prefill, the same tokens come out."""
    groups = [request(g, 2, 10, tuple(range(1, 4 + 7 * g))) for g in range(4)]

    def tokens() -> list[tuple[int, ...]]:
        done = run(DecodeBatch(model), {0: [row for g in groups for row in rows(g)]})
        return sorted(rollout.token_ids for _, rollout in done)

    whole = tokens()
    for limit in (1, 20):
        monkeypatch.setattr(decode_batch, "PREFILL_TOKENS", limit)
        assert tokens() == whole


def test_padding_that_nobody_needs_is_dropped(model: Any) -> None:
    """When the longest row leaves, the cache shrinks to the longest that stays."""
    batch = DecodeBatch(model)
    batch.admit(rows(request(0, 1, 2, (1,) * 50)) + rows(request(1, 1, 9, (1, 2, 3))), 0)
    batch.step(0)
    assert len(batch.take_finished()) == 1
    assert batch._mask.shape == (1, 4) and batch._mask.all()


def test_a_segment_begins_where_the_version_changes() -> None:
    """Tokens of one version share a segment; a new version opens the next at its first token."""
    row = Row.of(request(0), 0)
    for version in (4, 4, 6, 6, 7):
        row.append(1, -0.5, version)
    assert row.segments == [Segment(0, 4), Segment(2, 6), Segment(4, 7)]


def test_a_draw_follows_the_distribution(model: Any) -> None:
    """Over many rows, tokens come as often as their probability says (chi-square, fixed seed)."""
    import torch
    from scipy.stats import chisquare

    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5, -torch.inf]]).expand(20_000, -1)
    many = rows(request(0, 20_000))
    decode_batch.sample(logits, many, 0)
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in many]), minlength=6)
    expected = logits[0].double().softmax(-1) * 20_000
    assert counts[5] == 0
    assert chisquare(counts[:5].numpy(), expected[:5].numpy()).pvalue > 1e-3
