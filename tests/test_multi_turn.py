"""Several turns beside any engine: tokens, versions, limits and ends; a real engine against the learner."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import live_run as live
import pytest
import torch
from turns_kit import (
    CHARACTERS,
    EOS,
    MAX_TOKENS,
    RIGHT,
    TOKENIZER,
    TURN_TOKENS,
    Count,
    Scripted,
    arrived,
    played,
    request,
    rules,
    verifier,
)

from echo2.errors import UserError
from echo2.runtime.data.encode import encode_answer
from echo2.runtime.data.ledger_query import LedgerReader
from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.rollout import Rollout, Segment, Span, check, rollout_id
from echo2.runtime.data.states import State
from echo2.runtime.data.tiny import character_tokenizer
from echo2.runtime.data.turns import TurnRules, model_turns, replayed
from echo2.runtime.data.verify import Verifier
from echo2.runtime.rollout.engine import EngineError
from echo2.runtime.rollout.multi_turn import MultiTurn
from echo2.runtime.rollout.request import GeneratedRollout

IDS = {text: tuple(TOKENIZER.encode(text)) for text in ("5", "6", "7", "6>", "7>")}


# ---- the worker's side ---------------------------------------------------------------------------------


def test_turns_and_answers_follow_each_other() -> None:
    """Turn, answer, turn, answer, turn: the environment's tokens are marked and have log-prob 0."""
    engine = Scripted(RIGHT)
    made = played(engine)
    assert [one.index for one in made] == [0, 1]
    for one in made:
        assert one.token_ids == (*IDS["5"], EOS, *IDS["6>"], *IDS["6"], EOS, *IDS["7>"], *IDS["7"], EOS)
        assert one.environment == (Span(2, 4), Span(6, 8))
        assert one.logprobs == (-0.5, -0.5, 0, 0, -0.5, -0.5, 0, 0, -0.5, -0.5)
        assert (one.finish_reason, one.generated, one.segments) == ("stop", 6, (Segment(0, 0),))
    first, *later = engine.asked
    assert first.rollouts == 2 and len(later) == 4 and engine.closed == 5
    assert len({asked.sampling.seed for asked in engine.asked}) == 5
    assert later[0].prompt_ids == (*request().prompt_ids, *made[0].token_ids[:4])


def test_every_turn_carries_its_version() -> None:
    """A swap between turns begins a segment at the next turn; the answer before it belongs to the old one."""
    (one,) = played(Scripted(RIGHT, moving=True), rollouts=1)
    assert one.segments == (Segment(0, 0), Segment(4, 1), Segment(8, 2))
    check(arrived(one), 64, MAX_TOKENS, newest_version=2)


def test_without_room_for_an_answer_and_a_token_the_rollout_ends() -> None:
    """It ends with a turn of the model, reason "length", and never exceeds the limit."""
    for limit in range(1, 11):
        (one,) = played(Scripted(RIGHT), max_tokens=limit, rollouts=1)
        assert len(one.token_ids) <= limit
        assert one.finish_reason == ("stop" if limit >= 9 else "length")
        assert not one.environment or one.environment[-1].end < len(one.token_ids)
        check(arrived(one), 64, limit)
        replayed(arrived(one), Count().prompt(5), rules(limit), verifier())


def test_what_a_swap_cuts_short_is_an_abort() -> None:
    """An aborted turn ends its rollout as aborted, so that the worker gives the group up."""
    (one,) = played(Scripted(RIGHT, reason="abort"), rollouts=1)
    assert one.finish_reason == "abort" and not one.environment


def test_an_environment_that_fails_names_the_turn() -> None:
    """The error has task, turn and prompt, and every stream of the engine is closed."""
    engine = Scripted(["5", "bad", "7"])
    with pytest.raises(UserError, match="task count: turn 2 of prompt 5 failed: ValueError: no such word"):
        played(engine)
    assert engine.closed == len(engine.asked)


def test_an_engine_that_dies_is_an_engine_error() -> None:
    """What an engine raises in any turn comes through as it is."""

    class Dies(Scripted):
        async def generate(self, asked):  # type: ignore[no-untyped-def, override]
            if len(self.asked) == 1:
                raise EngineError("gone")
            async for one in super().generate(asked):
                yield one

    with pytest.raises(EngineError, match="gone"):
        played(Dies(RIGHT), rollouts=1)


def test_closing_the_stream_ends_all_turns() -> None:
    """A group that is cancelled leaves no request running in the engine."""
    engine = Scripted(RIGHT)
    judge = verifier()
    turns = MultiTurn(engine, rules(), 3, partial(judge.environment, judge.task.prompt(5)))  # type: ignore[arg-type]

    async def run() -> None:
        stream = turns.generate(request(rollouts=8))
        await anext(stream)
        await stream.aclose()
        assert engine.closed == len(engine.asked)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


# ---- chat templates ------------------------------------------------------------------------------------

CHATML = (
    "{% for m in messages %}(s){{ m.role }},{{ m.content }}(e),{% endfor %}"
    "{% if add_generation_prompt %}(s)assistant,{% endif %}"
)


def test_answers_go_through_the_chat_template() -> None:
    """Prompt, turn and answer in a row are what the template makes of the whole conversation."""
    chat = character_tokenizer(CHARACTERS)
    chat.chat_template = CHATML
    told = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    told.append({"role": "user", "content": "c"})
    whole = chat.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
    begun = chat.apply_chat_template(told[:1], tokenize=False, add_generation_prompt=True)
    ids = [*chat.encode(begun), *chat.encode("b"), *encode_answer(chat, "c")]
    assert chat.decode(ids) == whole
    # A model that writes the template's own end of turn is not given it twice.
    chat.chat_template = CHATML.replace("(e)", "<eos>")
    cut, stopped = (chat.decode(list(encode_answer(chat, "c", stopped=s))) for s in (None, EOS))
    assert cut == "<eos>" + stopped


def test_a_template_that_rewrites_the_past_is_refused() -> None:
    """Turns can only be appended; the error says to write plainly."""
    chat = character_tokenizer(CHARACTERS)
    chat.chat_template = "{{ messages | length }}" + CHATML
    with pytest.raises(UserError, match="rewrites earlier messages"):
        encode_answer(chat, "c")


# ---- real parts ----------------------------------------------------------------------------------------


def test_the_learner_agrees_with_a_real_engine_on_every_turn() -> None:
    """The engine's log-probs of several turns are the learner's of the whole sequence, environment masked."""
    pytest.importorskip("pokerkit")
    from echo2.runtime.data.tasks.poker import Poker
    from echo2.runtime.driver.learner_host import load_model
    from echo2.runtime.driver.setup import load_tokenizer
    from echo2.runtime.learning.learner import Learner
    from echo2.runtime.learning.settings import LearnerSettings
    from echo2.runtime.rollout.request import GroupRequest, SamplingSettings
    from echo2.runtime.rollout.transformers_engine import TransformersEngine, TransformersSettings

    torch.set_num_threads(1)
    model = Path(__file__).parent.parent / "assets" / "tiny-poker"
    tokenizer, judge = load_tokenizer(model), Verifier(TaskSpec("echo2.runtime.data.tasks.poker:Poker"))
    ends = frozenset({int(tokenizer.eos_token_id)})
    how = TurnRules(tokenizer, "plain", ends, 8, 200)
    prompt = Poker(instruction="").prompt(3)
    ids = tuple(tokenizer.encode(prompt.text))

    async def run() -> list[GeneratedRollout]:
        engine = TransformersEngine(TransformersSettings(model, max_running=16))
        await engine.start()
        try:
            turns = MultiTurn(engine, how, Poker.turns, partial(judge.environment, prompt))
            group = GroupRequest(1, ids, 12, SamplingSettings(max_tokens=200, stop_token_ids=tuple(ends)))
            return [one async for one in turns.generate(group)]
        finally:
            await engine.stop()

    made = asyncio.run(run())
    rollouts = [
        Rollout(
            rollout_id(1, one.index), 1, one.index, 3, 0, "w", ids, one.token_ids, one.logprobs, one.segments,
            one.finish_reason, environment=one.environment,
        )
        for one in made
    ]  # fmt: skip
    assert len(rollouts) == 12 and max(len(one.environment) for one in rollouts) >= 2
    for rollout in rollouts:
        assert replayed(rollout, prompt, how, judge) <= 1.0
        assert all(len(turn) <= 8 for turn in model_turns(rollout.token_ids, rollout.environment))
    scored = Learner(load_model(model), LearnerSettings()).logprobs(rollouts)
    for rollout in rollouts:
        theirs = [value for value, mine in zip(rollout.logprobs, rollout.chosen) if mine]
        assert scored[rollout.rollout_id] == pytest.approx(theirs, abs=2e-4)


def test_turn_tokens_and_turns_reach_the_rules() -> None:
    """The limit of a turn is the smaller of its own and what is left."""
    assert [rules().room(used) for used in (0, 36, 38, 40)] == [TURN_TOKENS, TURN_TOKENS, 2, 0]


def test_poker_trains_live(tmp_path: Path) -> None:
    """`echo2 train` on the shipped configuration: turns are trained, the environment's tokens are not."""
    pytest.importorskip("pokerkit")
    config = live.REPOSITORY / "experiments" / "live" / "poker.toml"
    small = ("run.steps=2", "run.staleness=0", "batch.rollouts_per_step=32", "train.checkpoint_every=2")
    options = [part for value in small for part in ("--set", value)]
    done = live.finished("train", config, "--out", tmp_path / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    with LedgerReader(tmp_path / "run" / "ledger.sqlite") as ledger:
        trained = list(ledger.rollouts(state=State.TRAINED))
    assert len(trained) == 64 and any(rollout.environment for rollout in trained)
    assert all(-1.0 <= rollout.reward <= 1.0 for rollout in trained)
    for row in live.rows(tmp_path / "run"):
        assert row["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
        assert row["trained_tokens_mean"] < sum(one.tokens for one in trained) / len(trained)
