"""What the tests of the live driver share: recorders instead of a world, small rollouts."""

from __future__ import annotations

import math

from echo2.runtime.data.rollout import Rollout, Segment, rollout_id
from echo2.runtime.data.states import Ticket
from echo2.runtime.driver import hub as h
from echo2.runtime.transport import messages as m


class Recorder:
    """Stands in for the world: notes what it is told, and frees a seat as the world does."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def arrived(self, seat: h.Seat) -> None:
        self.told.append(("arrived", seat.worker_id))

    def gone(self, seat: h.Seat, cause: str) -> None:
        self.told.append(("gone", cause))
        seat.state = h.STANDBY

    def reported(self, seat: h.Seat, report: m.Report) -> None:
        self.told.append(("reported", report.kind))

    async def delivered(self, seat: h.Seat, upload: m.Upload) -> list[m.Verdict]:
        return [m.Verdict(group_id=r.group_id, index=r.index, outcome="accepted") for r in upload.rollouts]


def hello(session: str = "session-1", pool: str = "far", worker_id: str | None = None) -> m.Hello:
    """A worker introduces itself."""
    return m.Hello(protocol=m.PROTOCOL, session=session, pool=pool, engine="simulated", worker_id=worker_id)


def ticket(group_id: int, index: int = 0, worker_id: str = "w-0") -> Ticket:
    """A rollout about to be generated; its prompt has the group's number."""
    return Ticket(group_id, index, group_id, 0, worker_id)


def rollout(group_id: int, index: int = 0, worker_id: str = "w-0", reward: float = math.nan) -> Rollout:
    """A finished rollout of version 0."""
    name = rollout_id(group_id, index)
    return Rollout(
        name, group_id, index, group_id, 0, worker_id, (1, 2), (3, 4), (-0.5, -0.5), (Segment(0, 0),), "stop",
        reward,
    )  # fmt: skip
