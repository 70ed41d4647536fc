"""The fidelity table from the committed records: `python experiments/fidelity/table.py`.

Validates every record that has no result yet (`--again`: all of them), keeps the results in `results.json`,
and fills the block of docs/fidelity.md. Records that this version of the scheduler refuses are named.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs" / "fidelity.md"
BLOCK = re.compile(r"(<!-- fidelity -->\n).*?(<!-- end -->)", re.DOTALL)
GAP = 0.05
WINNERS = (("steps_per_s", "steps/s", max), ("step_cost_usd", "USD per step", min))
Result = dict[str, Any]


def main() -> None:
    """Validate what is new and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, default=HERE / "records")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--again", action="store_true", help="validate all records anew")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin no record after this long"
    )
    args = parser.parse_args()
    results = {} if args.again else load(args.results)
    refused = validate_new(args.records, results, args.results, args.budget_s)
    for name, why in refused.items():
        print(f"refused: {name}: {why}")
    if not results:
        raise SystemExit(f"{args.records}: no record; matrix.py writes them")
    text = "\n".join(report(results))
    print(text)
    if args.docs.is_file():
        page = args.docs.read_text(encoding="utf-8")
        args.docs.write_text(BLOCK.sub(lambda m: f"{m[1]}{text}\n{m[2]}", page), encoding="utf-8")


def load(path: Path) -> dict[str, Result]:
    """The results kept so far."""
    found: dict[str, Result] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def validate_new(records: Path, results: dict[str, Result], kept: Path, budget_s: float) -> dict[str, str]:
    """Validate the records without a result, each `kept` at once; returns those refused, and why."""
    from echo2.cli.code_version import code_version
    from echo2.errors import UserError
    from echo2.validate.check import validate

    refused, began = {}, time.monotonic()
    for folder in sorted(path for path in records.glob("*-seed*") if path.suffix != ".part"):
        if folder.name in results:
            continue
        if time.monotonic() - began > budget_s:
            print(
                f"the budget of {budget_s:.0f} s is used up; run again, without --again, to go on", flush=True
            )
            break
        try:
            found = validate(folder, model=ROOT / "assets" / "tiny-sort")
        except UserError as error:
            refused[folder.name] = str(error)
            continue
        columns = ("live", "simulated", "planned", "error", "plan_error", "given_error")
        results[folder.name] = {
            "code_version": code_version(),
            "steps": [found.first, found.last],
            "delay_s": found.calibrated["delay_s"],
            "rows": {row.metric: {column: getattr(row, column) for column in columns} for row in found.rows},
        }
        kept.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"validated {folder.name}", flush=True)
    return refused


# ---- the report ----------------------------------------------------------------------------------


def report(results: dict[str, Result]) -> list[str]:
    """The lines of the docs block."""
    cells = by_cell(results)
    versions = sorted({result["code_version"] for result in results.values()})
    return [
        f"{len(results)} live runs of {len(cells)} configurations, validated with {', '.join(versions)}.",
        "",
        *errors_table(results, cells),
        "",
        *winners_table(cells),
        "",
        *cells_table(cells),
    ]


def by_cell(results: dict[str, Result]) -> dict[str, list[Result]]:
    """Results by configuration."""
    cells: dict[str, list[Result]] = {}
    for name, result in sorted(results.items()):
        cells.setdefault(name.rpartition("-seed")[0], []).append(result)
    return cells


def errors_table(results: dict[str, Result], cells: dict[str, list[Result]]) -> list[str]:
    """Errors over all runs, by metric."""
    from echo2.validate.compare import FIGURES

    lines = [
        "| metric | error is | mean, signed | mean of size | P99 of size | the same, T_train given "
        "| two live runs differ by, mean | two live runs differ by, P99 | plan, mean of size |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for figure in FIGURES:
        rows = [result["rows"][figure.name] for result in results.values()]
        errors = [row["error"] for row in rows if row["error"] is not None]
        given = [abs(row["given_error"]) for row in rows if row["given_error"] is not None]
        plans = [abs(row["plan_error"]) for row in rows if row["plan_error"] is not None]
        if not errors:
            continue
        show = shown(figure.unit)
        sizes = np.abs(errors)
        between = [
            gap for pair in cells.values() if (gap := spread(pair, figure.name, figure.unit)) is not None
        ]
        cells_of = [
            figure.text,
            WORDS[figure.unit],
            show(fmean(errors), True),
            show(float(sizes.mean())),
            show(float(np.percentile(sizes, 99))),
            f"{show(fmean(given))}, {show(float(np.percentile(given, 99)))}" if given else "",
            show(fmean(between)) if between else "",
            show(float(np.percentile(between, 99))) if between else "",
            show(fmean(plans)) if plans else "",
        ]
        lines.append(f"| {' | '.join(cells_of)} |")
    return lines


WORDS = {
    "relative": "% of the live value",
    "share": "points of 100 %",
    "versions": "versions",
    "distance": "0 for equal ones",
}


def shown(unit: str) -> Callable[..., str]:
    """How errors of a unit are printed."""

    def show(value: float, signed: bool = False) -> str:
        scaled = 100 * value if unit in ("relative", "share") else value
        digits = 1 if unit in ("relative", "share") else 3 if unit == "distance" else 2
        sign = "+" if signed and unit != "distance" else ""
        return f"{scaled:{sign}.{digits}f}" + (" %" if unit == "relative" else "")

    return show


def spread(pair: Sequence[Result], metric: str, unit: str) -> float | None:
    """How far the two live runs of a configuration are apart; None where there is no pair."""
    values = [result["rows"][metric]["live"] for result in pair]
    if len(values) < 2 or any(value is None for value in values):
        return None
    gap = max(values) - min(values)
    middle = fmean(values)
    return gap if unit != "relative" else (gap / middle if middle else None)


def winners_table(cells: dict[str, list[Result]]) -> list[str]:
    """In how many pairs of configurations the simulation and the plan name the live winner."""
    lines = [
        f"Same winner, over the pairs of configurations that are more than {GAP:.0%} apart live:",
        "",
        "| by | pairs | simulation right | plan right | simulation wrong, worst |",
        "|---|---:|---:|---:|---|",
    ]
    for metric, text, better in WINNERS:
        live = averages(cells, metric, "live")
        pairs = [(a, b) for a, b in combinations(live, 2) if apart(live[a], live[b])]
        wrong, right = judged(pairs, live, averages(cells, metric, "simulated"), better)
        plan_wrong, plan_right = judged(pairs, live, averages(cells, metric, "planned"), better)
        worst = max(wrong, key=lambda pair: gap_of(live[pair[0]], live[pair[1]]), default=None)
        which = ""
        if worst is not None:
            gap = gap_of(live[worst[0]], live[worst[1]])
            which = f"{worst[0]} and {worst[1]}, {gap:.0%} apart"
        lines.append(
            f"| {text} | {len(pairs)} | {share(right, wrong)} | {share(plan_right, plan_wrong)} | {which} |"
        )
    return lines


def averages(cells: dict[str, list[Result]], metric: str, column: str) -> dict[str, float]:
    """The mean over a configuration's runs; configurations without a value are left out."""
    found = {}
    for name, pair in cells.items():
        values = [result["rows"][metric][column] for result in pair]
        if values and all(value is not None for value in values):
            found[name] = fmean(values)
    return found


def judged(
    pairs: Iterable[tuple[str, str]],
    live: dict[str, float],
    said: dict[str, float],
    better: Callable[..., str],
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(pairs whose winner is not foretold, pairs whose winner is)."""
    wrong: list[tuple[str, str]] = []
    right: list[tuple[str, str]] = []
    for pair in pairs:
        if pair[0] in said and pair[1] in said:
            same = better(pair, key=live.__getitem__) == better(pair, key=said.__getitem__)
            (right if same else wrong).append(pair)
    return wrong, right


def apart(a: float, b: float) -> bool:
    """Whether two live values differ by more than the gap."""
    return gap_of(a, b) > GAP


def gap_of(a: float, b: float) -> float:
    """The difference of two values, as a share of the smaller one."""
    return abs(a - b) / max(min(abs(a), abs(b)), 1e-12)


def share(right: Sequence[Any], wrong: Sequence[Any]) -> str:
    """How many of how many, in print."""
    count = len(right) + len(wrong)
    return f"{len(right)} of {count} ({len(right) / count:.1%})" if count else "none"


def cells_table(cells: dict[str, list[Result]]) -> list[str]:
    """Every configuration: live, simulated, planned."""
    lines = [
        "| configuration | steps/s live | simulated | planned | utilisation live | simulated | planned "
        "| staleness live | simulated |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, pair in cells.items():
        cell = [name]
        for metric, columns, form in (
            ("steps_per_s", ("live", "simulated", "planned"), "{:.2f}"),
            ("learner_utilisation", ("live", "simulated", "planned"), "{:.0%}"),
            ("staleness_mean", ("live", "simulated"), "{:.2f}"),
        ):
            for column in columns:
                values = [result["rows"][metric][column] for result in pair]
                known = [value for value in values if value is not None]
                cell.append(form.format(fmean(known)) if known else "")
        lines.append(f"| {' | '.join(cell)} |")
    return lines


if __name__ == "__main__":
    main()
