"""The smallest feasible S: found without planning what cannot succeed, and the same as by planning it all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planner_offers import Kind, pool
from test_steady import problems

from echo2.policy import smallest
from echo2.policy.generation import DecodeModel, TokenLengths
from echo2.policy.plan_choice import PlanMemory
from echo2.policy.plan_types import PlanProblem
from echo2.policy.search import COARSE, kappa_choices, overlap_options, provisioned
from echo2.policy.smallest import FEW_PERIODS_ABOVE, first_accepted, smallest_feasible
from echo2.policy.steady import SteadyProblem, WorkerGroup, most_utilisation, predict

KINDS = st.tuples(
    st.integers(1, 8),
    st.sampled_from([500.0, 3000.0, 8000.0]),
    st.sampled_from([0.2, 1.0, 4.0]),
    st.sampled_from([3e6, 1e8, 5e9]),
    st.sampled_from([0.0, 2.0]),
)


def one_slow_link() -> SteadyProblem:
    """A worker that makes a batch in a hundredth of a step, behind a link that takes six."""
    worker = WorkerGroup(1, DecodeModel.constant_rate(1e9, 4096), 4096, 60.0)
    return SteadyProblem(7, 6, 256, 8, 10.0, (worker,), TokenLengths.constant(1000))


def plain_scan(problem: PlanProblem) -> int | None:
    """The same scan, with every S planned and every period provisioned."""
    memory = PlanMemory(COARSE)

    def ruled(S: int) -> bool:
        at = replace(problem, staleness_bound=S, publish_period=0)
        found = (provisioned(at, kappa, memory, thorough=False) for kappa in kappa_choices(at, S))
        return any(result.feasible and not result.queues for result in found)

    def planned(S: int) -> bool:
        at = replace(problem, staleness_bound=S, publish_period=0)
        periods = (S // 2, 3 * S // 4) if S > FEW_PERIODS_ABOVE else ()
        return any(option.feasible for option in overlap_options(at, memory, 1, periods))

    low, high = 0, max(1, problem.staleness_bound)
    while not ruled(high):
        if high >= smallest.LARGEST_S:
            return None
        low, high = high, min(smallest.LARGEST_S, 2 * high + 1)
    while high - low > max(1, high // 32):
        middle = (low + high) // 2
        low, high = (low, middle) if ruled(middle) else (middle, high)
    return first_accepted(planned, high, smallest.LARGEST_S + 1)


@settings(max_examples=6, deadline=None)
@given(
    S=st.integers(1, 8),
    kinds=st.lists(KINDS, min_size=1, max_size=3),
    gigabytes=st.sampled_from([0.01, 0.3, 1.0, 8.0]),
)
def test_the_answer_is_that_of_the_plain_scan(S: int, kinds: list[Kind], gigabytes: float) -> None:
    """What the limit and the guesses leave out would not have changed the smallest S."""
    asked = pool(S, *kinds, snapshot_bytes=gigabytes * 1e9, full_snapshot_bytes=gigabytes * 1e9)
    assert smallest_feasible(asked, PlanMemory(COARSE), False) == plain_scan(asked)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), more=st.sampled_from([0, 0, 0, 30]), slower=st.sampled_from([1.0, 4.0]))
def test_no_march_exceeds_its_limit(problem: SteadyProblem, more: int, slower: float) -> None:
    """However long snapshots take, the predicted utilisation stays at or below the closed form."""
    groups = tuple(replace(group, broadcast_s=slower * group.broadcast_s) for group in problem.workers)
    problem = replace(problem, S=problem.S + more, kappa=problem.kappa + more // 2, workers=groups)
    soonest_s = min(group.broadcast_s for group in problem.workers)
    limit = most_utilisation(problem.S, problem.kappa, problem.train_s, soonest_s, problem.lengths.cv)
    assert predict(problem).learner_utilisation <= limit * (1.0 + 1e-9)


def test_the_limit_is_reached_where_the_broadcast_alone_binds() -> None:
    """With instant generation the march works as much as the limit says, to 2 %."""
    base = one_slow_link()
    limit = most_utilisation(base.S, base.kappa, base.train_s, base.workers[0].broadcast_s, 0.0)
    assert limit < 0.9
    assert predict(base).learner_utilisation == pytest.approx(limit, rel=0.02)


def test_few_staleness_bounds_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a link that takes hundreds of steps two values of S at most are planned, not ten."""
    planned: list[int] = []
    plan_at = smallest._Accepted._planned

    def noted(self: smallest._Accepted, S: int) -> bool:
        planned.append(S)
        return plan_at(self, S)

    monkeypatch.setattr(smallest._Accepted, "_planned", noted)
    asked = pool(1, (4, 8000.0, 1.0, 3e6, 0.0), snapshot_bytes=1e9, full_snapshot_bytes=1e9)
    found = smallest_feasible(asked, PlanMemory(COARSE), False)
    assert found is not None and found > 500
    assert found in planned and len(planned) <= 2
