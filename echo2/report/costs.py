"""The step cost of a run beside what was planned and beside the baseline of all workers on."""

from __future__ import annotations

from dataclasses import dataclass

from echo2.report.record import RunRecord

PARTS = ("learner", "workers", "egress")


@dataclass(frozen=True)
class StepCost:
    """USD per step by part; `basis` is planned, simulated or live."""

    label: str
    basis: str
    parts: dict[str, float]
    note: str = ""

    @property
    def total(self) -> float:
        """USD per step."""
        return sum(self.parts.values())


def step_costs(record: RunRecord) -> list[StepCost]:
    """As run, planned, and planned with the whole pool on; what the directory does not tell is left out."""
    rows = []
    split, steps = record.summary.get("cost_split_usd"), record.summary.get("steps")
    if split and steps:
        parts = {part: split.get(part, 0.0) / steps for part in PARTS}
        rows.append(StepCost(record.world, record.world, parts))
    plan = record.plan
    if plan is None:
        return rows
    planned = {part: plan["cost_split_usd"].get(part, 0.0) for part in PARTS}
    rows.append(StepCost("planned", "planned", planned))
    all_on = plan.get("activation", {}).get("baseline_all_on_usd_per_h")
    if all_on is not None and plan["steps_per_s"] > 0:
        workers = all_on / 3600.0 / plan["steps_per_s"]
        note = (
            "every worker of the pool paid for at the planned step time; its egress would be more than shown "
            "(planned for the chosen workers)"
        )
        rows.append(StepCost("all workers on, planned", "planned", {**planned, "workers": workers}, note))
    return rows
