"""What a report needs of a run's logs: one pass over each, whatever its length.

Called by `record`; the line by line work is in `reader`. A live run has one log per life (one more with each
resume); their times are laid end to end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.report.course import Course, WorkerCourse
from echo2.report.decisions import DecisionTable

Message = dict[str, Any]
Steps = list[tuple[float, int]]


@dataclass
class Dissemination:
    """One version on its way: when published, to how many, predicted and real seconds.

    `arrivals_s` are of the workers the plan named; `caught_up` counts later ones (joiners, stragglers);
    `reroutes` how often its way was changed because a relay failed.
    """

    version: int
    published_s: float
    topology: str
    reason: str = ""
    targets: set[str] = field(default_factory=set)
    size_bytes: float = 0.0
    planned_s: float = 0.0
    bound_s: float = 0.0
    egress_usd: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    caught_up: int = 0
    reroutes: int = 0

    @property
    def tail_s(self) -> float | None:
        """Seconds until the last planned receiver had it; None while none has."""
        return max(self.arrivals_s, default=None)


@dataclass
class BatchAge:
    """Staleness of what one step was trained on, over its groups."""

    t_s: float
    version: int
    lowest: int
    mean: float
    highest: int


@dataclass
class LogDigest:
    """The course of a run. Seconds since its beginning; step functions are (time, value from then on)."""

    settings: Message = field(default_factory=dict)
    lives_s: list[float] = field(default_factory=list)
    train: list[tuple[float, float, int]] = field(default_factory=list)
    idle: list[tuple[float, float, str]] = field(default_factory=list)
    workers_up: Steps = field(default_factory=lambda: [(0.0, 0)])
    receiving: Steps = field(default_factory=lambda: [(0.0, 0)])
    running: Course = field(default_factory=lambda: Course(16384))
    versions: dict[int, Dissemination] = field(default_factory=dict)
    ages: list[BatchAge] = field(default_factory=list)
    workers: dict[str, WorkerCourse] = field(default_factory=dict)
    decisions: DecisionTable = field(default_factory=DecisionTable)
    end_s: float = 0.0
    note: str = ""

    def idle_by_cause(self) -> dict[str, float]:
        """Idle seconds of the learner by what it waited for."""
        out: dict[str, float] = {}
        for _, seconds, cause in self.idle:
            out[cause] = out.get(cause, 0.0) + seconds
        return out


def digest(paths: Sequence[Path]) -> LogDigest:
    """Read the logs of a run's lives. One that was cut off is read as far as it goes; `note` says so."""
    from echo2.report.reader import Reader

    out = LogDigest()
    for path in paths:
        reader = Reader(out)
        for number, message in _messages(path, out):
            try:
                reader.take(message)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UserError(
                    f"{path}:{number}: not a line of a run log ({type(error).__name__}: {error}); "
                    "was it edited?"
                ) from error
        reader.close()
    return out


def _messages(path: Path, out: LogDigest) -> Iterator[tuple[int, Message]]:
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    if line.endswith("\n"):
                        raise UserError(
                            f"{path}:{number}: not JSON: {line[:80]!r}; was it edited?"
                        ) from error
                    out.note = f"{path.name} ends in the middle of line {number}: the run was cut off there"
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start}); give the log as it was written"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
