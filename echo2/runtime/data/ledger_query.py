"""Reading the ledger: counts, entries and rollouts by state, step and version. No change is made here.

`Ledger` builds on it; reports, exports and a second terminal open a `LedgerReader` beside a running learner.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from echo2.runtime.data import ledger_file
from echo2.runtime.data.packing import IDENTITY_COLUMNS, PAYLOAD_COLUMNS, unpack
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.data.states import Entry, State

PAGE = 1000
_ENTRY = f"{', '.join(IDENTITY_COLUMNS)}, state, step, cause, " + ", ".join(PAYLOAD_COLUMNS[:5])
_ROLLOUT = ", ".join((*IDENTITY_COLUMNS, *PAYLOAD_COLUMNS))


class LedgerReader:
    """Queries. Filters combine: `state`, `step` (version trained at), `versions` (of oldest, inclusive)."""

    def __init__(self, path: Path, connection: sqlite3.Connection | None = None) -> None:
        """Open the ledger at `path` for reading. Raises LedgerError."""
        self.path = path
        self._db = connection or ledger_file.connect_read_only(path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def version(self) -> int:
        """Optimiser steps committed: the version authority."""
        return int(self._meta("version"))

    @property
    def run_id(self) -> str:
        """The run this ledger belongs to."""
        return str(self._meta("run_id"))

    @property
    def claimed(self) -> int | None:
        """The version of the step that is claimed and not committed, or None."""
        row = self._db.execute("SELECT version FROM steps WHERE new_version IS NULL").fetchone()
        return None if row is None else int(row[0])

    def counts(self) -> dict[State, int]:
        """Rollouts in each state."""
        found = dict(self._db.execute("SELECT state, count(*) FROM rollouts GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in State}

    def entries(
        self,
        state: State | None = None,
        step: int | None = None,
        versions: tuple[int, int] | None = None,
        group_id: int | None = None,
    ) -> Iterator[Entry]:
        """What the ledger knows of each rollout, in the order of dispatch, without tokens."""
        for _, _, *row in self._pages(_ENTRY, state, step, versions, group_id):
            yield _entry(row)

    def rollouts(
        self,
        state: State | None = None,
        step: int | None = None,
        versions: tuple[int, int] | None = None,
        group_id: int | None = None,
    ) -> Iterator[Rollout]:
        """The rollouts that have finished, in the order of dispatch, whatever became of them since."""
        for _, finished, *row in self._pages(_ROLLOUT, state, step, versions, group_id):
            if finished:
                yield unpack(row)

    def everything(self) -> Iterator[tuple[Entry, Rollout | None]]:
        """Every entry with its rollout, None where it never finished. In the order of dispatch."""
        split = _ENTRY.count(",") + 1
        for _, finished, *row in self._pages(f"{_ENTRY}, {_ROLLOUT}", None, None, None, None):
            yield _entry(row[:split]), unpack(row[split:]) if finished else None

    def _meta(self, key: str) -> Any:
        return self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]

    def _pages(
        self,
        columns: str,
        state: State | None,
        step: int | None,
        versions: tuple[int, int] | None,
        group_id: int | None,
    ) -> Iterator[tuple[Any, ...]]:
        """Rows by page, so that a writer on the same file or in another thread is never held up."""
        tests = ["rowid > ?"]
        values: list[int | str] = [-1]
        for test, wanted in (("state = ?", state), ("step = ?", step), ("group_id = ?", group_id)):
            if wanted is not None:
                tests.append(test)
                values.append(wanted)
        if versions is not None:
            tests.append("oldest_version BETWEEN ? AND ?")
            values.extend(versions)
        query = (
            f"SELECT rowid, checksum IS NOT NULL, {columns} FROM rollouts WHERE {' AND '.join(tests)} "
            f"ORDER BY rowid LIMIT {PAGE}"
        )
        while True:
            with ledger_file.explained(self.path):
                page = self._db.execute(query, values).fetchall()
            yield from page
            if len(page) < PAGE:
                return
            values[0] = page[-1][0]


def _entry(row: list[Any]) -> Entry:
    row[6] = State(row[6])
    return Entry(*row)
