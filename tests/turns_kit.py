"""What the tests of several turns share: a counting game, its tokenizer, an engine, rollouts of the game."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from functools import partial

from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.rollout import Rollout, Segment, rollout_id
from echo2.runtime.data.task import Episode, Prompt, SeveralTurns
from echo2.runtime.data.tiny import character_tokenizer
from echo2.runtime.data.turns import TurnRules
from echo2.runtime.data.verify import Verifier
from echo2.runtime.rollout.multi_turn import MultiTurn
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, SamplingSettings

RIGHT = ["5", "6", "7"]
CHARACTERS = "0123456789>+-*=,. ()abcdefghijklmnopqrstuvwxyz"
TOKENIZER = character_tokenizer(CHARACTERS)
EOS = int(TOKENIZER.eos_token_id)
MAX_TOKENS, TURN_TOKENS = 40, 4


class Count(SeveralTurns):
    """The environment says a number and expects it back, `rounds` times; reward: the share that was right."""

    name = "count"
    size = None

    def __init__(self, rounds: int = 3, isolated: bool = False, turn_tokens: int = TURN_TOKENS) -> None:
        self.turns, self.isolated, self.turn_tokens = rounds, isolated, turn_tokens
        self.deadline_s = 2.0

    def prompt(self, ordinal: int) -> Prompt:
        return Prompt(ordinal, f"{ordinal}>")

    def episode(self, prompt: Prompt) -> Episode:
        return CountEpisode(prompt, self.turns)


class CountEpisode:
    """One game."""

    def __init__(self, prompt: Prompt, rounds: int) -> None:
        self.first, self._rounds = prompt, rounds
        self._said = self._right = 0

    def turn(self, completion: str) -> str | None:
        if completion == "hang":
            time.sleep(3600)
        if completion == "bad":
            raise ValueError("no such word")
        self._right += completion == str(self.first.ordinal + self._said)
        self._said += 1
        return None if self._said == self._rounds else f"{self.first.ordinal + self._said}>"

    def reward(self) -> float:
        return self._right / self._rounds


def rules(max_tokens: int = MAX_TOKENS, template: str = "plain") -> TurnRules:
    """How the game is written."""
    return TurnRules(TOKENIZER, template, frozenset({EOS}), TURN_TOKENS, max_tokens)


def request(ordinal: int = 5, rollouts: int = 2, max_tokens: int = MAX_TOKENS) -> GroupRequest:
    """A group of the game."""
    sampling = SamplingSettings(max_tokens=max_tokens, stop_token_ids=(EOS,), seed=3)
    return GroupRequest(7, tuple(TOKENIZER.encode(f"{ordinal}>")), rollouts, sampling)


@dataclass
class Scripted:
    """An engine that says what `say` has for the turn; `version` grows by one with every turn if `moving`."""

    say: list[str]
    moving: bool = False
    version: int = 0
    reason: str = "stop"
    asked: list[GroupRequest] = field(default_factory=list)
    closed: int = 0

    async def generate(self, asked: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Rollouts of the text that the number of turns so far calls for."""
        turn = TOKENIZER.decode(list(asked.prompt_ids), skip_special_tokens=True).count(">") - 1
        assert all(asked.group_id != other.group_id for other in self.asked)
        self.asked.append(asked)
        ids = (*TOKENIZER.encode(self.say[turn]), EOS)[: asked.sampling.max_tokens]
        reason = self.reason if ids[-1] == EOS or self.reason == "abort" else "length"
        try:
            for index in range(asked.rollouts):
                await asyncio.sleep(0.001 * (asked.rollouts - index))
                version = self.version + (turn if self.moving else 0)
                segments = (Segment(0, version),)
                yield GeneratedRollout(asked.group_id, index, ids, (-0.5,) * len(ids), segments, reason)
        finally:
            self.closed += 1


def verifier(**options: object) -> Verifier:
    """A verifier of the game."""
    return Verifier(TaskSpec("turns_kit:Count", options))


def played(engine: Scripted, max_tokens: int = MAX_TOKENS, rollouts: int = 2) -> list[GeneratedRollout]:
    """All rollouts of one group, in order."""
    judge = verifier()
    turns = MultiTurn(
        engine,  # type: ignore[arg-type]
        rules(max_tokens),
        3,
        partial(judge.environment, judge.task.prompt(5)),
    )

    async def run() -> list[GeneratedRollout]:
        return [one async for one in turns.generate(request(rollouts=rollouts))]

    return sorted(asyncio.run(run()), key=lambda one: one.index)


def arrived(made: GeneratedRollout, **changes: object) -> Rollout:
    """What the learner makes of it."""
    rollout = Rollout(
        rollout_id(7, made.index), 7, made.index, 5, 0, "w", tuple(TOKENIZER.encode("5>")), made.token_ids,
        made.logprobs, made.segments, made.finish_reason, environment=made.environment,
    )  # fmt: skip
    return replace(rollout, **changes)  # type: ignore[arg-type]
