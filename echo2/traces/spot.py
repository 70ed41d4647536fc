"""When spot machines were up: intervals by slot, replayed by the simulator. Drops of a zone stay together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.traces.catalogue import open_trace

Interval = tuple[float, float]


@dataclass(frozen=True)
class AvailabilityTrace:
    """Up-intervals (start_s, end_s) of K slots over `duration_s`; a slot's next interval is a new machine.

    Traces with node ids: a new node takes the slot that has been free longest, so K is the peak.
    Traces of counts: slot j is up while more than j machines are alive, so a drop of n takes n slots
    down together, and which machine it was is not known.
    """

    trace_id: str
    duration_s: float
    nodes: tuple[tuple[Interval, ...], ...]

    @property
    def peak(self) -> int:
        """The most machines up at one time."""
        return len(self.nodes)

    @cached_property
    def node_hours(self) -> float:
        """Machine-hours up."""
        return sum(end - start for slot in self.nodes for start, end in slot) / 3600

    @property
    def mean_alive(self) -> float:
        """Machines up, averaged over time."""
        return self.node_hours * 3600 / self.duration_s

    @property
    def preemptions(self) -> int:
        """Intervals that end before the trace does."""
        return sum(end < self.duration_s for slot in self.nodes for _, end in slot)

    @property
    def preemptions_per_node_hour(self) -> float:
        """Losses per machine-hour up."""
        return self.preemptions / self.node_hours


def availability(id_or_path: str | Path) -> AvailabilityTrace:
    """Up-intervals by slot of a shipped trace, or of your own file (`path`, `path#trace_id`)."""
    loaded = open_trace(id_or_path, "availability")
    frame = loaded.frame
    ids = list(dict.fromkeys(frame["trace_id"]))
    if len(ids) > 1:
        raise UserError(f"{loaded.name} holds {len(ids)} series; pick one with '{id_or_path}#{ids[0]}'")
    named = set(frame["node"] != "")
    if len(named) > 1:
        raise UserError(f"{loaded.name} names a node in some rows only; name it in all, or in none (counts)")
    nodes = _packed(frame) if named == {True} else _levels(frame)
    if not nodes:
        raise UserError(f"{loaded.name} has no machine up at any time; it needs a row with alive >= 1")
    return AvailabilityTrace(str(ids[0]), float(frame["end_s"].max()), nodes)


def _packed(frame: Any) -> tuple[tuple[Interval, ...], ...]:
    """Each node's intervals laid into the slot that has been free longest."""
    up = frame[frame["alive"] == 1].sort_values(["start_s", "end_s"], kind="stable")
    slots: list[list[Interval]] = []
    for start, end in zip(up["start_s"], up["end_s"]):
        free = [slot for slot in slots if slot[-1][1] <= start]
        if free:
            min(free, key=lambda slot: slot[-1][1]).append((float(start), float(end)))
        else:
            slots.append([(float(start), float(end))])
    return tuple(tuple(slot) for slot in slots)


def _levels(frame: Any) -> tuple[tuple[Interval, ...], ...]:
    """Slot j is up while the count is above j; touching intervals are joined."""
    rows = [(float(s), float(e), int(n)) for s, e, n in zip(frame["start_s"], frame["end_s"], frame["alive"])]
    slots: list[tuple[Interval, ...]] = []
    for j in range(max(n for _, _, n in rows)):
        joined: list[Interval] = []
        for start, end, count in rows:
            if count > j:
                if joined and joined[-1][1] == start:
                    joined[-1] = (joined[-1][0], end)
                else:
                    joined.append((start, end))
        slots.append(tuple(joined))
    return tuple(slots)
