"""Turns as tokens: how a conversation of model and environment is written into one sequence.

Used on both sides, so that they agree: the worker builds a rollout with it beside its engine, the learner
takes one apart at its door and holds every token of the environment against its own play of the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.encode import encode_answer
from echo2.runtime.data.rollout import Rollout, Span
from echo2.runtime.data.task import Prompt
from echo2.runtime.data.verify import JUDGED, Verifier


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How turns are written. `tokenizer` is a transformers tokenizer, `template` as in `encode_prompt`.

    A turn of the model ends with one of `stop_token_ids` or after `turn_tokens`; the whole conversation
    after the prompt has at most `max_tokens`.
    """

    tokenizer: Any
    template: str
    stop_token_ids: frozenset[int]
    turn_tokens: int
    max_tokens: int

    def room(self, used: int) -> int:
        """Tokens that the model's next turn may have; below 1 there is none."""
        return min(self.turn_tokens, self.max_tokens - used)

    def text(self, turn: Sequence[int]) -> str:
        """A turn of the model as the environment reads it."""
        return str(self.tokenizer.decode(list(turn), skip_special_tokens=True))

    def answer(self, text: str, turn: Sequence[int]) -> tuple[int, ...]:
        """The environment's text after the model's turn `turn`, as token ids. Raises UserError if empty."""
        stopped = turn[-1] if turn[-1] in self.stop_token_ids else None
        return encode_answer(self.tokenizer, text, self.template, stopped)


def model_turns(token_ids: Sequence[int], environment: Sequence[Span]) -> list[tuple[int, ...]]:
    """The model's turns: what the environment's spans leave."""
    starts = [0, *(span.end for span in environment)]
    ends = [*(span.start for span in environment), len(token_ids)]
    return [tuple(token_ids[start:end]) for start, end in zip(starts, ends)]


def replayed(rollout: Rollout, prompt: Prompt, rules: TurnRules, verifier: Verifier) -> float:
    """Play a rollout's episode again and return its reward.

    Nothing but the model's own tokens is taken from the rollout. Raises UserError where a turn does not end
    as turns do, a token of the environment is another one than it wrote, or the episode ends too early.
    """
    turns = model_turns(rollout.token_ids, rollout.environment)
    for number, turn in enumerate(turns, 1):
        _check_turn(rollout, number, turn, number == len(turns), rules)
    played = verifier.play(prompt, [rules.text(turn) for turn in turns])
    if played.verdict.reason != JUDGED:
        raise UserError(
            f"rollout {rollout.rollout_id}: its episode cannot be played again: {played.verdict.reason}, "
            f"{played.verdict.detail}"
        )
    if len(played.answers) < len(turns):
        raise UserError(
            f"rollout {rollout.rollout_id}: has {len(turns)} turns, but its episode was over after "
            f"{len(played.answers)}"
        )
    for number, (span, answer) in enumerate(zip(rollout.environment, played.answers), 1):
        text = answer or ""  # None ends the answers, and there is one more of them than spans
        expected = rules.answer(text, turns[number - 1])
        if rollout.token_ids[span.start : span.end] != expected:
            raise UserError(
                f"rollout {rollout.rollout_id}: the environment's answer to turn {number} is another one "
                f"({len(expected)} tokens for {text[:60]!r}); the worker plays another environment, check "
                "its version of echo2 and of the task's packages"
            )
    _check_end(rollout, played.answers[-1], turns[-1], rules)
    return played.verdict.reward


def _check_turn(rollout: Rollout, number: int, turn: tuple[int, ...], last: bool, rules: TurnRules) -> None:
    limit = rules.room(rollout.tokens - len(turn)) if last else rules.turn_tokens
    if len(turn) > limit or any(token in rules.stop_token_ids for token in turn[:-1]):
        raise UserError(
            f"rollout {rollout.rollout_id}: turn {number} has {len(turn)} tokens; it has at most {limit}, "
            "and none after a stop token"
        )
    if turn[-1] not in rules.stop_token_ids and len(turn) < limit:
        raise UserError(
            f"rollout {rollout.rollout_id}: turn {number} was cut off after {len(turn)} of {limit} tokens "
            "without a stop token"
        )


def _check_end(rollout: Rollout, answer: str | None, turn: tuple[int, ...], rules: TurnRules) -> None:
    """An episode is over, or there is no room for the answer and another token: a worker may not choose."""
    if answer is None:
        over = "stop"
    else:
        used = rollout.tokens + len(rules.answer(answer, turn))
        over = "length" if rules.room(used) < 1 else "none: its episode goes on"
    if rollout.finish_reason != over:
        raise UserError(
            f"rollout {rollout.rollout_id}: finish_reason is {rollout.finish_reason!r}, allowed is {over}"
        )
