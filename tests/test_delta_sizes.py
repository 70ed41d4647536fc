"""The measured sizes of deltas: what was measured comes back, what lies between lies between."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.scenario.delta_sizes import DTYPES, delta_size, ratio, records

RATES = (1e-6, 1e-5, 1e-4, 1e-3)


def rows() -> list[dict[str, str]]:
    """The shipped measurements."""
    with records().open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_is_measured_and_says_how() -> None:
    """Each row names script, versions, day and task, and its ratio is that of its bytes."""
    assert rows()
    for row in rows():
        assert row["basis"] == "measured" and row["script"] == "benchmarks/delta_ratio.py"
        assert all(row[name] for name in ("torch", "zstandard", "measured", "task", "grad_norm"))
        assert float(row["ratio"]) == pytest.approx(
            int(row["full_bytes"]) / int(row["delta_bytes"]), rel=1e-5
        )
        assert 0 < float(row["share_changed"]) <= 1 and float(row["grad_norm"]) > 0
    measured = {(row["dtype"], float(row["learning_rate"])) for row in rows()}
    assert measured == {(dtype, rate) for dtype in set(DTYPES.values()) for rate in RATES}


@pytest.mark.parametrize("model", sorted({row["model"] for row in rows()}))
def test_bf16_at_the_lowest_rate_is_fifty_times_smaller(model: str) -> None:
    """The claim of the docs, on every measured model: 50 or better at 1e-6 in bf16."""
    mine = [r for r in rows() if (r["model"], r["dtype"], r["steps_apart"]) == (model, "bf16", "1")]
    ratios = [float(r["ratio"]) for r in mine if float(r["learning_rate"]) == 1e-6]
    assert ratios and min(ratios) >= 50


def test_a_measured_point_comes_back() -> None:
    """Asked for exactly what was measured: the mean of its steps, with the basis measured."""
    row = rows()[-1]
    same = [r for r in rows() if all(r[k] == row[k] for k in ("model", "dtype", "learning_rate"))]
    single = [r for r in same if r["steps_apart"] == "1"]
    found = delta_size(row["dtype"], float(row["learning_rate"]), int(row["parameters"]))
    full, small = (sum(int(r[k]) for r in single) for k in ("full_bytes", "delta_bytes"))
    assert found.ratio == pytest.approx(full / small) and found.basis == "measured"
    assert row["model"] in found.note and row["measured"] in found.note


@given(
    st.sampled_from(sorted(DTYPES)),
    st.floats(1e-9, 1.0),
    st.floats(1e5, 1e12),
    st.integers(1, 1000),
)
def test_any_question_has_a_sensible_answer(dtype: str, rate: float, parameters: float, apart: int) -> None:
    """Between the outermost measurements for one step, never below 1, and no larger for more steps."""
    once = delta_size(dtype, rate, parameters)
    ratios = [ratio(dtype, measured, parameters) for measured in RATES]
    assert min(ratios) * (1 - 1e-9) <= once.ratio <= max(ratios) * (1 + 1e-9)
    assert 1 <= ratio(dtype, rate, parameters, apart) <= once.ratio * (1 + 1e-9)
    assert 0 < once.share_changed <= 1


def test_between_two_rates_it_is_their_geometric_mean() -> None:
    """Half way on the logarithmic scale."""
    middle = ratio("bf16", math.sqrt(1e-6 * 1e-5), 1.35e8)
    assert middle == pytest.approx(math.sqrt(ratio("bf16", 1e-6, 1.35e8) * ratio("bf16", 1e-5, 1.35e8)))


def test_both_spellings_of_a_dtype_are_the_same() -> None:
    """Torch's names and the short ones."""
    assert ratio("bfloat16", 1e-6, 1e9) == ratio("bf16", 1e-6, 1e9)
    assert ratio("float32", 1e-6, 1e9) == ratio("fp32", 1e-6, 1e9)


def test_the_documentation_shows_the_measurements() -> None:
    """Every line of the table in docs/snapshots.md is what the shipped rows give."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "snapshots.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (\S+) \| (bf16|fp32) \| (\S+) \| (\S+)% \| (\S+) \|", page, re.MULTILINE)
    parameters = {row["model"]: int(row["parameters"]) for row in rows()}
    assert len(shown) == len({(r["model"], r["dtype"], r["learning_rate"]) for r in rows()})
    for model, dtype, rate, share, times in shown:
        found = delta_size(dtype, float(rate), parameters[model])
        assert (share, times) == (f"{100 * found.share_changed:.2f}", f"{found.ratio:,.1f}"), (model, rate)


@pytest.mark.parametrize(
    ("dtype", "rate", "parameters", "match"),
    [
        ("fp8", 1e-6, 1e9, "'fp8' were not measured; choose bf16"),
        ("bf16", 0.0, 1e9, "learning_rate is 0.0; it must be above 0"),
        ("bf16", math.nan, 1e9, "learning_rate is nan"),
        ("bf16", 1e-6, -1.0, "model_parameters is -1.0"),
    ],
)
def test_what_cannot_be_answered_is_refused(dtype: str, rate: float, parameters: float, match: str) -> None:
    """A dtype without measurements and numbers that are not above 0."""
    with pytest.raises(UserError, match=match):
        ratio(dtype, rate, parameters)
