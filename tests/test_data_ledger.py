"""The rollout ledger: what it accepts, hands out, refuses, and how it is read."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from echo2.errors import UserError
from echo2.runtime.data.export import export_parquet
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.ledger_query import LedgerReader
from echo2.runtime.data.rollout import Rollout, Segment
from echo2.runtime.data.states import LedgerError, Outcome, State, Ticket

SIZE = 2


def tickets(group: int, prompt: int | None = None, attempt: int = 0, worker: str = "w") -> list[Ticket]:
    return [Ticket(group, i, group if prompt is None else prompt, attempt, worker) for i in range(SIZE)]


def rollout(ticket: Ticket, version: int = 0, reward: float = 1.0) -> Rollout:
    return Rollout(
        rollout_id=ticket.rollout_id,
        group_id=ticket.group_id,
        index=ticket.index,
        prompt=ticket.prompt,
        attempt=ticket.attempt,
        worker_id=ticket.worker_id,
        prompt_ids=(1, 2),
        token_ids=(3, 4, 5),
        logprobs=(-0.1, -0.2, -1 / 3),
        segments=(Segment(0, version),),
        finish_reason="stop",
        reward=reward,
    )


def finished(ledger: Ledger, group: int, version: int = 0, prompt: int | None = None) -> list[Rollout]:
    ledger.dispatch(tickets(group, prompt))
    done = [rollout(t, version) for t in tickets(group, prompt)]
    assert ledger.finish(done) == [Outcome.ACCEPTED] * SIZE
    return done


def states(ledger: LedgerReader) -> dict[str, str]:
    return {e.rollout_id: e.state.value for e in ledger.entries()}


def test_a_rollout_goes_from_dispatch_to_training(tmp_path: Path) -> None:
    """A step claims whole groups, trains exactly what was sent in, and moves the version with its commit."""
    with Ledger(tmp_path / "l.db") as ledger:
        first, second = finished(ledger, 0), finished(ledger, 1)
        assert ledger.claim(0, [1, 0], staleness_bound=0) == second + first
        assert (ledger.claimed, ledger.version, ledger.counts()[State.FINISHED]) == (0, 0, 4)
        ledger.commit(0, 1)
        assert (ledger.claimed, ledger.version, ledger.counts()[State.TRAINED]) == (None, 1, 4)
        assert [e.step for e in ledger.entries(state=State.TRAINED)] == [0] * 4


def test_sending_again_changes_nothing(tmp_path: Path) -> None:
    """Dispatch, finish and commit are idempotent; the first content of a rollout counts."""
    with Ledger(tmp_path / "l.db") as ledger:
        (one, two) = finished(ledger, 0)
        ledger.dispatch(tickets(0))
        assert ledger.finish([replace(one, token_ids=(9, 9, 9)), two]) == [Outcome.DUPLICATE] * 2
        assert ledger.claim(0, [0], 0) == [one, two]
        ledger.commit(0, 1)
        ledger.commit(0, 1)
        assert ledger.finish([one]) == [Outcome.DUPLICATE]
        assert ledger.version == 1


def test_what_cannot_be_accepted_has_a_name(tmp_path: Path) -> None:
    """A rollout never dispatched, of another worker, or given up meanwhile is told apart and not kept."""
    with Ledger(tmp_path / "l.db") as ledger:
        for group in (0, 1):
            ledger.dispatch(tickets(group))
        ledger.give_up(1, again=True, cause="worker left")
        sent = [rollout(tickets(5)[0]), rollout(tickets(0, worker="x")[0]), rollout(tickets(1)[0])]
        assert ledger.finish(sent) == [Outcome.UNKNOWN, Outcome.MISMATCHED, Outcome.LATE]
        assert ledger.counts() == {**dict.fromkeys(State, 0), State.DISPATCHED: 2, State.REQUEUED: 2}
        assert {e.cause for e in ledger.entries(group_id=1)} == {"worker left"}


def test_an_id_is_never_given_to_another_prompt(tmp_path: Path) -> None:
    """Dispatching a known id for another prompt is refused, and nothing of that call is kept."""
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.dispatch(tickets(0))
        with pytest.raises(LedgerError, match="'0:0' was dispatched for prompt 0"):
            ledger.dispatch([*tickets(1), *tickets(0, prompt=4)])
        assert states(ledger) == {"0:0": "dispatched", "0:1": "dispatched"}


def test_claims_that_break_a_rule_claim_nothing(tmp_path: Path) -> None:
    """Unfinished, too old, from the future, unjudged, unknown or at a wrong version: nothing is claimed."""
    with Ledger(tmp_path / "l.db", start_version=5) as ledger:
        finished(ledger, 0, version=5)
        ledger.dispatch(tickets(1))
        finished(ledger, 2, version=2)
        finished(ledger, 3, version=6)
        ledger.dispatch(tickets(4))
        ledger.finish([rollout(t, 5, reward=float("nan")) for t in tickets(4)])
        refusals = {1: "'1:0' is dispatched", 2: "staleness", 3: "staleness", 4: "no reward", 9: "never"}
        for group, why in refusals.items():
            with pytest.raises(LedgerError, match=why):
                ledger.claim(5, [0, group], staleness_bound=2)
        with pytest.raises(LedgerError, match="the ledger is at 5"):
            ledger.claim(6, [0], staleness_bound=9)
        with pytest.raises(LedgerError, match="'0:0' is finished, in the step at version 5"):
            ledger.claim(5, [0, 0], staleness_bound=2)
        assert ledger.claimed is None
        assert ledger.set_rewards({"4:0": 0.5, "4:1": 0.0, "0:0": 0.7}) == 2
        assert [r.reward for r in ledger.claim(5, [0, 4], 2)] == [1.0, 1.0, 0.5, 0.0]


def test_a_claimed_group_is_out_of_reach(tmp_path: Path) -> None:
    """While a step is claimed its groups can be neither given up nor claimed again, until it is released."""
    with Ledger(tmp_path / "l.db") as ledger:
        finished(ledger, 0)
        ledger.claim(0, [0], 0)
        with pytest.raises(LedgerError, match="claimed already"):
            ledger.claim(0, [0], 0)
        with pytest.raises(LedgerError, match="claimed or trained"):
            ledger.give_up(0, again=True, cause="old")
        assert ledger.release(0) == SIZE
        ledger.claim(0, [0], 0)
        ledger.commit(0, 3)
        with pytest.raises(LedgerError, match="committed"):
            ledger.release(0)
        with pytest.raises(LedgerError, match="no step is claimed"):
            ledger.commit(3, 4)


def test_the_database_itself_refuses_a_wrong_move(tmp_path: Path) -> None:
    """A trained rollout cannot become dispatched even by hand-written SQL."""
    with Ledger(tmp_path / "l.db") as ledger:
        finished(ledger, 0)
        ledger.claim(0, [0], 0)
        ledger.commit(0, 1)
    raw = sqlite3.connect(tmp_path / "l.db")
    with pytest.raises(sqlite3.IntegrityError, match="cannot move"):
        raw.execute("UPDATE rollouts SET state = 'dispatched', step = NULL")
    with pytest.raises(sqlite3.IntegrityError, match="cannot move"):
        raw.execute("UPDATE rollouts SET state = 'finished', step = NULL")


def test_queries_filter_by_state_step_and_version(tmp_path: Path) -> None:
    """Entries and rollouts can be asked for by state, step, versions and group, by a reader beside it."""
    with Ledger(tmp_path / "l.db") as ledger:
        for group in range(3):
            finished(ledger, group, version=group)
        ledger.dispatch(tickets(3))
        ledger.claim(0, [0], 0)
        ledger.commit(0, 1)
        reader = LedgerReader(tmp_path / "l.db")
        assert [r.rollout_id for r in reader.rollouts(versions=(1, 1))] == ["1:0", "1:1"]
        assert [r.rollout_id for r in reader.rollouts(step=0)] == ["0:0", "0:1"]
        assert [e.rollout_id for e in reader.entries(state=State.DISPATCHED)] == ["3:0", "3:1"]
        assert len(list(reader.rollouts())) == 6
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM rollouts")
        reader.close()


def test_parquet_holds_every_rollout(tmp_path: Path) -> None:
    """The export has one row a rollout, tokens and log-probs exact, null where there is none."""
    with Ledger(tmp_path / "l.db") as ledger:
        (one, _) = finished(ledger, 0, version=2)
        ledger.dispatch(tickets(1))
        assert export_parquet(ledger, tmp_path / "out.parquet") == 4
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["state"] for row in rows] == ["finished"] * 2 + ["dispatched"] * 2
    assert tuple(rows[0]["logprobs"]) == one.logprobs and tuple(rows[0]["token_ids"]) == one.token_ids
    assert (rows[0]["segment_versions"], rows[2]["token_ids"], rows[2]["reward"]) == ([2], None, None)
    assert [p.name for p in tmp_path.glob("*.part")] == []
    with LedgerReader(tmp_path / "l.db") as reader, pytest.raises(UserError, match="cannot write"):
        export_parquet(reader, tmp_path / "nowhere" / "out.parquet")


def test_threads_share_one_ledger(tmp_path: Path) -> None:
    """Rollouts sent in by four threads at once, each twice, are each accepted once."""
    with Ledger(tmp_path / "l.db") as ledger:
        for group in range(20):
            ledger.dispatch(tickets(group))
        outcomes: list[Outcome] = []

        def send() -> None:
            for group in range(20):
                outcomes.extend(ledger.finish([rollout(t) for t in tickets(group)]))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [Outcome.ACCEPTED] * 40 + [Outcome.DUPLICATE] * 120


# ---- bad files -------------------------------------------------------------------------------------------


def test_bad_files_are_named(tmp_path: Path) -> None:
    """A foreign, damaged, newer, other run's, or unreachable file is a clear error, and is left as it was."""
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to look at" * 50)
    with pytest.raises(LedgerError, match="damaged or no ledger"):
        Ledger(text)
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.commit()
    with pytest.raises(LedgerError, match="another SQLite file"):
        Ledger(other)
    assert sqlite3.connect(other).execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with pytest.raises(LedgerError, match="directory does not exist"):
        Ledger(tmp_path / "no" / "l.db")
    with pytest.raises(LedgerError, match="does not exist"):
        LedgerReader(tmp_path / "none.db")
    path = tmp_path / "l.db"
    Ledger(path, run_id="a").close()
    with pytest.raises(LedgerError, match="belongs to run a, not to b"):
        Ledger(path, run_id="b")
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(LedgerError, match="schema 99"):
        Ledger(path)


def test_a_ledger_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """A version that no committed step accounts for is noticed when the ledger is opened."""
    path = tmp_path / "l.db"
    Ledger(path).close()
    raw = sqlite3.connect(path)
    raw.execute("UPDATE meta SET value = 3 WHERE key = 'version'")
    raw.commit()
    raw.close()
    with pytest.raises(LedgerError, match="contradicts itself: the version"):
        Ledger(path)


def test_a_cut_page_is_noticed(tmp_path: Path) -> None:
    """A file that lost its end is refused as damaged."""
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        for group in range(40):
            finished(ledger, group)
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path)


def test_a_zeroed_page_is_noticed(tmp_path: Path) -> None:
    """A page of rollouts that became zeros is found when the ledger is opened, not when it is read."""
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        for group in range(200):
            finished(ledger, group)
        last = ledger._db.execute("SELECT max(rowid) FROM rollouts").fetchone()[0]
    data = bytearray(path.read_bytes())
    page = data.index(f"{last // 4}:1".encode()) // 4096
    data[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path)


def test_an_interrupted_creation_starts_over(tmp_path: Path) -> None:
    """An empty file, as a crash during creation leaves it, becomes a new ledger."""
    path = tmp_path / "l.db"
    path.touch()
    with Ledger(path, run_id="r") as ledger:
        assert (ledger.run_id, ledger.version) == ("r", 0)


def test_only_one_learner_writes(tmp_path: Path) -> None:
    """A second writer is refused while the first lives, and welcome after it."""
    with Ledger(tmp_path / "l.db"), pytest.raises(LedgerError, match="another learner"):
        Ledger(tmp_path / "l.db")
    Ledger(tmp_path / "l.db").close()


def test_a_full_disk_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """A full disk is a clear error; what was accepted stays, and the run goes on once there is space."""
    with Ledger(tmp_path / "l.db") as ledger:
        before = finished(ledger, 0)
        pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        ledger.dispatch(tickets(1))
        big = [replace(rollout(t), token_ids=(7,) * 9000, logprobs=(-0.5,) * 9000) for t in tickets(1)]
        with pytest.raises(LedgerError, match="disk is full"):
            ledger.finish(big)
        assert list(ledger.rollouts()) == before
        ledger._db.execute("PRAGMA max_page_count = 100000")
        assert ledger.finish(big) == [Outcome.ACCEPTED] * 2
