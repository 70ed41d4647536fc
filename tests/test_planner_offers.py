"""More offers never make a plan worse: what is added may be used or left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_explain import HEAVY, problem

from echo2.policy.plan_types import PlanProblem, RunPlan
from echo2.policy.planner import plan_run, settings_for, settle_run
from echo2.policy.serial import provision_run
from echo2.policy.serial_search import least_near
from echo2.testing import equal_workers, one_site

Kind = tuple[int, float, float, float, float]


def pool(S: int, *kinds: Kind, **changes: Any) -> PlanProblem:
    """A pool of kinds of workers: (how many, tokens/s, USD/h, bit/s of its link, preemptions per hour)."""
    workers = [
        (replace(worker.offer, worker_id=f"{at}-{worker.offer.worker_id}", pool=str(at)), worker.decode)
        for at, (count, tokens_per_s, usd, bps, preempted) in enumerate(kinds)
        for worker in equal_workers(
            count, tokens_per_s, slots=32, lengths=HEAVY, price_usd_per_h=usd, uplink_bps=bps,
            downlink_bps=bps, preemptions_per_h=preempted, startup_s=120.0,
        )
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "offers": tuple(offer for offer, _ in workers),
        "decode": {offer.worker_id: decode for offer, decode in workers},
        "staleness_bound": S, "margin": 0.0, "best_effort": True, "train_s": 5.0,
        "links": one_site(2e9, 0.02, 0.02),
    }  # fmt: skip
    return problem(**{**fields, **changes})


def no_dearer(S: int, large: tuple[Kind, ...], small: tuple[Kind, ...]) -> bool:
    """Whether the best plan of the large pool costs no more a step, or alone keeps the learner busy.

    A busy learner may cost more a step than one that idles: that is what S > 0 asks for.
    """
    (plan, busy), (less, busy_with_less) = settle_run(pool(S, *large)), settle_run(pool(S, *small))
    assert busy >= busy_with_less
    return busy > busy_with_less or plan.step_cost_usd <= 1.001 * less.step_cost_usd


@settings(max_examples=40, deadline=None)
@given(
    S=st.sampled_from([0, 4, 8]),
    count=st.integers(1, 6),
    more=st.integers(1, 20),
    tokens_per_s=st.sampled_from([1000.0, 3000.0, 8000.0]),
    usd=st.sampled_from([0.2, 1.0, 4.0]),
)
def test_more_of_the_same_workers_make_no_plan_dearer(
    S: int, count: int, more: int, tokens_per_s: float, usd: float
) -> None:
    """A larger pool of the same workers costs no more a step."""
    small, large = ((n, tokens_per_s, usd, 1e9, 0.5) for n in (count, count + more))
    assert no_dearer(S, (large,), (small,))


@settings(max_examples=40, deadline=None)
@given(
    S=st.sampled_from([0, 8]),
    count=st.integers(2, 6),
    added=st.integers(1, 12),
    usd=st.sampled_from([0.02, 0.5, 4.0]),
    bps=st.sampled_from([2e7, 1e8]),
    preempted=st.sampled_from([0.0, 2.0]),
)
def test_workers_on_thin_lines_can_be_left_out(
    S: int, count: int, added: int, usd: float, bps: float, preempted: float
) -> None:
    """Slow workers behind slow links, however cheap and often preempted, make no plan dearer."""
    good, bad = (count, 3000.0, 1.0, 5e9, 0.0), (added, 500.0, usd, bps, preempted)
    assert no_dearer(S, (good, bad), (good,))


@pytest.mark.parametrize("added", [(1, 500.0, 0.02, 2e7, 2.0), (12, 500.0, 4.0, 1e8, 0.0)])
def test_more_offers_need_no_larger_staleness_bound(added: Kind) -> None:
    """The smallest feasible S does not grow with what is on offer."""
    good = (3, 8000.0, 1.0, 5e9, 0.0)

    def smallest(*kinds: Kind) -> int:
        found = plan_run(pool(1, *kinds)).smallest_feasible_S
        assert found is not None
        return found

    assert smallest(good, added) <= smallest(good)


@pytest.mark.parametrize("S", [0, 8])
def test_the_run_starts_as_planned(S: int) -> None:
    """The scheduler's own rule, asked with the plan's settings, chooses the workers of the plan."""
    asked = pool(S, (4, 3000.0, 1.0, 5e9, 0.0), (6, 500.0, 0.02, 2e7, 2.0), (2, 8000.0, 4.0, 1e9, 0.5))
    plan: RunPlan = settle_run(asked)[0]
    run = settings_for(asked, plan)
    began = provision_run(
        asked.offers, run.links, run.demand(run.train_s), run.learner_usd_per_h,
        run.activation, run.topologies, run.serial_rate,
    )  # fmt: skip
    assert began.activation.chosen == plan.chosen


@given(best=st.integers(0, 400), begin=st.integers(0, 400), count=st.integers(1, 400))
def test_the_coarse_search_finds_the_bottom(best: int, begin: int, count: int) -> None:
    """Of a cost that falls and then rises the least is found to one part in 32, with few questions."""
    best, begin, asked = min(best, count - 1), min(begin, count - 1), []

    def cost_at(index: int) -> float:
        asked.append(index)
        return float(abs(index - best))

    found = least_near(cost_at, begin, count)
    assert abs(found - best) <= best // 16
    assert len(asked) == len(set(asked)) <= 40
