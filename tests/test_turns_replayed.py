"""Several turns at the learner's door: played again, and refused where a worker says otherwise."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from turns_kit import (
    EOS,
    MAX_TOKENS,
    RIGHT,
    TOKENIZER,
    Count,
    Scripted,
    arrived,
    played,
    rules,
    verifier,
)

from echo2.errors import UserError
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.packing import IDENTITY_COLUMNS, pack, unpack
from echo2.runtime.data.rollout import Rollout, Segment, Span, check
from echo2.runtime.data.turns import TurnRules, replayed
from echo2.runtime.driver.desk import Desk, OpenGroup
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.transport import messages as m
from echo2.runtime.worker.groups import wire_of


def test_what_was_played_is_played_again() -> None:
    """The learner's own play gives the reward: all right, or one of three wrong."""
    for say, reward in ((RIGHT, 1.0), (["5", "9", "7"], 2 / 3)):
        (one,) = played(Scripted(say), rollouts=1)
        assert replayed(arrived(one), Count().prompt(5), rules(), verifier()) == pytest.approx(reward)


def swapped(ids: Sequence[int], place: int, token: int) -> tuple[int, ...]:
    return (*ids[:place], token, *ids[place + 1 :])


def test_whatever_a_worker_changes_is_refused() -> None:
    """Other answers, an early end, a turn too many, cut or run on, spans moved: each refused by name."""
    (one,) = played(Scripted(RIGHT), rollouts=1)
    good = arrived(one)
    nine = TOKENIZER.encode("9")[0]
    ids, logprobs = good.token_ids, good.logprobs
    cases: list[tuple[dict[str, object], str]] = [
        ({"token_ids": swapped(ids, 2, nine)}, "answer to turn 1 is another one"),
        ({"token_ids": swapped(ids, 6, nine)}, "answer to turn 2 is another one"),
        ({"token_ids": ids[:6], "environment": good.environment[:1]}, "allowed is none: its episode goes on"),
        ({"finish_reason": "length"}, "finish_reason is 'length', allowed is stop"),
        (
            {"token_ids": (*ids, *ids[6:]), "environment": (*good.environment, Span(10, 12))},
            "has 4 turns, but",
        ),
        ({"token_ids": swapped(ids, 9, nine)}, "turn 3 was cut off after 2 of 4 tokens"),
        ({"token_ids": swapped(ids, 0, EOS)}, "turn 1 has 2 tokens.*none after a stop token"),
        ({"environment": (Span(2, 4), Span(7, 8))}, "turn 2 has 3 tokens.*none after a stop token"),
        ({"environment": (Span(2, 4),)}, "turn 2 has 6 tokens; it has at most 4"),
        ({"environment": (Span(1, 4), Span(6, 8))}, "turn 1 was cut off after 1 of 4"),
        ({"environment": ()}, "turn 1 has 10 tokens"),
    ]
    for changes, words in cases:
        bad = dataclasses.replace(good, logprobs=(*logprobs, *logprobs)[: len(ids)], **changes)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=words):
            replayed(bad, Count().prompt(5), rules(), verifier())


@pytest.mark.parametrize(
    ("spans", "logprobs", "words"),
    [
        (((0, 1),), (0.0, -1.0, -1.0, -1.0), r"environment\[0\].start is 0, allowed is 1 to 3"),
        (((1, 4),), (-1.0, 0.0, 0.0, 0.0), r"environment\[0\].end is 4"),
        (((2, 2),), (-1.0,) * 4, r"environment\[0\].end is 2"),
        (((1, 2), (2, 3)), (-1.0, 0.0, 0.0, -1.0), r"environment\[1\].start is 2, allowed is 3 to 3"),
        (((1, 2),), (-1.0, -0.1, -1.0, -1.0), "log-probs is 'not 0'"),
    ],
)
def test_malformed_spans_are_refused(
    spans: tuple[tuple[int, int], ...], logprobs: tuple[float, ...], words: str
) -> None:
    """Spans ascend, have a turn before, between and after, and no log-probs of their own."""
    rollout = Rollout("1:0", 1, 0, 0, 0, "w", (1,), (3, 4, 5, 6), logprobs, (Segment(0, 0),), "stop")
    with pytest.raises(UserError, match=words):
        check(dataclasses.replace(rollout, environment=tuple(Span(*span) for span in spans)), 64, 9)


def test_the_ledger_keeps_the_spans() -> None:
    """Packed and unpacked, a rollout is the same; the ledger counts the tokens that were generated."""
    (one,) = played(Scripted(RIGHT), rollouts=1)
    rollout = arrived(one, reward=0.5)
    row = (*(getattr(rollout, "index" if n == "idx" else n) for n in IDENTITY_COLUMNS), *pack(rollout))
    assert unpack(row) == rollout
    assert pack(rollout)[2] == rollout.generated == 6


def test_an_isolated_environment_answers_the_same() -> None:
    """Played in a process of its own: the same answers; one that hangs is killed and the play refused."""
    judge = verifier(isolated=True)
    try:
        answer = judge.environment(Count().prompt(5))
        assert [answer(text) for text in RIGHT] == ["6>", "7>", None]
        assert judge.play(Count().prompt(5), RIGHT).verdict.reward == 1.0
        judge.deadline_s = 0.3
        with pytest.raises(UserError, match="turn 1 of prompt 5 failed: timed_out"):
            judge.environment(Count().prompt(5))("hang")
    finally:
        judge.close()


def test_at_the_desk_a_true_play_is_taken_with_its_reward_and_another_refused(tmp_path: Path) -> None:
    """The reward on disk is the learner's own; a changed answer is refused; turns need a task of turns."""
    (one,) = played(Scripted(["5", "6", "9"]), rollouts=1)
    true = wire_of(one)
    false = true.model_copy(update={"index": 1, "token_ids": swapped(true.token_ids, 2, 12)})

    async def taken(turns: TurnRules | None, folder: Path) -> tuple[list[str], dict[str, float | None], str]:
        folder.mkdir()
        queue = LedgerQueue(Ledger(folder / "ledger.sqlite"))
        desk = Desk(queue, verifier(), TOKENIZER, 64, MAX_TOKENS, 1, turns)
        group = OpenGroup(7, "w", Count().prompt(5), tuple(TOKENIZER.encode("5>")), 0, 2)
        desk.open[7] = group
        await queue.dispatch(group.tickets())
        try:
            upload = m.Upload(incarnation=1, rollouts=(true, false))
            verdicts, accepted, broken = await desk.take("w", upload, 0)
            await desk.judge(accepted, {7: group.prompt})
            rewards = {entry.rollout_id: entry.reward for entry in queue.ledger.entries()}
            return [verdict.outcome for verdict in verdicts], rewards, broken[7]
        finally:
            desk.close()
            await queue.settled()
            queue.close()

    outcomes, rewards, why = asyncio.run(taken(rules(), tmp_path / "turns"))
    assert outcomes == ["accepted", "refused"] and "answer to turn 1 is another one" in why
    assert rewards == {"7:0": pytest.approx(2 / 3), "7:1": None}
    outcomes, rewards, why = asyncio.run(taken(None, tmp_path / "single"))
    assert outcomes == ["refused", "refused"] and "its task has none" in why
