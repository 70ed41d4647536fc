"""Deltas, full snapshots and the weight of egress: from the configuration to the scheduler's settings."""

from __future__ import annotations

from typing import Any

import pytest

from echo2.config import parse
from echo2.errors import UserError
from echo2.policy.planner import settings_for, settle_run
from echo2.policy.settings import SchedulerSettings
from echo2.scenario import Scenario, build
from echo2.scenario.delta_sizes import ratio
from echo2.traces import model_info

TABLE: dict[str, Any] = {
    "run": {"steps": 200, "staleness": 6, "best_effort": True},
    "learner": {"provider": "aws", "region": "aws:us-east-1", "price_usd_per_gpu_h": 4.0},
    "pool": [
        {"name": "far", "gpu": "H100", "count": 6, "provider": "vast-ai", "region": "azure:eastus",
         "uplink_mbps": 800, "downlink_mbps": 900},
    ],
}  # fmt: skip


def scenario(*overrides: str) -> Scenario:
    """The scenario of the table above with overrides."""
    return build(parse(TABLE, "run.toml", overrides), source_name="run.toml")


def settings(*overrides: str) -> SchedulerSettings:
    """The settings the planner makes of it."""
    problem = scenario(*overrides).problem
    return settings_for(problem, settle_run(problem)[0])


@pytest.mark.parametrize(("dtype", "rate"), [("bf16", 1e-6), ("bf16", 1e-5)])
def test_the_measured_ratio_is_that_of_dtype_rate_and_size(dtype: str, rate: float) -> None:
    """`delta_ratio = "measured"` looks the model's size and learning rate up, and the note says where."""
    built = scenario('model.delta_ratio="measured"', f"train.learning_rate={rate}")
    wanted = ratio(dtype, rate, model_info("Qwen3-8B").parameters)
    assert built.problem.full_snapshot_bytes / built.problem.snapshot_bytes == pytest.approx(wanted)
    assert any("measured on" in note for note in built.notes)


def test_a_live_run_is_planned_with_the_type_it_publishes() -> None:
    """With a [train] model the ratio is of train.snapshot_dtype: fp32 deltas save far less."""
    ratios = []
    for dtype in ("float32", "bfloat16"):
        overrides = ('model.delta_ratio="measured"', 'train.model="m"', f'train.snapshot_dtype="{dtype}"')
        problem = scenario(*overrides).problem
        ratios.append(problem.full_snapshot_bytes / problem.snapshot_bytes)
    assert 1.0 < ratios[0] < ratios[1] / 5


@pytest.mark.parametrize("bad", ['"guess"', "0.5", "true", "20000"])
def test_another_ratio_is_refused_by_name(bad: str) -> None:
    """Neither "measured" nor a number of the range: one line with the key and the range."""
    with pytest.raises(UserError, match=r'model\.delta_ratio.*"measured" or a number'):
        scenario(f"model.delta_ratio={bad}")


def test_full_snapshots_are_rarer_with_deltas_and_as_often_as_asked() -> None:
    """Without deltas every snapshot is full; with them the planner picks; a number is kept."""
    assert settings().full_every == 1
    chosen = settings("model.delta_ratio=50", "pool.far.preemptions_per_h=0.5")
    assert 1 < chosen.full_every <= 51
    often = settings("model.delta_ratio=50", "pool.far.preemptions_per_h=20")
    assert often.full_every < chosen.full_every
    fixed = settings("model.delta_ratio=50", "run.full_every=7")
    assert fixed.full_every == 7
    assert [v for v in range(30 * fixed.publish_period) if fixed.full_at(v)][:: fixed.publish_period] == [
        7 * fixed.publish_period * i for i in range(5)
    ]


def test_the_weight_of_egress_reaches_the_scheduler() -> None:
    """`run.egress_weight` is in the settings and in what the provisioning rule asks."""
    made = settings("run.egress_weight=3.5")
    assert made.egress_weight == 3.5 and made.demand(60.0).egress_weight == 3.5
    assert settings().egress_weight == 1.0
    with pytest.raises(UserError, match=r"run\.egress_weight"):
        scenario("run.egress_weight=-1")
