"""The table that `echo2 sweep` prints: a line a point, with intervals where seeds are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo2.study.intervals import DONE, seedless, t_interval

SHOWN = 24
COLUMNS = ("kappa", "steps/h", "bound", "busy", "USD/step", "stale", "workers", "status")
Row = dict[str, Any]


def show(rows: list[Row], names: list[str], out: Path, kept: int) -> None:
    """Print it, and where the whole is. `names` are the grid's keys; `kept` rows are of earlier runs."""
    import typer

    from echo2.cli.tables import console, table

    groups: dict[str, list[Row]] = {}
    for row in rows:
        # Points of the same configuration that were named otherwise have lines of their own.
        groups.setdefault(f"{[row[name] for name in names]}{seedless(row)}", []).append(row)
    several = any(len(group) > 1 for group in groups.values())
    listed = [
        [*(group[0][name] for name in names), _seeds(group), *_cells(group)]
        for group in list(groups.values())[:SHOWN]
    ]
    more = f", the first {SHOWN}" if len(groups) > SHOWN else ""
    what = (
        f"{len(groups)} points, {len(rows)} runs: mean and 95 % interval"
        if several
        else f"{len(rows)} points"
    )
    heads = [name.replace(".", ".\n") for name in names]
    columns = [*heads, "seeds" if several else "seed", *COLUMNS]
    if several:  # intervals take the room of these two
        left_out = [columns.index(name) for name in ("bound", "workers")]
        columns, *listed = (
            [cell for i, cell in enumerate(line) if i not in left_out] for line in (columns, *listed)
        )
    console().print(table(f"{what}{more}", columns, listed))
    troubles = sum(row["status"] == "error" for row in rows)
    typer.echo(
        f"wrote {out}: {len(rows)} rows, {kept} kept from before"
        + (f", {troubles} errors" if troubles else "")
    )


def _seeds(group: Sequence[Row]) -> str:
    seeds = sorted(row["seed"] for row in group)
    together = len(seeds) > 1 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}-{seeds[-1]}" if together else ",".join(map(str, seeds))


def _cells(group: Sequence[Row]) -> list[str]:
    fine = [row for row in group if row["status"] != "error"]
    if not fine:
        return ["", "", "", "", "", "", "", f"error: {group[0]['message']}"]
    done = [row for row in fine if row["status"] in DONE] or fine
    states = list(dict.fromkeys(row["status"] for row in group))
    plan = done[0]
    return [
        str(plan["kappa"]),
        _mean(done, "steps_per_s", 3600, ".2f"),
        _mean(done, "upper_bound_steps_per_s", 3600, ".2f", False),
        _mean(done, "learner_utilisation", 100, ".1f") + "%",
        _mean(done, "step_cost_usd", 1, ".3f"),
        _mean(done, "staleness_mean", 1, ".2f"),
        str(plan["plan_workers"]),
        ", ".join(states),
    ]


def _mean(rows: Sequence[Row], name: str, times: float, form: str, spread: bool = True) -> str:
    found = t_interval([times * float(row[name]) for row in rows])
    return f"{found.mean:{form}}" + (f"±{found.half:{form}}" if spread and found.n > 1 else "")
