"""The ledger's SQLite file: its schema, how it is created and opened, what is checked, what errors mean.

Called by `ledger` and `export` only. The database itself refuses a move that `states.EDGES` lacks, a
finished rollout without tokens and a trained one without a step, whatever the code above does.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from echo2.runtime.data.states import EDGES, ROLLBACK_EDGES, LedgerError, State

APPLICATION_ID = 0x45434832  # "ECH2"
SCHEMA_VERSION = 2
BUSY_S = 10.0


def _moves(edges: frozenset[tuple[State, State]]) -> str:
    return ", ".join(sorted(f"'{a}>{b}'" for a, b in edges))


SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE steps (version INTEGER PRIMARY KEY, new_version INTEGER CHECK (new_version > version));
CREATE TABLE rollouts (
  rollout_id TEXT PRIMARY KEY,
  group_id INTEGER NOT NULL,
  idx INTEGER NOT NULL,
  prompt INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  worker_id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ({", ".join(f"'{s}'" for s in State)})),
  step INTEGER REFERENCES steps(version),
  cause TEXT NOT NULL DEFAULT '',
  oldest_version INTEGER,
  newest_version INTEGER,
  tokens INTEGER,
  finish_reason TEXT,
  reward REAL,
  prompt_ids BLOB,
  token_ids BLOB,
  logprobs BLOB,
  segments BLOB,
  environment BLOB,
  checksum INTEGER,
  UNIQUE (group_id, idx),
  CHECK (state NOT IN ('finished', 'trained') OR checksum IS NOT NULL),
  CHECK ((state = 'trained') <= (step IS NOT NULL)),
  CHECK ((step IS NOT NULL) <= (state IN ('finished', 'trained')))
);
CREATE INDEX rollouts_by_state ON rollouts (state);
CREATE INDEX rollouts_by_step ON rollouts (step) WHERE step IS NOT NULL;
CREATE INDEX rollouts_by_prompt ON rollouts (prompt, group_id);
CREATE TRIGGER moves BEFORE UPDATE OF state ON rollouts
WHEN OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN ({_moves(EDGES)})
  AND NOT (OLD.state || '>' || NEW.state IN ({_moves(ROLLBACK_EDGES)})
           AND (SELECT value FROM meta WHERE key = 'rolling_back'))
BEGIN SELECT RAISE(ABORT, 'a rollout cannot move like this'); END;
"""


def connect(path: Path, run_id: str | None, start_version: int) -> sqlite3.Connection:
    """Open the ledger at `path` for writing, or create it. Raises LedgerError naming what is wrong.

    WAL with synchronous=FULL: what has been committed survives a power cut, not only a crash.
    """
    with explained(path):
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            # Looked at before anything is set: a file that is not ours stays as it is.
            if _is_empty(connection):
                _create(connection, run_id or uuid.uuid4().hex, start_version)
            _check(connection, path, run_id)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open an existing ledger for reading; a run may be writing to it."""
    with explained(path):
        if not path.is_file():
            raise LedgerError(f"ledger {path} does not exist; name a run directory that has one")
        uri = f"{path.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            _check(connection, path, None)
        except BaseException:
            connection.close()
            raise
        return connection


def lock(path: Path) -> int:
    """Take the writer's lock of a ledger; freed when the process ends, however it does. Returns a handle."""
    if not path.parent.is_dir():
        raise LedgerError(f"ledger {path}: its directory does not exist; create it first")
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise LedgerError(
            f"ledger {path} is in use by another learner; stop it first, or choose another run directory"
        ) from None
    return handle


def unlock(handle: int) -> None:
    """Give the writer's lock back."""
    os.close(handle)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into LedgerErrors that name the file, the cause and the fix."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {path}: {_meaning(error)}") from error
    except OSError as error:
        raise LedgerError(
            f"ledger {path}: {error.strerror or error}; check the path and its rights"
        ) from error


def _meaning(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full; nothing of this write was kept, free some space and resume the run"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"the file is damaged or no ledger ({error}); restore it from a backup, or start in a new run "
            "directory from the checkpoint alone"
        )
    if code == sqlite3.SQLITE_BUSY:
        return f"locked by another program for over {BUSY_S:.0f} s; close what has it open"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"cannot be opened for writing ({error}); check the path and its rights"
    if code == sqlite3.SQLITE_IOERR:
        return f"the disk failed ({error}); nothing of this write was kept, check the disk and resume the run"
    return f"{error}"


def _is_empty(connection: sqlite3.Connection) -> bool:
    """No table yet: a new file, or one whose creation was cut short (creation is one transaction)."""
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _create(connection: sqlite3.Connection, run_id: str, start_version: int) -> None:
    """All in one transaction: a creation that is cut short leaves an empty file."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", run_id):
        raise LedgerError(f"run id is {run_id!r}; use 1 to 100 letters, digits and . _ -")
    connection.executescript(
        f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        f"{SCHEMA}"
        f"INSERT INTO meta VALUES ('run_id', '{run_id}'), ('version', {start_version:d}), "
        f"('start_version', {start_version:d}), ('rolling_back', 0);"
        "COMMIT;"
    )


def _check(connection: sqlite3.Connection, path: Path, run_id: str | None) -> None:
    """Is it a ledger, of this schema and run, whole, and does it agree with itself?"""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise LedgerError(f"ledger {path} is no rollout ledger but another SQLite file; choose another path")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA_VERSION:
        raise LedgerError(
            f"ledger {path} has schema {found}, this echo2 reads {SCHEMA_VERSION}; "
            "use the echo2 that wrote it"
        )
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise LedgerError(
            f"ledger {path} is damaged ({damage}); restore it from a backup, or start in a new run directory "
            "from the checkpoint alone"
        )
    owner = connection.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
    if run_id is not None and owner[0] != run_id:
        raise LedgerError(
            f"ledger {path} belongs to run {owner[0]}, not to {run_id}: checkpoint and ledger are of "
            "different runs; use both from the same run directory"
        )
    for claim, query in CONSISTENT.items():
        row = connection.execute(query).fetchone()
        if row is not None:
            raise LedgerError(
                f"ledger {path} contradicts itself: {claim} ({row[0]}); restore it from a backup"
            )


START = "(SELECT value FROM meta WHERE key = 'start_version')"
CONSISTENT = {
    "a rollout was trained in a step that was never committed": (
        "SELECT rollout_id FROM rollouts JOIN steps ON step = version "
        "WHERE state = 'trained' AND new_version IS NULL LIMIT 1"
    ),
    "a committed step holds a rollout that was not trained": (
        "SELECT rollout_id FROM rollouts JOIN steps ON step = version "
        "WHERE state = 'finished' AND new_version IS NOT NULL LIMIT 1"
    ),
    "steps do not follow each other": (
        f"SELECT version FROM (SELECT version, lag(new_version, 1, {START}) OVER (ORDER BY version) AS due "
        "FROM steps) WHERE version <> due LIMIT 1"
    ),
    "the version is not that of the last committed step": (
        "SELECT value FROM meta WHERE key = 'version' "
        f"AND value <> coalesce((SELECT max(new_version) FROM steps), {START}) LIMIT 1"
    ),
    "a roll-back was cut short": "SELECT value FROM meta WHERE key = 'rolling_back' AND value <> 0",
}
