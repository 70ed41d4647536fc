"""Several turns on any engine: asks it for one turn at a time, and the environment for what comes between.

A wrapper of the worker around `Engine.generate`, so that engines know of single completions only. The turns
of a rollout are separate requests: each prefills the whole conversation with the weights of its moment (a
prefix cache makes that cheap), and rollouts of a group go on independently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from echo2.errors import UserError
from echo2.runtime.data.rollout import Segment, Span
from echo2.runtime.data.turns import TurnRules
from echo2.runtime.rollout.engine import Engine
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, rollout_seed

Environment = Callable[[str], str | None]
"""The environment's side of one episode: told a turn's text, answers, None at the end. May take its time."""

_Item = GeneratedRollout | BaseException | None
INDEX_BITS, TURN_BITS = 16, 16


@dataclass(slots=True)
class _Talk:
    """One rollout as it grows: the model's turns and the environment's answers after the prompt."""

    index: int
    environment: Environment
    turns: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    segments: list[Segment] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def add_turn(self, turn: GeneratedRollout) -> None:
        """What the engine generated. A segment begins where the version changes."""
        for segment in turn.segments:
            if not self.segments or self.segments[-1].version != segment.version:
                self.segments.append(Segment(len(self.token_ids) + segment.start, segment.version))
        self.turns += 1
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs

    def add_answer(self, ids: tuple[int, ...]) -> None:
        """What the environment wrote."""
        self.spans.append(Span(len(self.token_ids), len(self.token_ids) + len(ids)))
        self.token_ids += ids
        self.logprobs += (0.0,) * len(ids)

    def finished(self, group_id: int, reason: str) -> GeneratedRollout:
        """The rollout as it stands."""
        return GeneratedRollout(
            group_id,
            self.index,
            self.token_ids,
            self.logprobs,
            tuple(self.segments),
            reason,
            tuple(self.spans),
        )


class MultiTurn:
    """Generates groups of several turns. `environment()` begins a new episode of the group's prompt.

    `turns` bounds the model's turns of an episode; one that goes on after them is a fault of the task.
    """

    def __init__(self, engine: Engine, rules: TurnRules, turns: int, environment: Callable[[], Environment]):
        self._engine, self._rules, self._turns, self._environment = engine, rules, turns, environment

    async def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Each rollout of the group as its episode ends, like `Engine.generate`.

        Raises UserError where the environment fails. A rollout that a swap cuts short ends with "abort".
        Closing the generator cancels every turn that runs.
        """
        done: asyncio.Queue[_Item] = asyncio.Queue()
        work = asyncio.create_task(self._group(request, done), name=f"echo2-turns-{request.group_id}")
        try:
            for _ in range(request.rollouts):
                item = await done.get()
                if item is None:  # the engine has ended the group early
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _group(self, request: GroupRequest, done: asyncio.Queue[_Item]) -> None:
        """The first turn of all rollouts in one request, then each on its own."""
        try:
            first = self._turn_request(request, 0, 0, request.prompt_ids, 0, request.rollouts)
            async with asyncio.TaskGroup() as tasks, aclosing(self._engine.generate(first)) as stream:
                async for turn in stream:
                    tasks.create_task(self._play(request, turn, done))
        except BaseExceptionGroup as group:
            await done.put(group.exceptions[0])
        except Exception as error:
            await done.put(error)
        else:
            await done.put(None)

    async def _play(self, request: GroupRequest, turn: GeneratedRollout, done: asyncio.Queue[_Item]) -> None:
        """One rollout from its first turn to its end."""
        talk = _Talk(turn.index, self._environment())
        while True:
            talk.add_turn(turn)
            reason = turn.finish_reason
            if reason != "abort":
                reason = await self._answered(talk, turn.token_ids)
            if reason:
                await done.put(talk.finished(request.group_id, reason))
                return
            turn = await self._next(request, talk)

    async def _answered(self, talk: _Talk, turn: tuple[int, ...]) -> str:
        """Tell the environment a turn and write its answer down; why the rollout ends, or ""."""
        answer = await asyncio.to_thread(talk.environment, self._rules.text(turn))
        if answer is None:
            return "stop"
        ids = self._rules.answer(answer, turn)
        if self._rules.room(len(talk.token_ids) + len(ids)) < 1:
            return "length"
        if talk.turns >= self._turns:
            raise UserError(
                f"an episode goes on after {talk.turns} turns, more than the task's `turns`; correct the task"
            )
        talk.add_answer(ids)
        return ""

    async def _next(self, request: GroupRequest, talk: _Talk) -> GeneratedRollout:
        """The model's next turn."""
        prompt = request.prompt_ids + talk.token_ids
        wanted = self._turn_request(request, talk.index, talk.turns, prompt, len(talk.token_ids), 1)
        async with aclosing(self._engine.generate(wanted)) as stream:
            async for turn in stream:
                return turn
        raise UserError(f"the engine ended turn {talk.turns + 1} of rollout {talk.index} without tokens")

    def _turn_request(
        self, request: GroupRequest, index: int, turn: int, prompt: tuple[int, ...], used: int, rollouts: int
    ) -> GroupRequest:
        """A turn as a group of its own: an id no other has, a seed that follows from the rollout and turn."""
        seed = request.sampling.seed
        sampling = replace(
            request.sampling,
            max_tokens=self._rules.room(used),
            seed=seed if turn == 0 else rollout_seed(rollout_seed(seed, index), turn),
        )
        place = (index << TURN_BITS) + turn
        return GroupRequest(
            ((request.group_id + 1) << (INDEX_BITS + TURN_BITS)) + place, prompt, rollouts, sampling
        )
