"""The desk: rollouts at the learner's door are checked, made durable and judged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.task import Prompt
from echo2.runtime.data.verify import Verifier, VerifierError
from echo2.runtime.driver.desk import Desk, OpenGroup
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.transport import messages as m

VOCABULARY, MAX_TOKENS, NEWEST = 32, 4, 3


class Words:
    """A tokenizer whose texts are chosen by the first token."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return {5: "nan", 6: "raise"}.get(ids[0], "good")


def at_desk(path: Path, story: Callable[[Desk, Ledger], Awaitable[None]]) -> None:
    """Run a story at a desk with group 7 of two rollouts open on w-0."""

    async def run() -> None:
        ledger = Ledger(path / "ledger.sqlite")
        queue = LedgerQueue(ledger)
        verifier = Verifier(TaskSpec("bad_verifiers:Misbehaving", {"isolated": False}))
        desk = Desk(queue, verifier, Words(), VOCABULARY, MAX_TOKENS, judges=1)
        group = OpenGroup(7, "w-0", Prompt(0, "?"), (1, 2), 0, 2)
        desk.open[7] = group
        await queue.dispatch(group.tickets())
        try:
            await story(desk, ledger)
        finally:
            desk.close()
            await queue.settled()
            queue.close()

    asyncio.run(run())


def wire(index: int = 0, **changes: Any) -> m.WireRollout:
    """A good rollout of group 7 but for `changes`; built without the message's own checks."""
    fields: dict[str, Any] = {
        "group_id": 7,
        "index": index,
        "token_ids": (3, 4),
        "logprobs": (-0.5, -0.5),
        "segments": (m.WireSegment(start=0, version=2),),
        "finish_reason": "stop",
    }
    return m.WireRollout.model_construct(**{**fields, **changes})


def sent(*rollouts: m.WireRollout) -> m.Upload:
    return m.Upload.model_construct(incarnation=1, rollouts=rollouts)


def segments(*pairs: tuple[int, int]) -> tuple[m.WireSegment, ...]:
    return tuple(m.WireSegment(start=start, version=version) for start, version in pairs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index": 2}, "the group has 2 rollouts, 0 to 1"),
        ({"token_ids": (3, VOCABULARY)}, "token_ids.1. is 32, allowed is 0 to 31"),
        ({"token_ids": (3, -1)}, "token_ids.1. is -1"),
        ({"token_ids": (), "logprobs": ()}, "0 tokens, allowed is 1 to 4|'0 tokens'"),
        ({"token_ids": (3,) * 5, "logprobs": (-0.1,) * 5}, "'5 tokens', allowed is 1 to 4"),
        ({"logprobs": (-0.5,)}, "'1 values', allowed is one per token, 2"),
        ({"logprobs": (-0.5, float("nan"))}, "logprobs.1. is nan"),
        ({"logprobs": (-0.5, float("-inf"))}, "logprobs.1. is -inf"),
        ({"logprobs": (-0.5, 0.2)}, "logprobs.1. is 0.2, allowed is finite and <= 0"),
        ({"segments": segments((0, NEWEST + 1))}, "version is 4, allowed is <= 3"),
        ({"segments": segments((0, 2), (1, 1))}, "versions never go back"),
        ({"segments": segments((1, 2))}, "segments.0..start is 1"),
        ({"segments": segments((0, 1), (2, 2))}, "segments.1..start is 2"),
        ({"segments": ()}, "does not say which version"),
        ({"finish_reason": "abort"}, "cut short by its engine"),
    ],
)
def test_a_malformed_rollout_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Refused, counted, its group named as broken, the ledger untouched; a good one beside it is accepted."""

    async def story(desk: Desk, ledger: Ledger) -> None:
        upload = sent(wire(**changes), wire(1))
        verdicts, accepted, broken = await desk.take("w-0", upload, NEWEST)
        assert [verdict.outcome for verdict in verdicts] == ["refused", "accepted"]
        assert [rollout.rollout_id for rollout in accepted] == ["7:1"]
        assert list(broken) == [7] and desk.refused == 1
        assert re.search(words, verdicts[0].detail), verdicts[0].detail

    at_desk(tmp_path, story)


def test_what_nobody_waits_for_is_late(tmp_path: Path) -> None:
    """A rollout of an unknown group, or of another worker's, is late: neither accepted nor a failure."""

    async def story(desk: Desk, ledger: Ledger) -> None:
        verdicts, accepted, broken = await desk.take("w-0", sent(wire(group_id=99)), NEWEST)
        others = await desk.take("w-1", sent(wire()), NEWEST)
        assert [v.outcome for v in (*verdicts, *others[0])] == ["late", "late"]
        assert not accepted and not others[1] and not broken and desk.refused == 0

    at_desk(tmp_path, story)


def test_a_rollout_counts_once_however_often_it_is_sent(tmp_path: Path) -> None:
    """Twice in one upload, and again in the next: one is accepted, the others are duplicates."""

    async def story(desk: Desk, ledger: Ledger) -> None:
        verdicts, accepted, _ = await desk.take("w-0", sent(wire(), wire(), wire(1)), NEWEST)
        assert [verdict.outcome for verdict in verdicts] == ["accepted", "duplicate", "accepted"]
        assert [rollout.rollout_id for rollout in accepted] == ["7:0", "7:1"]
        verdicts, accepted, _ = await desk.take("w-0", sent(wire()), NEWEST)
        assert [verdict.outcome for verdict in verdicts] == ["duplicate"] and not accepted

    at_desk(tmp_path, story)


def test_a_group_given_up_meanwhile_takes_nothing(tmp_path: Path) -> None:
    """A rollout that crosses the end of its group on the way is late by the ledger's word."""

    async def story(desk: Desk, ledger: Ledger) -> None:
        ledger.give_up(7, True, "test")
        verdicts, accepted, _ = await desk.take("w-0", sent(wire()), NEWEST)
        assert [verdict.outcome for verdict in verdicts] == ["late"] and not accepted

    at_desk(tmp_path, story)


def test_rewards_are_durable_before_they_are_told(tmp_path: Path) -> None:
    """Judged rollouts come back with the rewards that the ledger has; a verifier that raises gives 0."""

    async def story(desk: Desk, ledger: Ledger) -> None:
        _, accepted, _ = await desk.take("w-0", sent(wire(), wire(1, token_ids=(6, 1))), NEWEST)
        judged = await desk.judge(accepted, {7: desk.open[7].prompt})
        assert {one.rollout.rollout_id: one.reward for one in judged} == {"7:0": 1.0, "7:1": 0.0}
        assert {entry.rollout_id: entry.reward for entry in ledger.entries()} == {"7:0": 1.0, "7:1": 0.0}

    at_desk(tmp_path, story)


def test_a_reward_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    """NaN from a verifier raises an error that names task and prompt; nothing is recorded."""

    async def story(desk: Desk, ledger: Ledger) -> None:
        _, accepted, _ = await desk.take("w-0", sent(wire(token_ids=(5, 1))), NEWEST)
        with pytest.raises(VerifierError, match="task misbehaving: the reward of prompt 0 is nan"):
            await desk.judge(accepted, {7: desk.open[7].prompt})
        assert [entry.reward for entry in ledger.entries()] == [None, None]

    at_desk(tmp_path, story)
