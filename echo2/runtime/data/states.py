"""The states of a rollout in the ledger and the moves between them. Read by the ledger and its schema."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from echo2.errors import UserError
from echo2.runtime.data.rollout import rollout_id


class LedgerError(UserError):
    """The ledger refused something: what, why, and what to do."""


class State(StrEnum):
    """Where a rollout is. `FINISHED` is accepted and durable; a claimed one is finished until its commit.

    `TRAINED`, `DROPPED` (its prompt is given up) and `REQUEUED` (its prompt is tried again, by a new group)
    are final, save for the roll-back to a checkpoint.
    """

    DISPATCHED = "dispatched"
    FINISHED = "finished"
    TRAINED = "trained"
    DROPPED = "dropped"
    REQUEUED = "requeued"


class Outcome(StrEnum):
    """What became of a rollout that was sent in. All but `ACCEPTED` leave the ledger as it was.

    `DUPLICATE`: already accepted, possibly trained; the first one counts. `LATE`: given up meanwhile.
    `UNKNOWN`: never dispatched. `MISMATCHED`: dispatched to another worker or for another prompt.
    A sender may forget the rollout after any of them.
    """

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    LATE = "late"
    UNKNOWN = "unknown"
    MISMATCHED = "mismatched"


EDGES = frozenset(
    {
        (State.DISPATCHED, State.FINISHED),
        (State.DISPATCHED, State.DROPPED),
        (State.DISPATCHED, State.REQUEUED),
        (State.FINISHED, State.TRAINED),
        (State.FINISHED, State.DROPPED),
        (State.FINISHED, State.REQUEUED),
    }
)
# Only while the ledger is rolled back to a checkpoint.
ROLLBACK_EDGES = frozenset({(State.TRAINED, State.FINISHED), (State.TRAINED, State.REQUEUED)})


@dataclass(frozen=True, slots=True)
class Ticket:
    """A rollout about to be generated: who, for what. Recorded before the worker is told."""

    group_id: int
    index: int
    prompt: int
    attempt: int
    worker_id: str

    @property
    def rollout_id(self) -> str:
        """ "{group_id}:{index}"."""
        return rollout_id(self.group_id, self.index)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger knows of a rollout, without its tokens.

    `step` is the version it was trained at (or is claimed for), `cause` why it was given up. `tokens` are
    those the model generated. Versions, tokens and reward are None before it finishes.
    """

    rollout_id: str
    group_id: int
    index: int
    prompt: int
    attempt: int
    worker_id: str
    state: State
    step: int | None
    cause: str
    oldest_version: int | None
    newest_version: int | None
    tokens: int | None
    finish_reason: str | None
    reward: float | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a resumed run begins with: all a driver needs to rebuild its queue from the ledger alone.

    `finished_groups` are complete and may be trained. `prompts_again` are (prompt, attempt) without a
    trained, finished or running group, in order; fresh prompts go on at `next_prompt`, groups at
    `next_group_id`. `rolled_back` rollouts were trained above the checkpoint, `requeued` had to be given up.
    """

    version: int
    finished_groups: tuple[int, ...]
    running_groups: tuple[int, ...]
    prompts_again: tuple[tuple[int, int], ...]
    next_prompt: int
    next_group_id: int
    rolled_back: int
    requeued: int
