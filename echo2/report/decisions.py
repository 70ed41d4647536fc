"""All decisions of a run, by kind and column. Filled by `reader`; `payload` puts them into the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
HEAD = frozenset({"kind", "t_s", "reason", "bound", "plan", "group_ids", "staleness"})
Cell = str | int | float | None


@dataclass
class KindTable:
    """The decisions of one kind: time in s, reason, bound, and a column for every other field."""

    t_s: list[float] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)
    bound: list[float | None] = field(default_factory=list)
    columns: dict[str, list[Cell]] = field(default_factory=dict)


@dataclass
class DecisionTable:
    """Every decision. `order[i]` is the kind of the i-th; the decisions of a kind are in their order."""

    kinds: dict[str, KindTable] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)

    def add(self, message: Message, offset_s: float = 0.0) -> None:
        """Take in one decision in its JSON form. `offset_s`: when its life of the run began."""
        kind = self._once(message["kind"])
        table = self.kinds.setdefault(kind, KindTable())
        cells = flat(message)
        row = len(table.t_s)
        bound = message.get("bound")
        table.t_s.append(float(message["t_s"]) + offset_s)
        table.reason.append(self._once(str(message.get("reason", ""))))
        table.bound.append(None if bound is None else bound + 0)
        for name, value in cells.items():
            column = table.columns.setdefault(name, [])
            column.extend([None] * (row - len(column)))
            column.append(self._once(value) if isinstance(value, str) else value)
        self.order.append(kind)

    def totals(self) -> dict[str, int]:
        """How many there are of every kind."""
        return {kind: len(table.t_s) for kind, table in sorted(self.kinds.items())}

    def rows(self) -> Iterator[tuple[float, str, dict[str, Cell], str, float | None]]:
        """(time s, kind, fields, reason, bound) in the order in which they were made."""
        at = dict.fromkeys(self.kinds, 0)
        for kind in self.order:
            i, table = at[kind], self.kinds[kind]
            at[kind] += 1
            cells = {name: column[i] for name, column in table.columns.items() if i < len(column)}
            yield table.t_s[i], kind, cells, table.reason[i], table.bound[i]

    def _once(self, text: str) -> str:
        """The same text as one object: a run says the same few hundreds of times thousands of times."""
        return self._texts.setdefault(text, text)


def flat(message: Message) -> dict[str, Cell]:
    """What a decision is about: its fields as plain values, a plan and a batch summed up."""
    out: dict[str, Cell] = {
        key.removesuffix("_id").replace("_", " "): _plain(value)
        for key, value in message.items()
        if key not in HEAD
    }
    if "group_ids" in message:
        lags = message["staleness"]
        out |= {"groups": len(lags), "stalest": max(lags, default=0), "freshest": min(lags, default=0)}
    elif "staleness" in message:
        out["staleness"] = _plain(message["staleness"])
    if (plan := message.get("plan")) is not None:
        out |= {
            "topology": str(plan["topology"]),
            "workers": len(plan["order"]),
            "GB": round(plan["size_bytes"] / 1e9, 6),
            "planned s": round(plan["time_s"], 3),
        }
    return out


def _plain(value: Any) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str | int | float):
        return value
    return ", ".join(str(part) for part in value)
