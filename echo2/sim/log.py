"""The log of a run: settings first, then every fact followed by the decisions it led to, as JSON Lines.

Written by both worlds, read by `replay`, which feeds the facts to a fresh scheduler and compares the
decisions byte for byte.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from echo2.errors import UserError
from echo2.policy import decisions, wire
from echo2.policy.facts import Fact
from echo2.policy.scheduler import Scheduler
from echo2.policy.settings import SchedulerSettings

FORMAT = 1
DECISIONS = frozenset(cls.__name__ for cls in get_args(decisions.Decision))
Entry = tuple[Fact, list[decisions.Decision]]


@dataclass(frozen=True)
class ReplayReport:
    """How a replay went. `first_difference` names the line, what was recorded and what came out."""

    facts: int
    decisions: int
    equal: bool
    first_difference: str = ""


def settings_to_json(settings: SchedulerSettings) -> dict[str, Any]:
    """The settings as JSON data."""
    return dataclasses.asdict(settings)


def lines(settings: SchedulerSettings, entries: Iterable[Entry]) -> Iterator[str]:
    """The lines of a log, without newlines."""
    head = {"kind": "Settings", "format": FORMAT, **settings_to_json(settings)}
    yield json.dumps(head, separators=(",", ":"))
    for fact, answers in entries:
        yield wire.dumps(fact)
        for answer in answers:
            yield wire.dumps(answer)


def replay(path: Path) -> ReplayReport:
    """Feed the facts of a log to a new scheduler and compare its decisions with the recorded ones."""
    with _open(path) as stream:
        numbered = enumerate((line.rstrip("\n") for line in stream), start=1)
        scheduler = Scheduler(_settings(path, next(numbered, (1, ""))[1]))
        expected: list[str] = []
        facts = made = 0
        for number, line in numbered:
            kind = _kind(path, number, line)
            if kind in DECISIONS:
                if not expected:
                    return _differs(facts, made, number, line, "no more decisions")
                ours = expected.pop(0)
                if ours != line:
                    return _differs(facts, made, number, line, ours)
                continue
            if expected:
                return _differs(facts, made, number, line, expected[0])
            facts += 1
            try:
                answers = scheduler.observe(wire.loads(line))  # type: ignore[arg-type]
            except ValueError as error:
                raise UserError(f"{path}:{number}: {error}") from error
            expected = [wire.dumps(answer) for answer in answers]
            made += len(expected)
        if expected:
            return _differs(facts, made, number + 1, "end of the log", expected[0])
    return ReplayReport(facts, made, True)


def _differs(facts: int, made: int, number: int, recorded: str, ours: str) -> ReplayReport:
    note = f"line {number}: recorded {recorded[:300]}; now {ours[:300]}"
    return ReplayReport(facts, made, False, note)


def _open(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8")
    except OSError as error:
        hint = "simulate with --out DIR writes one"
        raise UserError(f"{path}: cannot read the log ({error.strerror}); {hint}") from error


def _kind(path: Path, number: int, line: str) -> str:
    try:
        return str(json.loads(line)["kind"])
    except (ValueError, KeyError, TypeError) as error:
        shown = f"{line[:80]!r}"
        raise UserError(f"{path}:{number}: not a line of a run log: {shown}; was it cut off?") from error


def _settings(path: Path, line: str) -> SchedulerSettings:
    try:
        data = json.loads(line)
        if data.pop("kind") != "Settings" or data.pop("format") != FORMAT:
            raise ValueError("wrong kind or format")
        settings: SchedulerSettings = wire.build(SchedulerSettings, data, "Settings")
        return settings
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path}:1: not the settings of a run log of format {FORMAT} ({error})") from error
