"""The planner's answers in words must be true of the plan they belong to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo2.errors import InfeasibleError
from echo2.policy.generation import TokenLengths
from echo2.policy.plan_types import PlanProblem
from echo2.policy.planner import plan_run
from echo2.testing import equal_workers, one_site

HEAVY = TokenLengths(
    np.array([100.0, 400.0, 1500.0]), np.array([300.0, 1000.0, 6000.0]), np.array([0.5, 0.4, 0.1])
)
NEED = 3.2


def problem(supply: float = 4.0, count: int = 4, **changes: Any) -> PlanProblem:
    """A pool of equal workers that makes `supply` times what a learner of 32 rollouts in 10 s needs."""
    workers = equal_workers(count, tokens_per_s=supply * NEED * HEAVY.mean / count, slots=32, lengths=HEAVY)
    fields: dict[str, Any] = {
        "staleness_bound": 5, "publish_period": 0, "rollouts_per_step": 32, "group_size": 4,
        "total_steps": 20, "train_s": 10.0, "train_cv": 0.0, "learner_usd_per_h": 10.0,
        "full_snapshot_bytes": 1e9, "snapshot_bytes": 1e9, "lengths": HEAVY, "prompt_tokens": 0.0,
        "offers": tuple(worker.offer for worker in workers), "links": one_site(), "margin": 1.0,
        "decode": {worker.offer.worker_id: worker.decode for worker in workers},
    }  # fmt: skip
    return PlanProblem(**{**fields, **changes})


def test_a_term_that_is_met_is_not_said_to_break() -> None:
    """Where snapshot and group fit into what S leaves, the answer does not blame them."""
    with pytest.raises(InfeasibleError) as error:
        plan_run(problem(publish_period=2))
    assert "that breaks" not in str(error.value)
    assert "what binds is" in str(error.value)


def test_a_pool_that_is_just_large_enough_is_not_called_too_small() -> None:
    """A sum of rates short by rounding alone asks for no more workers."""
    with pytest.raises(InfeasibleError) as error:
        plan_run(problem(supply=1.0, count=8))
    assert "too small" not in str(error.value)


def test_a_small_pool_is_not_blamed_on_the_staleness_bound() -> None:
    """With too few workers for any S the answer does not say that S is too tight."""
    answers = " ".join(plan_run(problem(supply=0.3, best_effort=True)).answers)
    assert "too tight" not in answers and "No S keeps the learner busy" in answers


@pytest.mark.parametrize(("S", "kappa", "said"), [(5, 4, "was asked for"), (0, 0, "only period")])
def test_periods_that_were_not_tried_are_not_judged(S: int, kappa: int, said: str) -> None:
    """The alternative says so where no other period was tried."""
    answers = plan_run(problem(staleness_bound=S, publish_period=kappa)).answers
    assert said in next(answer for answer in answers if answer.startswith("Alternative"))


def infeasible(**changes: Any) -> tuple[InfeasibleError, Any]:
    """The answer for a snapshot that takes many steps to arrive, and the smallest S that it names."""
    with pytest.raises(InfeasibleError) as error:
        plan_run(problem(snapshot_bytes=3e11, full_snapshot_bytes=3e11, **changes))
    return error.value, error.value.facts["smallest_feasible_S"]


def test_the_named_staleness_bound_is_accepted_when_typed() -> None:
    """The smallest S of an infeasible answer makes a plan, and is the smallest that does."""
    _, smallest = infeasible(staleness_bound=3)
    assert smallest is not None and 20 <= smallest <= 70
    plan = plan_run(problem(staleness_bound=smallest, snapshot_bytes=3e11, full_snapshot_bytes=3e11))
    assert plan.regime == "overlap" and plan.learner_utilisation >= 0.95
    assert infeasible(staleness_bound=smallest - 1)[1] == smallest


def test_the_message_of_an_infeasible_plan_is_whole_sentences() -> None:
    """It says what breaks and by how much, each remedy stands by itself, and nothing dangles."""
    error, smallest = infeasible(staleness_bound=3)
    text = str(error)
    assert f"smallest feasible S is {smallest}" in text
    assert "so would" not in text and ".." not in text and ";;" not in text
    assert text.endswith("or accept an idle learner with best_effort = true in [run]")
    remedies = error.facts["remedies"]
    assert isinstance(remedies, list) and all(remedy in text for remedy in remedies)
    for remedy in remedies[1:]:
        assert remedy.endswith("would do"), remedy


@pytest.mark.parametrize(
    ("size_bytes", "preempted", "term"),
    [(3e12, 1.0, "a worker is lost 1 times"), (1e15, 0.0, "222 h to all")],
)
def test_where_no_staleness_bound_is_enough_the_answer_names_what_is_left(
    size_bytes: float, preempted: float, term: str
) -> None:
    """With S at its largest freshness is no excuse: lost workers are named, or snapshots that queue."""
    given = problem(supply=3.0, snapshot_bytes=size_bytes, full_snapshot_bytes=size_bytes, margin=0.0)
    offers = tuple(replace(offer, preemptions_per_h=preempted) for offer in given.offers)
    with pytest.raises(InfeasibleError) as error:
        plan_run(replace(given, offers=offers))
    assert error.value.facts["smallest_feasible_S"] is None
    assert term in next(part for part in str(error.value).split("; ") if "no S up to 4,096" in part)
