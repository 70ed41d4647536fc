"""echo2 and the systems it is compared with, simulated in the same world.

    python scripts/compare_systems.py CONFIG [--set KEY=VALUE ...] [--out FILE.json]

Learner, batch, lengths, steps and seed are the configuration's for all; the baselines' pools are described
in `echo2.scenario.baselines`. Used by the demo; the JSON is what the report's baselines section reads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo2.cli.prepare import configuration, plan_anyhow, scenario
from echo2.policy.planner import settings_for
from echo2.sim.run import simulate

DELTA_RATIO = 30
SYSTEMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("colocated synchronous", ("run.system=colocated",)),
    ("one-step-off", ("run.system=one-step-off",)),
    ("datacentre-async", ("run.system=datacentre-async",)),
    ("echo2", ()),
    (f"echo2, deltas {DELTA_RATIO}x smaller", (f"model.delta_ratio={DELTA_RATIO}",)),
)


def compare(config: Path, sets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row a system: its simulated summary (without the workers), and the plan's S, kappa and workers."""
    return [{"system": name, **_row(config, [*sets, *changes])} for name, changes in SYSTEMS]


def _row(config: Path, sets: Sequence[str]) -> dict[str, Any]:
    loaded = configuration(config, sets)
    built = scenario(loaded)
    plan, trouble = plan_anyhow(built)
    summary = simulate(built.world(settings_for(built.problem, plan)), loaded.config.seed).summary()
    del summary["workers"]
    note = f"S = {plan.S}, kappa = {plan.kappa}, {len(plan.chosen)} workers"
    if trouble:
        note += "; learner idles: best that can be done"
    if not summary["complete"]:
        note += "; did not finish"
    return {**summary, "S": plan.S, "kappa": plan.kappa, "workers": len(plan.chosen), "note": note}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The rows as a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *("system", "steps/h", "utilisation", "USD/step", "learner", "workers", "egress", "as planned")
    )
    for row in rows:
        steps = max(1, row["steps"])
        split = [f"{row['cost_split_usd'][part] / steps:.3f}" for part in ("learner", "workers", "egress")]
        table.add_row(
            row["system"],
            f"{3600 * row['steps_per_s']:.2f}",
            f"{row['learner_utilisation']:.1%}",
            f"{row['step_cost_usd']:.3f}",
            *split,
            row["note"],
        )
    Console(width=None if Console().is_terminal else 130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = compare(args.config, args.set)
    show(rows)
    if args.out is not None:
        args.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
