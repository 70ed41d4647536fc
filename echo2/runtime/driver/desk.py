"""Rollouts at the learner's door: checked, made durable, judged. The world is told of each one that counts.

Called by the live world. A rollout that is malformed is refused with the reason; its group cannot be
completed there. Accepted ones are on disk before the worker hears of it, and judged after. Where a task has
several turns the episode is played again first: that is its check, and gives its reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout, Segment, Span, check, rollout_id
from echo2.runtime.data.states import Outcome, Ticket
from echo2.runtime.data.task import Prompt
from echo2.runtime.data.turns import TurnRules, replayed
from echo2.runtime.data.verify import Verifier
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.transport import messages as m


@dataclass(slots=True)
class OpenGroup:
    """A group that is being generated: whose it is, and the prompt its rollouts complete."""

    group_id: int
    worker_id: str
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    attempt: int
    rollouts: int

    def tickets(self) -> list[Ticket]:
        """Its rollouts, to be recorded before the worker is told."""
        return [
            Ticket(self.group_id, index, self.prompt.ordinal, self.attempt, self.worker_id)
            for index in range(self.rollouts)
        ]


@dataclass(slots=True)
class Judged:
    """An accepted rollout and its reward."""

    rollout: Rollout
    reward: float


class Desk:
    """The groups that are open, and what is done with their rollouts."""

    def __init__(
        self,
        queue: LedgerQueue,
        verifier: Verifier,
        tokenizer: Any,
        vocab_size: int,
        max_tokens: int,
        judges: int,
        turns: TurnRules | None = None,
    ) -> None:
        """`turns` for a task of several turns; without it no rollout may have any."""
        self.open: dict[int, OpenGroup] = {}
        self.refused = 0
        self._queue = queue
        self._verifier = verifier
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._turns = turns
        self._judges = max(1, judges)
        self._closed = False
        self._threads = ThreadPoolExecutor(self._judges, thread_name_prefix="echo2-judge")

    async def take(
        self, worker_id: str, upload: m.Upload, newest_version: int
    ) -> tuple[list[m.Verdict], list[Rollout], dict[int, str]]:
        """(verdicts, the rollouts newly accepted, why by group for those that were refused).

        Raises VerifierError where episodes are played again and the task itself is at fault.
        """
        verdicts: list[m.Verdict | None] = []
        good: list[Rollout] = []
        places: list[int] = []
        broken: dict[int, str] = {}
        for wire in upload.rollouts:
            group = self.open.get(wire.group_id)
            if group is None or group.worker_id != worker_id:
                # Completed, given up, or from before a restart: nothing waits for it.
                verdicts.append(_verdict(wire, "late"))
                continue
            try:
                rollout = self._checked(group, wire, newest_version)
                if self._turns is not None:
                    rollout = await self._played(rollout, group.prompt, self._turns)
            except UserError as error:
                self.refused += 1
                detail = str(error)[:1000]
                broken[wire.group_id] = detail
                refusal = m.Verdict(
                    group_id=wire.group_id, index=wire.index, outcome="refused", detail=detail
                )
                verdicts.append(refusal)
                continue
            places.append(len(verdicts))
            verdicts.append(None)
            good.append(rollout)
        outcomes = await self._queue.finish(good) if good else []
        accepted = []
        for place, rollout, outcome in zip(places, good, outcomes):
            verdicts[place] = _verdict(rollout, outcome.value)
            if outcome is Outcome.ACCEPTED:
                accepted.append(rollout)
        return [verdict for verdict in verdicts if verdict is not None], accepted, broken

    async def judge(self, rollouts: Sequence[Rollout], prompts: dict[int, Prompt]) -> list[Judged]:
        """Rewards of accepted rollouts, on disk when this returns. Raises VerifierError.

        `prompts` by group id: a group may be closed while its last rollouts are judged.
        """
        loop = asyncio.get_running_loop()
        share = max(1, -(-len(rollouts) // self._judges))
        parts = [rollouts[at : at + share] for at in range(0, len(rollouts), share)]
        done = await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._judge, part, prompts) for part in parts)
        )
        judged = [one for part in done for one in part]
        await self._queue.set_rewards({one.rollout.rollout_id: one.reward for one in judged})
        return judged

    async def _played(self, rollout: Rollout, prompt: Prompt, rules: TurnRules) -> Rollout:
        """The rollout with the reward of its episode, played again. Raises UserError where it is not so."""
        loop = asyncio.get_running_loop()
        reward = await loop.run_in_executor(self._threads, replayed, rollout, prompt, rules, self._verifier)
        return replace(rollout, reward=reward)

    def close(self) -> None:
        """Stop judging; what is not judged yet is judged when the run goes on."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._verifier.close()

    def _judge(self, rollouts: Sequence[Rollout], prompts: dict[int, Prompt]) -> list[Judged]:
        judged = []
        for rollout in rollouts:
            if self._closed:  # else a judge process would be started anew for the next one
                raise RuntimeError("the desk is closed")
            if rollout.judged:  # at the door
                judged.append(Judged(rollout, rollout.reward))
                continue
            text = self._tokenizer.decode(list(rollout.token_ids), skip_special_tokens=True)
            judged.append(Judged(rollout, self._verifier.judge(prompts[rollout.group_id], text).reward))
        return judged

    def _checked(self, group: OpenGroup, wire: m.WireRollout, newest_version: int) -> Rollout:
        name = rollout_id(wire.group_id, wire.index)
        if wire.index >= group.rollouts:
            raise UserError(
                f"rollout {name}: the group has {group.rollouts} rollouts, 0 to {group.rollouts - 1}"
            )
        if wire.finish_reason == "abort":
            raise UserError(f"rollout {name} was cut short by its engine; only whole ones are trained")
        if not wire.segments:
            raise UserError(f"rollout {name} does not say which version generated it")
        if wire.environment and self._turns is None:
            raise UserError(f"rollout {name} has turns of an environment, but its task has none")
        rollout = Rollout(
            rollout_id=name,
            group_id=group.group_id,
            index=wire.index,
            prompt=group.prompt.ordinal,
            attempt=group.attempt,
            worker_id=group.worker_id,
            prompt_ids=group.prompt_ids,
            token_ids=wire.token_ids,
            logprobs=wire.logprobs,
            segments=tuple(Segment(s.start, s.version) for s in wire.segments),
            finish_reason=wire.finish_reason,
            environment=tuple(Span(s.start, s.end) for s in wire.environment),
        )
        check(rollout, self._vocab_size, self._max_tokens, newest_version=newest_version)
        return rollout


def _verdict(rollout: m.WireRollout | Rollout, outcome: m.Outcome, detail: str = "") -> m.Verdict:
    return m.Verdict(group_id=rollout.group_id, index=rollout.index, outcome=outcome, detail=detail)
