"""The sweep: every point once, the same on any number of processes, and never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from cli_run import CommandLine

from echo2.cli import sweep_pool
from echo2.errors import UserError

GRID = ["--grid", "run.staleness=1,2", "--grid", "pool.a.count=2,3"]


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration."""
    return CommandLine(tmp_path, capsys)


def test_sweep_is_the_grid_times_the_seeds(echo2: CommandLine) -> None:
    """Each combination has one row a seed, with its whole configuration, seed and code version."""
    out = echo2.folder / "s.csv"
    code, printed, err = echo2("sweep", echo2.config, *GRID, "--seeds", 2, "--out", out, "--jobs", 1)
    assert code == 0, err
    table = pd.read_csv(out)
    combinations = {(r["run.staleness"], r["pool.a.count"], r["seed"]) for _, r in table.iterrows()}
    assert len(table) == 8 == len(combinations)
    assert table["version"].nunique() == 1 and table["version"][0].startswith("0.1.0+")
    for _, row in table.iterrows():
        config = json.loads(row["config"])
        assert config["seed"] == row["seed"] and config["pool"][0]["count"] == row["pool.a.count"]
        assert row["S"] == row["run.staleness"] and row["staleness_max"] <= row["S"]
    assert "8 rows" in printed


def test_number_of_processes_changes_nothing(echo2: CommandLine) -> None:
    """One process and two write the same table to the byte."""
    tables = []
    for jobs in (1, 2):
        out = echo2.folder / f"s{jobs}.csv"
        code, _, err = echo2("sweep", echo2.config, *GRID, "--out", out, "--jobs", jobs)
        assert code == 0, err
        tables.append(out.read_bytes())
    assert tables[0] == tables[1]


def test_sweep_goes_on_where_it_was(echo2: CommandLine) -> None:
    """Rows done are taken over, a line cut in two is done again, and the table is as if in one go."""
    whole, parts = echo2.folder / "whole.csv", echo2.folder / "parts.csv"
    echo2("sweep", echo2.config, *GRID, "--out", whole, "--jobs", 1)
    rows = (echo2.folder / "whole.csv.rows.jsonl").read_bytes().splitlines(keepends=True)
    (echo2.folder / "parts.csv.rows.jsonl").write_bytes(rows[2] + rows[0] + rows[1][:40])
    code, out, _ = echo2("sweep", echo2.config, *GRID, "--out", parts, "--jobs", 1, "--json")
    result = json.loads(out)
    assert code == 0 and (result["points"], result["kept"]) == (4, 2)
    assert parts.read_bytes() == whole.read_bytes()
    code, out, _ = echo2("sweep", echo2.config, *GRID, "--out", parts, "--jobs", 1, "--json")
    assert json.loads(out)["kept"] == 4


def test_a_changed_configuration_is_run_again(echo2: CommandLine) -> None:
    """Rows of another configuration are not taken for this one's."""
    out = echo2.folder / "s.csv"
    echo2("sweep", echo2.config, "--out", out, "--jobs", 1)
    _, printed, _ = echo2("sweep", echo2.config, "--out", out, "--jobs", 1, "--json", "--set", "run.steps=5")
    assert json.loads(printed)["kept"] == 0
    assert pd.read_csv(out)["steps"].tolist() == [5]


def test_parquet(echo2: CommandLine) -> None:
    """The table can be Parquet, with the same columns as the CSV."""
    pytest.importorskip("pyarrow")
    echo2("sweep", echo2.config, "--out", echo2.folder / "s.parquet", "--jobs", 1)
    echo2("sweep", echo2.config, "--out", echo2.folder / "s.csv", "--jobs", 1)
    parquet, csv = pd.read_parquet(echo2.folder / "s.parquet"), pd.read_csv(echo2.folder / "s.csv")
    assert list(parquet.columns) == list(csv.columns)
    assert parquet["steps_per_s"].tolist() == csv["steps_per_s"].tolist()


def test_infeasible_points_are_rows(echo2: CommandLine) -> None:
    """A point whose S cannot keep the learner busy is simulated as well as can be, and marked."""
    out = echo2.folder / "s.csv"
    echo2("sweep", echo2.config, "--grid", "learner.step_s=1,60", "--out", out, "--jobs", 1)
    assert pd.read_csv(out)["status"].tolist() == ["best effort", "ok"]


def test_a_point_without_data_is_a_row_with_the_error(echo2: CommandLine) -> None:
    """A point that the catalogue cannot serve is a row with the reason; the others are run."""
    out = echo2.folder / "s.csv"
    code, printed, _ = echo2("sweep", echo2.config, "--grid", "pool.a.gpu=RTX 5090,RTX 5099", "--out", out,
                             "--jobs", 1)  # fmt: skip
    table = pd.read_csv(out)
    assert code == 0 and table["status"].tolist() == ["ok", "error"]
    assert "RTX 5099" in table["message"][1] and "1 errors" in printed


def test_dry_run_lists_the_points(echo2: CommandLine) -> None:
    """--dry-run prints the points and runs none."""
    code, out, _ = echo2("sweep", echo2.config, *GRID, "--out", echo2.folder / "s.csv", "--dry-run")
    assert code == 0 and "# 4 points:" in out and "pool.a.count = 3" in out
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["small.toml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "run.staleness=1,-2", "--out", "s.csv"], ["run.staleness = -2", ">= 0"]),
        (["--grid", "run.stalness=1", "--out", "s.csv"], ["did you mean 'staleness'"]),
        (["--grid", "run.staleness", "--out", "s.csv"], ["key=a,b,c"]),
        (["--grid", "seed=1", "--grid", "seed=2", "--out", "s.csv"], ["given twice"]),
        (["--grid", "run.staleness=1,-2", "--out", "s.csv"], ["--grid run.staleness=-2: run.staleness = -2"]),
        (["--grid", "pool.b.count=1", "--out", "s.csv"], ["--grid pool.b.count=1: pool 'b'"]),
        (
            [
                "--grid",
                "learner.step_s=" + ",".join(map(str, range(1, 102))),
                "--seeds",
                "1000",
                "--out",
                "s.csv",
            ],
            ["101,000 points", "100,000"],
        ),
        (["--seeds", "3", "--seed", "4294967295", "--out", "s.csv"], ["4,294,967,295"]),
        (["--jobs", "1000000", "--out", "s.csv"], ["--jobs 1000000", "1,024"]),
        (["--out", "s.xlsx"], [".parquet", ".csv"]),
        ([], ["--out"]),
    ],
)
def test_bad_sweep(
    echo2: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    """A bad grid or output ends the sweep before the first point."""
    monkeypatch.chdir(echo2.folder)
    message = echo2.mistake("sweep", echo2.config, *arguments)
    assert all(word in message for word in words), message
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["small.toml"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_keeps_what_is_done(echo2: CommandLine, jobs: int) -> None:
    """Ctrl-C in the middle: exit code 130, one line, no table, rows kept; the same command finishes it."""
    out = echo2.folder / "s.csv"
    grid = ["--grid", "run.steps=" + ",".join(str(1000 + i) for i in range(40))]
    arguments = ["sweep", str(echo2.config), *grid, "--out", str(out), "--jobs", str(jobs)]
    process = subprocess.Popen(
        [sys.executable, "-m", "echo2.cli.main", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    kept = out.with_name("s.csv.rows.jsonl")
    deadline = time.monotonic() + 60
    while not (kept.exists() and kept.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the parent and its children
    printed, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, complaint
    assert complaint.startswith("interrupted: ") and complaint.count("\n") == 1, complaint
    assert printed == "" and not out.exists()
    done = kept.read_bytes().count(b"\n")
    assert 2 <= done < 40 and f"{done} of 40 points" in complaint
    assert not [p for p in echo2.folder.iterdir() if ".part" in p.name]


def test_rows_of_another_grid_get_their_place_in_this_one(echo2: CommandLine) -> None:
    """A row that an earlier grid ran is taken over with the coordinates and the order of this grid."""
    again, fresh = echo2.folder / "again.csv", echo2.folder / "fresh.csv"
    echo2("sweep", echo2.config, "--grid", "pool.a.count=3", "--out", again, "--jobs", 1)
    grid = ["--grid", "run.staleness=1,2,2"]
    code, out, err = echo2("sweep", echo2.config, *grid, "--out", again, "--jobs", 1, "--json")
    assert code == 0 and (json.loads(out)["kept"], json.loads(out)["points"]) == (1, 2), err
    echo2("sweep", echo2.config, *grid, "--out", fresh, "--jobs", 1)
    assert again.read_bytes() == fresh.read_bytes()
    assert len((echo2.folder / "fresh.csv.rows.jsonl").read_text().splitlines()) == 2


def test_a_changed_trace_of_ones_own_is_run_again(echo2: CommandLine) -> None:
    """Rows that were made with another content of the user's own file are not taken over."""
    own, out = echo2.folder / "mine.csv", echo2.folder / "s.csv"
    command = ["sweep", echo2.config, "--set", "pool.a.link_shape=mine.csv", "--out", out, "--jobs", 1]
    for ratio in (1, 0.01):
        own.write_text(f"trace_id,t_s,down_ratio,up_ratio,ok\ns,0,{ratio},{ratio},1\ns,9,1,1,1\n")
        code, printed, err = echo2(*command, "--json")
        assert code == 0 and json.loads(printed)["kept"] == 0, err
    assert json.loads(echo2(*command, "--json")[1])["kept"] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full_in_a_sweep(echo2: CommandLine) -> None:
    """A row that does not fit on the disk is one line with the path and what is kept."""
    (echo2.folder / "s.csv.rows.jsonl").symlink_to("/dev/full")
    message = echo2.mistake("sweep", echo2.config, "--out", echo2.folder / "s.csv", "--jobs", 1)
    assert "s.csv.rows.jsonl" in message and "No space left" in message
    assert "0 rows kept" in message and "run again to go on" in message


def test_disk_full_at_the_table(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills at the very end costs no row, and the message says so."""

    def full(self: pd.DataFrame, *arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    message = echo2.mistake("sweep", echo2.config, "--out", echo2.folder / "s.csv", "--jobs", 1)
    assert "No space left" in message and "1 row kept" in message and "run again to go on" in message


def test_a_process_that_was_killed_is_noticed() -> None:
    """A process that the system kills ends the sweep with one line; nobody waits for it for ever."""
    with pytest.raises(UserError, match=r"exit code 9\).*fewer --jobs"):
        list(sweep_pool.results(os._exit, [9, 9, 9], 2))


def test_the_processes_share_the_tasks_and_keep_to_the_number() -> None:
    """Every task is done once, also with more processes than tasks."""
    assert sorted(sweep_pool.results(abs, [-3, -2, -1], 8)) == [1, 2, 3]
    assert sorted(sweep_pool.results(abs, range(-20, 0), 2)) == list(range(1, 21))


def test_the_error_of_a_point_names_the_grid(echo2: CommandLine) -> None:
    """A value of the grid that the catalogue does not have is blamed on the grid in its row."""
    out = echo2.folder / "s.csv"
    echo2("sweep", echo2.config, "--grid", "pool.a.gpu=RTX 5099", "--out", out, "--jobs", 1)
    assert pd.read_csv(out)["message"][0].startswith("--grid pool.a.gpu=")


def test_the_rows_file_must_be_a_file(echo2: CommandLine) -> None:
    """A folder where the rows belong is one line."""
    (echo2.folder / "s.csv.rows.jsonl").mkdir()
    message = echo2.mistake("sweep", echo2.config, "--out", echo2.folder / "s.csv", "--jobs", 1)
    assert "s.csv.rows.jsonl" in message and "cannot be written" in message


def test_the_processes_ignore_ctrl_c_from_their_start() -> None:
    """Ctrl-C reaches the parent alone, however early it comes; the parent's own handling is as before."""
    before = signal.getsignal(signal.SIGINT)
    assert list(sweep_pool.results(signal.getsignal, [signal.SIGINT] * 2, 2)) == [signal.SIG_IGN] * 2
    assert signal.getsignal(signal.SIGINT) == before


def test_repeated_seeds_give_intervals(echo2: CommandLine) -> None:
    """With several seeds each row carries the 95 % t-interval of its configuration, and it is shown."""
    out = echo2.folder / "s.csv"
    grid = ["--grid", "run.staleness=1,2"]
    code, printed, err = echo2("sweep", echo2.config, *grid, "--seeds", 3, "--out", out, "--jobs", 1)
    assert code == 0, err
    table = pd.read_csv(out)
    assert table["seeds"].tolist() == [3] * 6
    for _, group in table.groupby("run.staleness"):
        mean, spread = group["step_cost_usd"].mean(), group["step_cost_usd"].std()
        half = 4.302652729911275 * spread / 3**0.5  # the 97.5 % quantile of t with 2 degrees of freedom
        assert group["step_cost_usd_low"].tolist() == pytest.approx([mean - half] * 3)
        assert group["step_cost_usd_high"].tolist() == pytest.approx([mean + half] * 3)
        assert f"{mean:.3f}±{half:.3f}" in printed
    assert "2 points, 6 runs" in printed and "0-2" in printed


def test_one_seed_has_no_interval(echo2: CommandLine) -> None:
    """One run says nothing of its noise: the ends of its interval are empty."""
    out = echo2.folder / "s.csv"
    echo2("sweep", echo2.config, "--out", out, "--jobs", 1)
    table = pd.read_csv(out)
    assert table["seeds"].tolist() == [1] and table["step_cost_usd_low"].isna().all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "slurm"], ["--backend slurm", "local or ray"]),
        (["--ray-address", "auto"], ["--ray-address auto", "--backend ray"]),
    ],
)
def test_bad_backend(echo2: CommandLine, arguments: list[str], words: list[str]) -> None:
    """A backend that is not there, and an address that nobody uses, are one line each."""
    message = echo2.mistake("sweep", echo2.config, "--out", echo2.folder / "s.csv", *arguments)
    assert all(word in message for word in words), message


def test_ray_that_is_not_installed(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray its backend is refused before anything runs, with what to install."""
    monkeypatch.setattr("echo2.cli.sweep_ray.find_spec", lambda name: None)
    out = echo2.folder / "s.csv"
    message = echo2.mistake("sweep", echo2.config, "--out", out, "--backend", "ray")
    assert "echo2[ray]" in message and not out.exists()
