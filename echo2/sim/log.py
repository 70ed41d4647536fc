"""The log of a run: settings first, then every fact followed by the decisions it led to, as JSON Lines.

Written by both worlds, read by `replay`, which feeds the facts to a fresh scheduler and compares the
decisions byte for byte.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
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
END = "End"


@dataclass(frozen=True)
class ReplayReport:
    """How a replay went. `first_difference` names the line, what was recorded and what came out.

    `cut`: the log has no end mark, or one that counts more than the log holds; it is not equal then, though
    all that is there may be.
    """

    facts: int
    decisions: int
    equal: bool
    first_difference: str = ""
    cut: bool = False


class RunLog:
    """A log written as the run goes on: every fact reaches the file with its decisions, the end mark last.

    A run that was killed leaves no mark. `close` writes it; so does leaving a `with` block without an error.
    """

    def __init__(self, path: Path, settings: SchedulerSettings) -> None:
        self.facts = self.decisions = 0
        self._stream = path.open("w", encoding="utf-8")
        self._put(_head(settings))

    def write(self, fact: Fact, answers: Sequence[decisions.Decision]) -> None:
        """Append a fact and what was decided on it, and flush."""
        self._put(wire.dumps(fact), *(wire.dumps(answer) for answer in answers))
        self.facts += 1
        self.decisions += len(answers)

    def close(self) -> None:
        """Write the end mark. A second call does nothing."""
        if not self._stream.closed:
            self._put(_end(self.facts, self.decisions))
            self._stream.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._stream.close()

    def _put(self, *texts: str) -> None:
        self._stream.write("".join(text + "\n" for text in texts))
        self._stream.flush()


def settings_to_json(settings: SchedulerSettings) -> dict[str, Any]:
    """The settings as JSON data."""
    return dataclasses.asdict(settings)


def lines(settings: SchedulerSettings, entries: Iterable[Entry]) -> Iterator[str]:
    """The lines of a log, without newlines."""
    yield _head(settings)
    facts = made = 0
    for fact, answers in entries:
        facts, made = facts + 1, made + len(answers)
        yield wire.dumps(fact)
        for answer in answers:
            yield wire.dumps(answer)
    yield _end(facts, made)


def _head(settings: SchedulerSettings) -> str:
    head = {"kind": "Settings", "format": FORMAT, **settings_to_json(settings)}
    return json.dumps(head, separators=(",", ":"))


def _end(facts: int, made: int) -> str:
    return json.dumps({"kind": END, "facts": facts, "decisions": made}, separators=(",", ":"))


def replay(path: Path) -> ReplayReport:
    """Feed the facts of a log to a new scheduler and compare its decisions with the recorded ones."""
    with _open(path) as stream:
        numbered = enumerate((line.rstrip("\n") for line in stream), start=1)
        scheduler = Scheduler(_settings(path, next(numbered, (1, ""))[1]))
        expected: list[str] = []
        facts = made = 0
        number = 1
        for number, line in numbered:
            kind = _kind(path, number, line)
            if kind == END:
                if expected:
                    return _differs(facts, made, number, "end of the log", expected[0])
                return _ended(facts, made, line, next(numbered, None))
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
    return _cut(facts, made)


def _ended(facts: int, made: int, mark: str, after: tuple[int, str] | None) -> ReplayReport:
    """At the end mark: nothing may follow it, and it must count what was read."""
    if after is not None:
        return ReplayReport(facts, made, False, f"line {after[0]}: the log goes on after its end mark")
    if mark != _end(facts, made):
        return _cut(facts, made)
    return ReplayReport(facts, made, True)


def _cut(facts: int, made: int) -> ReplayReport:
    note = f"the log is cut off after {facts:,} facts: equal so far"
    return ReplayReport(facts, made, False, note, cut=True)


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
