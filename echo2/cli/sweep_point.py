"""Runs one point of a sweep, in a process of its own or not, and makes a flat row of it.

A row depends on the configuration, the seed and the code, and on nothing else: no clock, no process id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from echo2.cli.sweep_grid import Point
from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.policy.plan_types import RunPlan

Row = dict[str, Any]
_plans: dict[str, tuple[RunPlan, str]] = {}


def run_point(point: Point) -> Row:
    """Plan and simulate. A point that cannot be built is a row with status "error"."""
    row: Row = {
        "key": point.key,
        "name": point.config.name,
        "seed": point.config.seed,
        "status": "ok",
        "message": "",
    }
    try:
        row |= _results(point)
    except UserError as error:
        row |= {"status": "error", "message": str(error)}
    row["version"] = point.version
    row["config"] = json.dumps(point.config.model_dump(mode="json"))
    return row


def placed(row: Row, point: Point) -> Row:
    """A row with its place in this grid: an earlier sweep may have run it under another one."""
    values = {name: _cell(value) for name, value in point.values}
    return {"key": row["key"], "index": point.index, "name": row["name"], **values, **row}


def _results(point: Point) -> Row:
    from echo2.cli.prepare import scenario
    from echo2.cli.startup import startup
    from echo2.policy.planner import settings_for
    from echo2.sim.run import simulate

    built = scenario(point.loaded)
    made, trouble = _planned(built, point)
    result = simulate(built.world(settings_for(built.problem, made)), point.config.seed)
    summary, start = result.summary(), startup(result, made)
    status = "best effort" if trouble else "ok"
    return {
        "status": status if summary["complete"] else "unfinished",
        "message": trouble or summary["waiting_for"],
        **_plan_columns(made),
        **_simulated_columns(summary),
        "startup_steps": start.steps,
        "learner_utilisation_after_startup": start.learner_utilisation,
    }


def _planned(built: Any, point: Point) -> tuple[RunPlan, str]:
    """The plan, which does not depend on the seed: neighbours in a sweep share it."""
    from echo2.policy.planner import settle_run

    same = point.config.replaced(seed=0).model_dump_json()
    if same not in _plans:
        _plans.clear()
        made, busy = settle_run(built.problem)
        trouble = (
            "" if busy or made.S == 0 else "S is too tight to keep the learner busy; `echo2 plan` says more"
        )
        _plans[same] = (made, trouble)
    return _plans[same]


def _plan_columns(made: RunPlan) -> Row:
    return {
        "S": made.S,
        "kappa": made.kappa,
        "plan_workers": len(made.chosen),
        "plan_topology": made.broadcast["topology"],
        "plan_t_bcast_s": made.t_bcast_s,
        "plan_steps_per_s": made.steps_per_s,
        "plan_learner_utilisation": made.learner_utilisation,
        "plan_step_cost_usd": made.step_cost_usd,
    }


def _simulated_columns(summary: dict[str, Any]) -> Row:
    stale, tail, steps = summary["staleness"], summary["bcast_tail_s"], max(1, summary["steps"])
    plain = (
        "steps", "wall_s", "steps_per_s", "upper_bound_steps_per_s", "learner_utilisation", "step_cost_usd",
    )  # fmt: skip
    return {
        **{name: summary[name] for name in plain},
        **{f"{part}_usd_per_step": usd / steps for part, usd in summary["cost_split_usd"].items()},
        **{f"idle_{cause}": share for cause, share in summary["bubble_by_cause"].items()},
        **{f"staleness_{name}": stale[name] for name in ("mean", "p50", "p99", "max")},
        **{f"bcast_tail_{name}_s": tail[name] for name in ("p50", "p99")},
        "dropped_share": summary["dropped_share"],
        "trained_tokens_mean": summary["tokens"]["trained_mean"],
        "dispatched_tokens_mean": summary["tokens"]["dispatched_mean"],
        "worker_utilisation": summary["worker_utilisation"],
        "published": summary["published"],
        "preemptions": summary["preemptions"],
    }


def _cell(value: Any) -> Any:
    """A grid value as a table can hold it."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
