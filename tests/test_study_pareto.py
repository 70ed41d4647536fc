"""The cost front of a sweep: what is on it, how it is drawn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from cli_run import CommandLine
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.report import style
from echo2.study.intervals import t_interval
from echo2.study.pareto import Dot, front
from echo2.study.pareto_figure import picture

NUMBERS = st.integers(0, 6).map(float)


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration and a sweep of it, s.csv."""
    made = CommandLine(tmp_path, capsys)
    grid = ["--grid", "run.staleness=1,2", "--grid", "pool.a.count=2,3"]
    code, _, err = made("sweep", made.config, *grid, "--seeds", 2, "--out", tmp_path / "s.csv", "--jobs", 1)
    assert code == 0, err
    return made


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12))
def test_nothing_beats_the_front_and_something_beats_the_rest(points: list[tuple[float, float]]) -> None:
    """A point is on the front exactly if no other is as good in both and better in one."""
    marks = front(points)
    assert any(marks)
    for (x, y), on in zip(points, marks):
        beaten = any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
        assert on != beaten


def test_the_interval_is_students() -> None:
    """The interval of 1, 2, 3 is 2 +- 4.30265 / sqrt(3); of one value there is none."""
    found = t_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3) and found.half == pytest.approx(4.302652729911275 / 3**0.5)
    assert t_interval([5.0]).half != t_interval([5.0]).half  # NaN


def test_the_front_of_a_sweep(echo2: CommandLine) -> None:
    """Configurations are the means of their seeds, cheapest first, with the keys in which they differ."""
    code, out, err = echo2("pareto", echo2.folder / "s.csv", "--json")
    assert code == 0, err
    points = json.loads(out)["points"]
    table = pd.read_csv(echo2.folder / "s.csv")
    assert len(points) == 4 and [p["number"] for p in points] == [1, 2, 3, 4]
    assert "wall" in points[0]["front"] or "staleness" in points[0]["front"]
    for point in points:
        assert set(point["values"]) == {"run.staleness", "pool.a.count"} and point["seeds"] == [0, 1]
        rows = table[
            (table["run.staleness"] == point["values"]["run.staleness"])
            & (table["pool.a.count"] == point["values"]["pool.a.count"])
        ]
        assert point["usd_per_step"]["mean"] == pytest.approx(rows["step_cost_usd"].mean())
        assert point["usd_per_step"]["low"] <= point["usd_per_step"]["mean"] <= point["usd_per_step"]["high"]
    cheapest = [p["usd_per_step"]["mean"] for p in points]
    assert cheapest == sorted(cheapest)


def test_the_picture_is_png_and_pdf(echo2: CommandLine) -> None:
    """Without an ending both are written; the same picture has the same bytes."""
    sweep, out = echo2.folder / "s.csv", echo2.folder / "front"
    code, printed, err = echo2("pareto", sweep, "--out", out)
    assert code == 0, err
    png, pdf = out.with_suffix(".png"), out.with_suffix(".pdf")
    assert png.read_bytes().startswith(b"\x89PNG") and pdf.read_bytes().startswith(b"%PDF")
    assert f"wrote {png}" in printed and "4 configurations, 4 steps, simulated" in printed
    before = png.read_bytes()
    echo2("pareto", sweep, "--out", png)
    assert png.read_bytes() == before


def test_the_legend_explains_what_either_panel_shows(tmp_path: Path) -> None:
    """All on the front of staleness, one alone on that of wall time: both kinds of mark are named."""
    from echo2.study.intervals import Interval

    def at(value: float) -> Interval:
        return Interval(value, 0.1, 3)

    found = [
        Dot(1, {}, at(1.0), {"staleness": at(2.0), "wall": at(1.0)}, (1, 2, 3), ("staleness", "wall")),
        Dot(2, {}, at(2.0), {"staleness": at(1.0), "wall": at(2.0)}, (1, 2, 3), ("staleness",)),
    ]
    with style.drawing():
        figure = picture(found, "two")
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(texts) == 2 and texts[0].startswith("front") and texts[1].startswith("another")


def test_a_full_disk_leaves_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops the writing half-way leaves neither half a picture nor a temporary file."""
    with style.drawing():
        figure, _ = style.new_figure(2.0)

    def full(path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(UserError, match="No space left"):
        style.save(figure, tmp_path, "front")
    assert list(tmp_path.iterdir()) == []


def test_parquet_gives_the_same_front(echo2: CommandLine) -> None:
    """A table in Parquet is read as one in CSV is."""
    pytest.importorskip("pyarrow")
    table = pd.read_csv(echo2.folder / "s.csv")
    table.to_parquet(echo2.folder / "s.parquet")
    fronts = [echo2("pareto", echo2.folder / name, "--json")[1] for name in ("s.csv", "s.parquet")]
    assert fronts[0] == fronts[1]


def test_unfinished_rows_do_not_count(echo2: CommandLine) -> None:
    """A row that is an error or did not finish is left out."""
    table = pd.read_csv(echo2.folder / "s.csv")
    table.loc[0, "status"] = "unfinished"
    table.to_csv(echo2.folder / "s.csv", index=False)
    points = json.loads(echo2("pareto", echo2.folder / "s.csv", "--json")[1])["points"]
    assert sorted(len(point["seeds"]) for point in points) == [1, 2, 2, 2]


def spoil(table: pd.DataFrame, how: str) -> pd.DataFrame:
    """A table with something wrong in it."""
    if how == "no column":
        return table.drop(columns=["wall_s"])
    if how == "empty":
        return table.iloc[:0]
    if how == "all errors":
        return table.assign(status="error")
    if how == "not a number":
        return table.assign(step_cost_usd="cheap")
    if how == "negative":
        return table.assign(step_cost_usd=-1.0)
    if how == "too much":
        return table.assign(step_cost_usd=1e308)
    if how == "half a configuration":
        return table.assign(config='{"seed": 1}')
    if how == "no configuration":
        return table.assign(config="{")
    if how == "another code":
        return table.assign(version=[f"v{i}" for i in range(len(table))])
    other = table["config"][0].replace('"group_size": 4', '"group_size": 8')
    return table.assign(config=[other, *table["config"][1:]])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no column", ["has no column wall_s"]),
        ("empty", ["holds no row", "echo2 sweep"]),
        ("all errors", ["none of its 8 rows is a finished run"]),
        ("not a number", ["row 1: step_cost_usd = 'cheap'", "finite number"]),
        ("negative", ["row 1: step_cost_usd = -1.0", "finite number of 0 to 1e+15"]),
        ("too much", ["row 1: step_cost_usd = 1e+308", "finite number of 0 to 1e+15"]),
        ("half a configuration", ["row 1", "not a configuration"]),
        ("no configuration", ["row 1", "not a configuration"]),
        ("another code", ["version differs (v0 and v1)"]),
        ("another batch", ["batch.group_size differs (8 and 4)", "--despite"]),
    ],
)
def test_bad_results(echo2: CommandLine, how: str, words: list[str]) -> None:
    """A table that is spoilt, or mixes workloads, is one line that says what is wrong."""
    spoil(pd.read_csv(echo2.folder / "s.csv"), how).to_csv(echo2.folder / "bad.csv", index=False)
    message = echo2.mistake("pareto", echo2.folder / "bad.csv")
    assert all(word in message for word in ["bad.csv", *words]), message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.csv"], ["none.csv: no such file", "echo2 sweep"]),
        (["s.xlsx"], [".parquet or .csv"]),
        (["s.csv", "--out", "front.svg"], ["--out front.svg", ".png or .pdf"]),
        (["s.csv", "--out", ""], ["--out", "names no file"]),
        (["torn.parquet"], ["torn.parquet: cannot be read as a table"]),
        (["blank.csv"], ["blank.csv: cannot be read as a table"]),
    ],
)
def test_bad_names(
    echo2: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    """A table that is not there or not whole, and a picture of another kind, are one line each."""
    if "torn.parquet" in arguments:
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(echo2.folder)
    (echo2.folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    (echo2.folder / "blank.csv").write_text("")
    message = echo2.mistake("pareto", *arguments)
    assert all(word in message for word in words), message
