"""The cost-aware rule against the plain ones, on the shipped experiments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echo2 import config, scenario
from echo2.policy.plan_types import RunPlan
from echo2.policy.planner import settle_run

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


def plan(name: str, rule: str) -> tuple[RunPlan, bool]:
    """The plan under a rule, and whether it keeps the learner busy."""
    loaded = config.load(EXPERIMENTS / f"{name}.toml", [f'policy.activation="{rule}"'])
    built = scenario.build(loaded.config, loaded.base_dir)
    return settle_run(replace(built.problem, best_effort=True))


@pytest.mark.parametrize("name", ["qwen3-8b-mixed-spot", "consumer-home", "qwen3-32b", "qwen3-30b-a3b"])
def test_no_plain_rule_is_cheaper(name: str) -> None:
    """Fastest first and random order cost at least as much a step, where they keep the learner busy too."""
    ours, busy = plan(name, "cost")
    assert busy
    for rule in ("fastest", "random", "all"):
        other, others_busy = plan(name, rule)
        assert not others_busy or ours.step_cost_usd <= 1.002 * other.step_cost_usd, rule
