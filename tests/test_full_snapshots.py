"""How often a full snapshot is written beside the deltas, and what a worker then needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.policy import decisions as d
from echo2.policy import facts as f
from echo2.policy.full_snapshots import MOST, WRITE_BYTES_PER_S, full_every
from echo2.policy.scheduler import Scheduler
from echo2.policy.staleness import VersionLedger
from echo2.sim.run import simulate
from echo2.testing import equal_workers, small_world

GB = 1e9


def ledger_of(payloads: list[float], every: int, start: int = 0) -> VersionLedger:
    """A run that began at `start` and has published after every step."""
    ledger = VersionLedger()
    ledger.resume(start)
    for size in payloads:
        ledger.advance(ledger.version + 1)
        ledger.publish(size, ledger.version % every == 0)
    return ledger


@given(
    st.lists(st.floats(0.01, 1.5), min_size=1, max_size=20), st.integers(1, 8), st.integers(0, 3), st.data()
)
def test_a_payload_is_the_least_that_brings_a_worker_up(
    payloads: list[float], every: int, start: int, data: st.DataObject
) -> None:
    """The chain from what it holds, or the newest full snapshot and the chain from that: the lesser."""
    ledger = ledger_of(payloads, every, start)
    newest = start + len(payloads)
    held = data.draw(st.integers(-1, newest - 1))
    size, parent = ledger.payload_bytes(held, 1.0)
    fulls = [v for v in range(start + 1, newest + 1) if v % every == 0] or [start]
    assert ledger.newest_full == fulls[-1]
    anew = 1.0 + sum(payloads[fulls[-1] - start :])
    chain = sum(payloads[held - start :]) if held >= start else float("inf")
    assert size == pytest.approx(min(anew, chain))
    assert parent == (held if chain < anew - 1e-9 else -1) or chain == pytest.approx(anew)


@given(
    st.floats(0.1, 100), st.floats(1.5, 200), st.floats(1e-3, 50), st.floats(1e7, 1e10), st.integers(1, MOST)
)
def test_no_other_period_costs_less(full: float, ratio: float, joins: float, bps: float, other: int) -> None:
    """K(n) of the docstring is least at the chosen n, and the longest chain never exceeds a full snapshot."""
    full_bytes, delta = full * GB, full * GB / ratio
    best = full_every(full_bytes, delta, joins, bps)

    def seconds(n: int) -> float:
        return full_bytes / (n * WRITE_BYTES_PER_S) + joins * (n - 1) / 2 * delta * 8 / bps

    assert (best - 1) * delta <= full_bytes * (1 + 1e-9)
    if (other - 1) * delta <= full_bytes:
        assert seconds(best) <= seconds(other) * (1 + 1e-9)


def test_without_deltas_every_snapshot_is_full() -> None:
    """A delta that is no smaller than the snapshot is not worth a chain."""
    assert full_every(GB, GB, 1.0, GB) == 1


def test_workers_that_never_join_need_few_full_snapshots() -> None:
    """The fewer join, the fewer are written; nobody ever: as few as the longest chain allows."""
    chosen = [full_every(16 * GB, 0.2 * GB, joins, 1e9) for joins in (30.0, 1.0, 0.1, 0.0)]
    assert chosen == sorted(chosen) and chosen[0] < 5 and chosen[-1] == 81


def test_a_late_joiner_takes_the_newest_full_snapshot_and_the_chain() -> None:
    """Fulls at 0 and 3, deltas of 0.1 GB: who joins at 4 is sent 1.1 GB as parent -1."""
    world = small_world(equal_workers(2), S=5, snapshot_bytes=GB, full_every=3)
    scheduler = Scheduler(world.settings)
    for worker in world.workers:
        scheduler.observe(f.WorkerOffered(0.0, worker.offer))
    scheduler.observe(f.RunStarted(0.0))
    scheduler.observe(f.WorkerJoined(0.0, "w000", 1))
    out: list[d.Decision] = []
    for version in range(1, 5):
        t_s = 100.0 * version
        out += scheduler.observe(f.StepFinished(t_s, version, 10.0, 0.1 * GB))
        out += scheduler.observe(f.SnapshotLive(t_s + 1, "w000", 1, version))
    sizes = [(x.parent_version, x.plan.size_bytes / GB) for x in out if isinstance(x, d.PublishSnapshot)]
    assert [parent for parent, _ in sizes] == [0, 1, 2, 3]
    assert [size for _, size in sizes] == pytest.approx([0.1] * 4)
    late = scheduler.observe(f.WorkerJoined(500.0, "w001", 1, -1))
    (fetch,) = [x for x in late if isinstance(x, d.FetchSnapshot)]
    assert fetch.parent_version == -1 and fetch.size_bytes == pytest.approx(1.1 * GB)


def test_a_simulated_run_with_deltas_sends_less() -> None:
    """The same run with 20x smaller deltas and a full snapshot every 10: less egress, all versions arrive."""
    workers = equal_workers(3)
    full = small_world(workers, S=4, steps=12, snapshot_bytes=GB)
    deltas = replace(full, settings=replace(full.settings, snapshot_bytes=GB / 20, full_every=10))
    metrics = [simulate(world, 1).world.metrics for world in (full, deltas)]
    sent = [sum(r.payload_bytes * len(r.arrived_s) for r in m.disseminations) for m in metrics]
    assert sent[1] < 0.1 * sent[0]
    assert {r.version for r in metrics[1].disseminations} == set(range(1, 12))
