"""The groups a worker generates: each a task that streams its finished rollouts into the outbox.

Called by the agent. A group of a task of several turns is played here, with the environment of `stage`. A
group that cannot be completed is reported; an engine that cannot go on is handed to `died`, once for every
group it takes with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.learning.sampling import Sampling
from echo2.runtime.rollout.engine import Engine
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, SamplingSettings
from echo2.runtime.transport import messages as m
from echo2.runtime.worker.measure import RateMeter
from echo2.runtime.worker.outbox import Outbox
from echo2.runtime.worker.stage import Stage

log = logging.getLogger("echo2.worker")

Tell = Callable[[int, m.Report], None]
Died = Callable[[Engine, str], None]


class _UnusableError(Exception):
    """The group has lost a rollout, and with it its use."""


class Groups:
    """Running groups by id. `meter` counts their rollouts; a new engine brings a new one."""

    def __init__(self, outbox: Outbox, tell: Tell, died: Died) -> None:
        self._outbox, self._tell, self._died = outbox, tell, died
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stage = Stage()
        self.meter: RateMeter | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, engine: Engine, order: m.Generate, incarnation: int, model: Path) -> None:
        """Begin a group. One that runs under its id is what was asked for already: nothing happens.

        `model` is the engine's model directory, where the tokenizer for several turns is.
        """
        if order.group_id in self._tasks:
            log.debug("group %d is running already", order.group_id)
            return
        work = self._run(engine, order, incarnation, model)
        task = asyncio.create_task(work, name=f"echo2-group-{order.group_id}")
        self._tasks[order.group_id] = task
        task.add_done_callback(lambda done: self._ended(order.group_id, done))

    def cancel(self, group_id: int) -> None:
        """Stop a group and forget what it has made."""
        task = self._tasks.pop(group_id, None)
        if task is not None:
            task.cancel()
        self._outbox.forget_group(group_id)

    async def cancel_all(self) -> None:
        """Stop all groups; what they have finished stays in the outbox."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, group_id: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(group_id) is task:
            del self._tasks[group_id]

    async def _run(self, engine: Engine, order: m.Generate, incarnation: int, model: Path) -> None:
        try:
            await self._generate(engine, order, incarnation, model)
        except (UserError, _UnusableError) as error:
            log.warning("group %d failed: %s", order.group_id, error)
            self._outbox.forget_group(order.group_id)
            self._tell(incarnation, m.GroupFailed(group_id=order.group_id, cause=cause_of(error)))
        except Exception as error:  # EngineError, or a defect of the engine: neither can go on
            self._died(engine, cause_of(error))

    async def _generate(self, engine: Engine, order: m.Generate, incarnation: int, model: Path) -> None:
        meter, left = self.meter, order.rollouts
        request = request_of(order)
        source = engine if order.play is None else await self._stage.on(engine, order, model)
        await self._outbox.room()
        if meter is not None:
            meter.began(left)
        try:
            async with aclosing(source.generate(request)) as stream:
                async for rollout in stream:
                    if rollout.finish_reason == "abort":
                        raise _UnusableError(f"rollout {rollout.index} was cut short by a swap of weights")
                    left -= 1
                    rate = meter.finished(rollout.generated) if meter is not None else None
                    if rate is not None:
                        log.info("%.2f rollouts/s, %.0f tokens/s", rate.rollouts_per_s, rate.tokens_per_s)
                        self._tell(incarnation, rate)
                    await self._outbox.put(incarnation, wire_of(rollout))
            if left:
                raise _UnusableError(f"the engine ended it with {left} of {order.rollouts} rollouts missing")
        finally:
            if meter is not None:
                meter.left(left)


def request_of(order: m.Generate) -> GroupRequest:
    """What the engine is asked for. Raises UserError for sampling that is none."""
    sampling = SamplingSettings(
        Sampling(order.temperature, order.top_k, order.top_p),
        order.max_tokens,
        order.stop_token_ids,
        order.seed,
    )
    return GroupRequest(order.group_id, order.prompt_ids, order.rollouts, sampling)


def wire_of(rollout: GeneratedRollout) -> m.WireRollout:
    """A finished rollout as it is sent. Raises UserError for one the learner could not take (NaN)."""
    fields = {
        "group_id": rollout.group_id,
        "index": rollout.index,
        "token_ids": rollout.token_ids,
        "logprobs": rollout.logprobs,
        "segments": [m.WireSegment(start=s.start, version=s.version) for s in rollout.segments],
        "finish_reason": rollout.finish_reason,
        "environment": [m.WireSpan(start=s.start, end=s.end) for s in rollout.environment],
    }
    try:
        return m.WireRollout.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"rollout {rollout.index}: {where} is {first['input']!r:.60} ({first['msg']}); "
            "the engine's output cannot be trained on"
        ) from None


def cause_of(error: BaseException) -> str:
    """One line for a report."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 1000 else text[:997] + "..."
