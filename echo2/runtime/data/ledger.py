"""The durable ledger of rollouts: the only queue between the planes, and the one version authority on disk.

The driver records a rollout here before a worker is told (`dispatch`), acknowledges it only after `finish`
has returned, and trains only what `claim` hands out. Each call is one transaction.

Exactly once, across crashes:

1. `claim(v, groups)` marks the groups for the step that begins at version v, which must be the ledger's.
2. The learner trains them; its weights are now of version v + 1, in memory.
3. `commit(v, v + 1)` marks them trained and moves the ledger's version, in one transaction.
4. Now and then the learner writes a checkpoint of version c, always after `commit` has returned c.

After a crash the checkpoint rules: `recover(c)` takes back every claim and every step at or above c, since
the weights those steps made are gone. A crash before 3 therefore leaves no trace of the step, one after 3
and before 4 unmakes it, with its weights; a batch is in the weights that exist, and marked trained, or
neither. A rollout that a version above c generated is given up in `recover`: that version will be
made anew, with other weights, so its staleness would be a lie. Only one process writes (a file lock).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echo2.runtime.data import ledger_file, rollback
from echo2.runtime.data.ledger_query import LedgerReader
from echo2.runtime.data.packing import IDENTITY_COLUMNS, PAYLOAD_COLUMNS, pack, unpack
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.data.states import LedgerError, Outcome, Recovery, State, Ticket

_PAYLOAD_SET = ", ".join(f"{name} = ?" for name in PAYLOAD_COLUMNS)
_ROLLOUT = ", ".join((*IDENTITY_COLUMNS, *PAYLOAD_COLUMNS))


class Ledger(LedgerReader):
    """The writer's view; `LedgerReader` has the queries. Safe to call from several threads."""

    def __init__(self, path: Path, run_id: str | None = None, start_version: int = 0) -> None:
        """Open the ledger at `path`, or create it.

        `run_id`: refuse a ledger of another run. `start_version`: what a new ledger begins at, for a run
        that goes on from a checkpoint without its old ledger. Raises LedgerError.
        """
        with ledger_file.explained(path):
            self._lock_handle = ledger_file.lock(path)
        try:
            super().__init__(path, ledger_file.connect(path, run_id, start_version))
        except BaseException:
            ledger_file.unlock(self._lock_handle)
            raise
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Close the file and free the lock. What was acknowledged is on disk already."""
        with self._mutex:
            super().close()
            if self._lock_handle >= 0:
                ledger_file.unlock(self._lock_handle)
                self._lock_handle = -1

    # ---- rollouts in -----------------------------------------------------------------------------

    def dispatch(self, tickets: Sequence[Ticket]) -> None:
        """Record rollouts before their worker is told. The same ticket again changes nothing.

        Raises LedgerError where the id was given to something else.
        """
        with self._transaction():
            for ticket in tickets:
                identity = (ticket.group_id, ticket.index, ticket.prompt, ticket.attempt, ticket.worker_id)
                known = self._identity(ticket.rollout_id)
                if known is None:
                    self._run(
                        f"INSERT INTO rollouts ({', '.join(IDENTITY_COLUMNS)}, state) VALUES (?,?,?,?,?,?,?)",
                        (ticket.rollout_id, *identity, State.DISPATCHED),
                    )
                elif known[:5] != identity:
                    raise LedgerError(
                        f"rollout {ticket.rollout_id!r} was dispatched for prompt {known[2]} on "
                        f"{known[4]!r} and cannot be dispatched for prompt {ticket.prompt} on "
                        f"{ticket.worker_id!r}; give new groups new ids (Recovery.next_group_id)"
                    )

    def finish(self, rollouts: Sequence[Rollout]) -> list[Outcome]:
        """Accept rollouts that have passed `rollout.check`; once it returns they survive any crash.

        One outcome each. Sending one again is harmless. Cheapest in batches: it is one sync to disk a call.
        """
        with self._transaction():
            return [self._finish(rollout) for rollout in rollouts]

    def set_rewards(self, rewards: Mapping[str, float]) -> int:
        """Set the rewards of finished rollouts that have none; returns how many were set."""
        for rollout_id, reward in rewards.items():
            if not math.isfinite(reward):
                raise LedgerError(f"rollout {rollout_id!r}: reward is {reward}; it must be a finite number")
        with self._transaction():
            return sum(
                self._run(
                    "UPDATE rollouts SET reward = ? WHERE rollout_id = ? AND reward IS NULL AND state = ?",
                    (reward, rollout_id, State.FINISHED),
                )
                for rollout_id, reward in rewards.items()
            )

    def give_up(self, group_id: int, again: bool, cause: str) -> int:
        """A group will not be trained; returns how many rollouts that ended.

        `again`: its prompt is tried again (requeued), else it is dropped. Raises LedgerError when the group
        is claimed: release the claim first.
        """
        state = State.REQUEUED if again else State.DROPPED
        with self._transaction():
            claimed = self._one(
                "SELECT count(*) FROM rollouts WHERE group_id = ? AND step IS NOT NULL", (group_id,)
            )
            if claimed:
                raise LedgerError(
                    f"group {group_id} is claimed or trained and cannot be {state}; release its step first"
                )
            return self._run(
                "UPDATE rollouts SET state = ?, cause = ? WHERE group_id = ? AND state IN (?, ?)",
                (state, cause, group_id, State.DISPATCHED, State.FINISHED),
            )

    # ---- rollouts out ----------------------------------------------------------------------------

    def claim(self, version: int, group_ids: Sequence[int], staleness_bound: int) -> list[Rollout]:
        """Hand out whole groups to the step that begins at `version`, in the order asked for.

        Raises LedgerError, and claims nothing, unless `version` is the ledger's, no other claim is open,
        and every rollout is finished, judged and at most `staleness_bound` versions old.
        """
        with self._transaction():
            self._expect_version(version, "claim")
            if self._one("SELECT count(*) FROM steps WHERE new_version IS NULL"):
                raise LedgerError(f"a step at version {version} is claimed already; commit or release it")
            self._run("INSERT INTO steps VALUES (?, NULL)", (version,))
            return [r for g in group_ids for r in self._claim_group(g, version, staleness_bound)]

    def commit(self, version: int, new_version: int) -> None:
        """The claimed step is trained, the learner is at `new_version`. The same commit again is harmless."""
        with self._transaction():
            if self._one("SELECT new_version FROM steps WHERE version = ?", (version,)) == new_version:
                return
            self._expect_version(version, "commit")
            if not new_version > version:
                raise LedgerError(f"a step cannot end at version {new_version}: it began at {version}")
            if not self._run("UPDATE steps SET new_version = ? WHERE version = ?", (new_version, version)):
                raise LedgerError(f"no step is claimed at version {version}; claim its groups first")
            self._run("UPDATE rollouts SET state = ? WHERE step = ?", (State.TRAINED, version))
            self._run("UPDATE meta SET value = ? WHERE key = 'version'", (new_version,))

    def release(self, version: int) -> int:
        """Take back an open claim whose step was not trained; returns how many rollouts are free again."""
        with self._transaction():
            if self._one("SELECT new_version FROM steps WHERE version = ?", (version,)) is not None:
                raise LedgerError(f"the step at version {version} is committed; only recover() unmakes it")
            freed = self._run("UPDATE rollouts SET step = NULL WHERE step = ?", (version,))
            self._run("DELETE FROM steps WHERE version = ?", (version,))
            return freed

    def recover(self, checkpoint_version: int, keep_running: bool = False) -> Recovery:
        """Roll back to a checkpoint; see the module's protocol. The first thing a resumed run does.

        `keep_running`: rollouts still with workers stay dispatched (the workers outlived the crash);
        otherwise their prompts are tried again. Raises LedgerError if the ledger knows no such version.
        """
        with self._transaction():
            self._run("UPDATE meta SET value = 1 WHERE key = 'rolling_back'")
            recovery = rollback.to_checkpoint(self._db, checkpoint_version, keep_running)
            self._run("UPDATE meta SET value = 0 WHERE key = 'rolling_back'")
            return recovery

    # ---- inside ----------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; errors of the file are explained."""
        with self._mutex, ledger_file.explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some errors, a full disk among them.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _run(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._db.execute(sql, values).rowcount

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def _identity(self, rollout_id: str) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._db.execute(
            "SELECT group_id, idx, prompt, attempt, worker_id, state FROM rollouts WHERE rollout_id = ?",
            (rollout_id,),
        ).fetchone()
        return row

    def _finish(self, rollout: Rollout) -> Outcome:
        known = self._identity(rollout.rollout_id)
        if known is None:
            return Outcome.UNKNOWN
        identity = (rollout.group_id, rollout.index, rollout.prompt, rollout.attempt, rollout.worker_id)
        if known[:5] != identity:
            return Outcome.MISMATCHED
        if known[5] in (State.FINISHED, State.TRAINED):
            return Outcome.DUPLICATE
        if known[5] != State.DISPATCHED:
            return Outcome.LATE
        self._run(
            f"UPDATE rollouts SET state = ?, {_PAYLOAD_SET} WHERE rollout_id = ?",
            (State.FINISHED, *pack(rollout), rollout.rollout_id),
        )
        return Outcome.ACCEPTED

    def _expect_version(self, version: int, verb: str) -> None:
        if version != (own := self._one("SELECT value FROM meta WHERE key = 'version'")):
            raise LedgerError(
                f"cannot {verb} a step at version {version}: the ledger is at {own}; two learners are "
                "counting, or recover() was not called after a restart"
            )

    def _claim_group(self, group_id: int, version: int, bound: int) -> list[Rollout]:
        rows = self._db.execute(
            f"SELECT state, step, {_ROLLOUT} FROM rollouts WHERE group_id = ? ORDER BY idx", (group_id,)
        ).fetchall()
        if not rows:
            raise LedgerError(f"group {group_id} was never dispatched; it cannot be trained")
        for state, step, rollout_id, *_ in rows:
            if state != State.FINISHED or step is not None:
                where = state if step is None else f"{state}, in the step at version {step}"
                raise LedgerError(f"rollout {rollout_id!r} is {where}; only finished ones are trained, once")
        group = [unpack(row[2:]) for row in rows]
        for rollout in group:
            _check_trainable(rollout, version, bound)
        self._run("UPDATE rollouts SET step = ? WHERE group_id = ?", (version, group_id))
        return group


def _check_trainable(rollout: Rollout, version: int, bound: int) -> None:
    if not rollout.judged:
        raise LedgerError(f"rollout {rollout.rollout_id!r} has no reward; set_rewards() before it is trained")
    lag = version - rollout.oldest_version
    if lag > bound or rollout.newest_version > version:
        raise LedgerError(
            f"rollout {rollout.rollout_id!r} of versions {rollout.oldest_version} to "
            f"{rollout.newest_version} cannot be trained at version {version}: staleness must be 0 to "
            f"{bound}; give its group up"
        )
