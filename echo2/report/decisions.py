"""A capped sample of a run's decisions for the report: the rare kinds whole, the routine ones in part.

Of a kind with more decisions than its cap the first and the last are kept, half and half, and the page
says how many there were.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

CAP = 500
ROUTINE_CAP = 100
ROUTINE = frozenset({"StartGroup", "SetTimer"})
NOT_SHOWN = frozenset({"kind", "t_s", "reason", "bound", "plan", "group_ids", "staleness"})

Row = tuple[float, str, str, str, float | None]


@dataclass
class DecisionSample:
    """Rows of (time s, kind, subject, reason, bound) and how many of each kind there were."""

    totals: dict[str, int] = field(default_factory=dict)
    _first: dict[str, list[tuple[int, Row]]] = field(default_factory=dict)
    _last: dict[str, deque[tuple[int, Row]]] = field(default_factory=dict)
    _count: int = 0

    def add(self, message: dict[str, Any]) -> None:
        """Take in one decision in its JSON form."""
        kind = message["kind"]
        seen = self.totals[kind] = self.totals.get(kind, 0) + 1
        self._count += 1
        half = (ROUTINE_CAP if kind in ROUTINE else CAP) // 2
        if seen <= half:
            self._first.setdefault(kind, []).append((self._count, _row(message)))
        else:
            if kind not in self._last:
                self._last[kind] = deque(maxlen=half)
            self._last[kind].append((self._count, _row(message)))

    def rows(self) -> list[Row]:
        """The kept ones in the order they were made."""
        kept = [item for part in (*self._first.values(), *self._last.values()) for item in part]
        return [row for _, row in sorted(kept, key=lambda item: item[0])]

    def shown(self) -> dict[str, tuple[int, int]]:
        """(kept, made) of every kind."""
        return {
            kind: (len(self._first.get(kind, ())) + len(self._last.get(kind, ())), total)
            for kind, total in self.totals.items()
        }


def _row(message: dict[str, Any]) -> Row:
    bound = message.get("bound")
    return (
        float(message["t_s"]),
        message["kind"],
        _subject(message),
        str(message.get("reason", "")),
        None if bound is None else float(bound),
    )


def _subject(message: dict[str, Any]) -> str:
    parts = [f"{key} {value}" for key, value in message.items() if key not in NOT_SHOWN]
    if "group_ids" in message:
        lags = message["staleness"]
        parts.append(f"{len(lags)} groups of staleness {min(lags, default=0)} to {max(lags, default=0)}")
    elif message["kind"] == "DropGroup":
        parts.append(f"staleness {message['staleness']}")
    if (plan := message.get("plan")) is not None:
        parts.append(
            f"{plan['topology']} to {len(plan['order'])} workers, {plan['size_bytes'] / 1e9:.3g} GB, "
            f"planned {plan['time_s']:.1f} s"
        )
    return ", ".join(parts).replace("_id ", " ")
