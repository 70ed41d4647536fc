"""Choosing the cheapest workers that cover a need, and revising a running pool without flip-flops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.activation import (
    Candidate,
    HysteresisPolicy,
    Revision,
    choose,
    exact,
    greedy_then_prune,
    lp_bound,
    revise,
)

prices = st.floats(0.1, 5.0)
rates = st.one_of(st.just(0.0), st.floats(0.01, 3.0))


@st.composite
def pools(draw: st.DrawFn, most: int = 9) -> tuple[list[Candidate], float]:
    """A pool and a need of up to 1.2 times what it makes."""
    size = draw(st.integers(1, most))
    pool = [
        Candidate(
            f"w{i}",
            draw(prices),
            draw(rates),
            active=draw(st.booleans()),
            locked=draw(st.integers(0, 5)) == 0,
            startup_s=draw(st.sampled_from([0.0, 60.0, 900.0, 7200.0])),
            preemptions_per_h=draw(st.sampled_from([0.0, 0.2, 2.0])),
        )
        for i in range(size)
    ]
    share = draw(st.one_of(st.just(0.0), st.floats(0.001, 1.2)))
    return pool, share * sum(c.effective_rate for c in pool)


def cheapest_by_enumeration(pool: list[Candidate], needed: float) -> float:
    free = [c for c in pool if not c.locked]
    locked = [c for c in pool if c.locked]
    return min(
        sum(c.cost_usd_per_h for c in [*locked, *picked])
        for size in range(len(free) + 1)
        for picked in combinations(free, size)
        if sum(c.effective_rate for c in [*locked, *picked]) >= needed * (1 - 1e-9)
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_exact_search_agrees_with_a_general_milp_solver_at_96_workers(seed: int) -> None:
    """On mixed pools of 96 workers the exact search and HiGHS find sets of the same price."""
    from echo2.policy.activation.milp import milp

    rng = np.random.default_rng(seed)
    price = np.exp(rng.uniform(np.log(0.2), np.log(4.0), 96))
    rate = 0.05 * price ** rng.uniform(0.6, 1.1) * np.exp(rng.normal(0.0, 0.4, 96))
    pool = [Candidate(f"w{i}", float(price[i]), float(rate[i])) for i in range(96)]
    needed = float(rate.sum() * rng.uniform(0.2, 0.9))
    ours, theirs = exact(pool, needed), milp(pool, needed)
    assert ours.method == "exact"
    assert ours.cost_usd_per_h == pytest.approx(theirs.cost_usd_per_h, rel=2e-6)
    assert greedy_then_prune(pool, needed).cost_usd_per_h <= 1.02 * theirs.cost_usd_per_h


@given(pools())
@settings(max_examples=80, deadline=None)
def test_exact_is_the_optimum(case: tuple[list[Candidate], float]) -> None:
    """The exact method costs what the best of all subsets costs, and covers the need."""
    pool, needed = case
    answer = exact(pool, needed)
    if answer.feasible:
        assert answer.cost_usd_per_h == pytest.approx(cheapest_by_enumeration(pool, needed), rel=2e-6)
        assert answer.rate >= needed * (1 - 1e-8)


@given(pools(most=20))
@settings(max_examples=80, deadline=None)
def test_order_of_the_answers(case: tuple[list[Candidate], float]) -> None:
    """LP bound <= exact <= greedy <= twice exact, and locked workers are in every answer."""
    pool, needed = case
    best, greedy = exact(pool, needed), greedy_then_prune(pool, needed)
    assert lp_bound(pool, needed) <= best.cost_usd_per_h * (1 + 1e-9) + 1e-12
    assert best.cost_usd_per_h <= greedy.cost_usd_per_h * (1 + 1e-9)
    assert greedy.cost_usd_per_h <= 2 * best.cost_usd_per_h * (1 + 1e-5)
    assert best.ratio >= 1 - 1e-9
    for answer in (best, greedy):
        assert {c.worker_id for c in pool if c.locked} <= set(answer.chosen)
        assert {worker for worker, _ in answer.reasons} == set(answer.chosen)


@given(pools())
@settings(max_examples=80, deadline=None)
def test_a_pool_too_small_is_used_whole(case: tuple[list[Candidate], float]) -> None:
    """An infeasible need gets everything useful, feasible=False and the shortfall."""
    pool, _ = case
    total = sum(c.effective_rate for c in pool)
    for method in ("exact", "greedy", "auto"):
        answer = choose(pool, total + 1.0, method)
        assert not answer.feasible
        assert answer.shortfall == pytest.approx(1.0)
        assert {c.worker_id for c in pool if c.effective_rate > 0} <= set(answer.chosen)


def test_order_of_the_pool_does_not_matter() -> None:
    """Ties are broken by worker_id, so a shuffled pool gives the same answer."""
    pool = [Candidate(f"w{i}", 1.0 + i % 3, 1.0 + i % 2) for i in range(12)]
    shuffled = [pool[i] for i in (5, 2, 11, 0, 7, 9, 1, 3, 8, 10, 4, 6)]
    for method in ("exact", "greedy"):
        assert choose(pool, 6.5, method) == choose(shuffled, 6.5, method)
    assert revise(pool, 6.5) == revise(shuffled, 6.5)


def test_of_equal_workers_the_running_ones_are_kept() -> None:
    """Among equal workers those already active are chosen first."""
    pool = [Candidate(f"w{i}", 1.0, 1.0, active=i in (3, 5)) for i in range(6)]
    for method in ("exact", "greedy"):
        assert choose(pool, 2.0, method).chosen == ("w3", "w5")


def test_large_pool_is_close_to_its_bound() -> None:
    """With 96 different workers both methods stay within 2 % of the LP bound plus one worker's rounding."""
    rng = np.random.default_rng(4)
    pool = [
        Candidate(f"w{i:02d}", float(c), float(r)) for i, (c, r) in enumerate(rng.uniform(0.3, 3, (96, 2)))
    ]
    needed = 0.5 * sum(c.rate for c in pool)
    best, greedy = exact(pool, needed), greedy_then_prune(pool, needed)
    assert best.method == "exact"
    assert best.ratio < 1.02
    assert greedy.cost_usd_per_h <= 1.02 * best.cost_usd_per_h


def test_an_unproven_search_says_so() -> None:
    """When the exact search is cut short the answer is called greedy, carries a note, and still covers."""
    rng = np.random.default_rng(0)
    pool = [Candidate(f"w{i}", float(c), float(c) + 1.0) for i, c in enumerate(rng.uniform(0.5, 4, 60))]
    answer = exact(pool, 70.0, max_states=3)
    assert answer.method == "greedy"
    assert "not proven" in answer.note
    assert answer.feasible
    assert answer.cost_usd_per_h <= greedy_then_prune(pool, 70.0).cost_usd_per_h


def test_preemption_lowers_the_rate_by_renewal_reward() -> None:
    """Twice an hour down for six minutes each leaves 1/(1 + 0.2) of the rate."""
    worker = Candidate("spot", 1.0, 6.0, startup_s=360.0, preemptions_per_h=2.0)
    assert worker.effective_rate == pytest.approx(5.0)


@pytest.mark.parametrize(
    "bad", [{"cost_usd_per_h": 0.0}, {"rate": -1.0}, {"rate": math.nan}, {"startup_s": -1.0}]
)
def test_impossible_facts_are_refused(bad: dict[str, float]) -> None:
    """A price of zero, a negative or undefined rate and a negative start-up are programming errors."""
    with pytest.raises(ValueError):
        Candidate(**({"worker_id": "w", "cost_usd_per_h": 1.0, "rate": 1.0} | bad))  # type: ignore[arg-type]


def applied(pool: list[Candidate], revision: Revision) -> list[Candidate]:
    start = {worker for worker, _ in revision.start}
    stop = {worker for worker, _ in revision.stop}
    return [replace(c, active=(c.active or c.worker_id in start) and c.worker_id not in stop) for c in pool]


policies = st.builds(
    HysteresisPolicy,
    switch_gain=st.sampled_from([0.0, 0.1, 0.5]),
    horizon_s=st.sampled_from([600.0, 3600.0]),
    slack=st.sampled_from([0.0, 0.1]),
)


@given(pools(most=16), policies)
@settings(max_examples=100, deadline=None)
def test_revising_twice_changes_nothing_more(
    case: tuple[list[Candidate], float], policy: HysteresisPolicy
) -> None:
    """With unchanged facts a second revision has nothing to start or stop: no flip-flop."""
    pool, needed = case
    first = revise(pool, needed, policy)
    again = revise(applied(pool, first), needed, policy)
    assert not again.changes, (first, again)


@given(pools(most=16), policies)
@settings(max_examples=100, deadline=None)
def test_revision_keeps_the_cover_and_the_leases(
    case: tuple[list[Candidate], float], policy: HysteresisPolicy
) -> None:
    """A revision covers the need if the pool can, stops no locked worker and gives its reasons."""
    pool, needed = case
    revision = revise(pool, needed, policy)
    after = applied(pool, revision)
    assert revision.activation.chosen == tuple(sorted(c.worker_id for c in after if c.active))
    if sum(c.effective_rate for c in pool) >= needed:
        assert revision.activation.feasible
    assert not {c.worker_id for c in pool if c.locked} & {worker for worker, _ in revision.stop}
    assert all(reason for _, reason in (*revision.start, *revision.stop))


def test_a_leaver_is_replaced_by_the_cheapest_rollouts() -> None:
    """When capacity is short the inactive worker with the cheapest rollouts is started."""
    pool = [
        Candidate("stays", 1.0, 1.0, active=True),
        Candidate("dear", 2.0, 1.0),
        Candidate("cheap", 0.5, 1.0),
    ]
    revision = revise(pool, 2.0)
    assert [worker for worker, _ in revision.start] == ["cheap"]
    assert revision.stop == ()
    assert "short of 1 rollouts/s" in revision.start[0][1]


def test_a_slow_start_counts_against_a_newcomer() -> None:
    """A worker that takes most of the horizon to start loses to a dearer one that is ready at once."""
    pool = [Candidate("slow", 1.0, 1.0, startup_s=3000.0), Candidate("ready", 1.5, 1.0)]
    assert [worker for worker, _ in revise(pool, 1.0).start] == ["ready"]


def test_small_savings_do_not_move_a_running_pool() -> None:
    """A 5 % cheaper worker is left alone, a 50 % cheaper one takes over unless its start-up eats the gain."""
    running = Candidate("running", 1.0, 1.0, active=True)
    assert not revise([running, Candidate("new", 0.95, 1.0)], 1.0).changes
    taken = revise([running, Candidate("new", 0.5, 1.0)], 1.0)
    assert [w for w, _ in taken.start] == ["new"]
    assert [w for w, _ in taken.stop] == ["running"]
    assert taken.handover == (("running", "new"),)
    assert not revise([running, Candidate("new", 0.5, 1.0, startup_s=3600.0)], 1.0).changes


def test_a_locked_worker_outlives_its_use() -> None:
    """A redundant worker within its minimum lease stays; without the lease it is stopped."""
    pool = [Candidate("a", 1.0, 2.0, active=True), Candidate("b", 3.0, 2.0, active=True, locked=True)]
    assert not any(worker == "b" for worker, _ in revise(pool, 2.0).stop)
    unlocked = [pool[0], replace(pool[1], locked=False)]
    assert [worker for worker, _ in revise(unlocked, 2.0).stop] == ["b"]


def test_slack_keeps_a_spare() -> None:
    """With slack a worker is stopped only if the others make the need and the slack on top."""
    pool = [Candidate(f"w{i}", 1.0, 1.0, active=True) for i in range(3)]
    assert len(revise(pool, 2.0).stop) == 1
    assert not revise(pool, 2.0, HysteresisPolicy(slack=0.2)).changes
