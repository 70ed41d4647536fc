"""Groups of rollouts in a live run: ordered from workers, taken in at the door, judged, dropped.

Called by the live world for the scheduler's decisions, and by the hub for what workers deliver.
"""

from __future__ import annotations

import json

from echo2.config import Config, Train
from echo2.errors import UserError
from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.data.task import Prompt, Task, turn_tokens_of, turns_of
from echo2.runtime.data.verify import VerifierError
from echo2.runtime.driver.desk import Desk, OpenGroup
from echo2.runtime.driver.hub import Seat
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.driver.life import Life
from echo2.runtime.driver.prompts import BrokenTaskError, PromptReader
from echo2.runtime.rollout.request import group_seed
from echo2.runtime.transport import messages as m


def play_of(train: Train, task: Task) -> m.Play | None:
    """What workers are told of a task of several turns; None for single turns."""
    if turns_of(task) < 2:
        return None
    return m.Play(
        task=train.task,
        options=json.dumps(train.task_options),
        template=train.template,
        turn_tokens=turn_tokens_of(task),
    )


class Groups:
    """From the decision to start a group until its rollouts are finished or given up."""

    def __init__(
        self,
        life: Life,
        config: Config,
        group_size: int,
        queue: LedgerQueue,
        desk: Desk,
        prompts: PromptReader,
        stop_token_ids: tuple[int, ...],
    ) -> None:
        self._life, self._config, self._group_size = life, config, group_size
        self._queue, self._desk, self._prompts = queue, desk, prompts
        self._stop_token_ids = stop_token_ids
        self._play = play_of(config.train, prompts.task)

    # ---- ordered ---------------------------------------------------------------------------------

    def start(self, decision: d.StartGroup) -> None:
        """Order a group from its worker; a prompt that is too long fails it at once."""
        self._life.records.metrics.dispatched_rollouts += decision.rollouts
        name = decision.worker_id
        try:
            prompt, ids = self._prompts.encoded(decision.prompt)
        except BrokenTaskError:
            raise
        except UserError as error:
            self._life.tell(f.GroupFailed(self._life.now(), name, decision.group_id, str(error)))
            return
        group = OpenGroup(decision.group_id, name, prompt, ids, decision.attempt, decision.rollouts)
        self._desk.open[group.group_id] = group
        incarnation = self._life.hub.seats[name].incarnation
        self._life.spawn(self._send(group, self._order(decision, ids), incarnation))

    def cancel(self, decision: d.CancelGroup) -> None:
        """Order a worker to stop a group."""
        self._life.hub.post(decision.worker_id, m.Cancel(group_id=decision.group_id))

    def drop(self, decision: d.DropGroup) -> None:
        """Give a group up, in the ledger too; its prompt may come again."""
        group = self._desk.open.pop(decision.group_id, None)
        size = group.rollouts if group is not None else self._group_size
        metrics = self._life.records.metrics
        metrics.dropped_rollouts += size
        metrics.requeued_rollouts += size if decision.requeued else 0
        self._life.spawn(self._give_up(decision))

    def _order(self, decision: d.StartGroup, prompt_ids: tuple[int, ...]) -> m.Generate:
        train = self._config.train
        return m.Generate(
            group_id=decision.group_id,
            prompt=decision.prompt,
            attempt=decision.attempt,
            prompt_ids=prompt_ids,
            rollouts=decision.rollouts,
            seed=group_seed(self._config.seed, decision.prompt, decision.version),
            max_tokens=self._config.rollout.max_tokens,
            stop_token_ids=self._stop_token_ids,
            temperature=train.temperature,
            top_k=train.top_k,
            top_p=train.top_p,
            play=self._play,
        )

    async def _send(self, group: OpenGroup, order: m.Generate, incarnation: int) -> None:
        await self._queue.dispatch(group.tickets())
        seat = self._life.hub.seats[group.worker_id]
        if self._desk.open.get(group.group_id) is group and seat.incarnation == incarnation:
            self._life.hub.post(group.worker_id, order)

    async def _give_up(self, decision: d.DropGroup) -> None:
        await self._queue.give_up(decision.group_id, decision.requeued, decision.reason)

    # ---- delivered -------------------------------------------------------------------------------

    async def delivered(self, seat: Seat, upload: m.Upload) -> list[m.Verdict]:
        """Rollouts at the door: durable when this returns, judged later."""
        life, desk = self._life, self._desk
        newest = life.scheduler.ledger.published
        try:
            verdicts, accepted, broken = await desk.take(seat.worker_id, upload, newest)
        except VerifierError as error:
            life.fail(error)
            raise
        for group_id, cause in broken.items():
            life.tell(f.GroupFailed(life.now(), seat.worker_id, group_id, f"refused at the door: {cause}"))
        if accepted and not life.leaving:
            prompts = {
                rollout.group_id: group.prompt
                for rollout in accepted
                if (group := desk.open.get(rollout.group_id)) is not None
            }
            life.spawn(self._judge(accepted, prompts))
        return verdicts

    async def _judge(self, accepted: list[Rollout], prompts: dict[int, Prompt]) -> None:
        counting = [rollout for rollout in accepted if rollout.group_id in prompts]
        for judged in await self._desk.judge(counting, prompts):
            rollout = judged.rollout
            name, oldest = rollout.worker_id, rollout.oldest_version
            self._life.records.finished(name, rollout.generated)
            now = self._life.progress_s = self._life.now()
            self._life.tell(f.RolloutFinished(now, name, rollout.group_id, rollout.generated, oldest))
