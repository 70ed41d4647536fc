"""The fidelity matrix and its table: what is varied, that it fits its time, and how winners are compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from echo2.config import parse
from echo2.policy.planner import plan_run
from echo2.scenario import build

FOLDER = Path(__file__).parents[1] / "experiments" / "fidelity"
sys.path.insert(0, str(FOLDER))

import cells as matrix_cells  # noqa: E402
import table as matrix_table  # noqa: E402

CELLS = matrix_cells.CELLS
MOST_S = 25 * 60.0


def test_the_matrix_varies_what_it_says() -> None:
    """At least 24 configurations cover every staleness bound, engine, link shape and mixed speeds."""
    assert len({cell.name for cell in CELLS}) == len(CELLS) >= 24
    assert {cell.staleness for cell in CELLS} == {0, 1, 3, 6, 11}
    assert len({cell.kappa for cell in CELLS}) >= 5
    pools = [pool for cell in CELLS for pool in cell.pools]
    assert {pool.engine for pool in pools} == {"simulated", "transformers", "vllm"}
    assert {True, False} == {pool.wavy for pool in pools}
    assert len({pool.mbps for pool in pools}) >= 4
    assert any(len({pool.tokens_per_s for pool in cell.pools}) > 1 for cell in CELLS)
    real = [cell for cell in CELLS if any(pool.engine != "simulated" for pool in cell.pools)]
    assert 6 <= len(real) <= 8


def test_both_rounds_fit_the_time() -> None:
    """Two runs of every configuration take at most 25 minutes by the estimate."""
    assert 2 * sum(cell.expected_s for cell in CELLS) <= MOST_S


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_every_configuration_can_be_planned(cell: Any) -> None:
    """The TOML of each cell is valid, buildable and plannable, and its publication period is kept."""
    config = parse(matrix_cells.table(cell, 0, matrix_cells.MODEL), cell.name)
    built = build(config)
    assert plan_run(built.problem).kappa == cell.kappa


def results(**steps_per_s: tuple[float, float]) -> dict[str, Any]:
    """Results of two runs a cell: (live, simulated) steps/s; everything else equal in both worlds."""
    from echo2.validate.compare import FIGURES

    made = {}
    for name, (live, said) in steps_per_s.items():
        for seed, shift in ((0, 0.99), (1, 1.01)):
            same = {
                "live": 1.0,
                "simulated": 1.0,
                "planned": None,
                "error": 0.0,
                "plan_error": None,
                "given_error": 0.0,
            }
            rows = {figure.name: dict(same) for figure in FIGURES}
            rows["steps_per_s"] = {
                "live": live * shift, "simulated": said, "planned": said, "error": said / live - 1.0,
                "plan_error": said / live - 1.0, "given_error": 0.0,
            }  # fmt: skip
            made[f"{name}-seed{seed}"] = {"code_version": "x", "steps": [1, 2], "delay_s": 0.1, "rows": rows}
    return made


def test_winners_are_counted_where_the_live_gap_is_wide_enough() -> None:
    """Pairs closer than 5 % do not count; one whose order the simulation turns round counts as wrong."""
    found = results(a=(1.0, 1.0), b=(1.02, 0.9), c=(1.5, 1.6), d=(2.0, 1.4))
    lines = matrix_table.winners_table(matrix_table.by_cell(found))
    row = next(line for line in lines if line.startswith("| steps/s"))
    assert row.split(" | ")[1:3] == ["5", "4 of 5 (80.0%)"]
    assert "c and d, 33% apart" in row


def test_the_report_gives_bias_size_and_the_live_spread() -> None:
    """The line of a metric has the signed mean, the mean size and how far two live runs are apart.

    Of that the mean and the P99, below which no prediction's can be expected.
    """
    lines = matrix_table.report(results(a=(1.0, 1.1), b=(1.0, 0.9)))
    row = next(line for line in lines if line.startswith("| steps/s"))
    assert row.split(" | ")[2:8] == ["+0.0 %", "10.0 %", "10.0 %", "0.0 %, 0.0 %", "2.0 %", "2.0 %"]
