"""Sweeps on a Ray cluster: a real one, started on this machine. Skipped where Ray is not installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cli_run import CommandLine

from echo2.cli import sweep_ray
from echo2.cli.sweep_grid import Point, points
from echo2.config.load import read_table
from echo2.errors import UserError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install echo2[ray]")
GRID = ["--grid", "run.staleness=1,2", "--grid", "pool.a.gpu=RTX 5090,RTX 5099"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine with two CPUs, for all tests of this file."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def echo2(
    cluster: None, tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line in a folder with a small configuration."""
    made = CommandLine(tmp_path, capsys)  # type: ignore[arg-type]
    monkeypatch.chdir(made.folder)
    return made


def small_points(echo2: CommandLine, number: int) -> list[Point]:
    """The points of a sweep over as many seeds."""
    return points(read_table(echo2.config), echo2.config, [], [], number)


def test_ray_gives_the_same_bytes_as_local_processes(echo2: CommandLine) -> None:
    """The table of a sweep, errors included, has the same bytes from Ray and from local processes."""
    own = echo2.folder / "mine.csv"
    own.write_text("trace_id,t_s,down_ratio,up_ratio,ok\ns,0,0.5,0.5,1\ns,9,1,1,1\n")
    tables = {}
    for backend in ("local", "ray"):
        out = echo2.folder / f"{backend}.csv"
        code, printed, err = echo2("sweep", "small.toml", *GRID, "--set", "pool.a.link_shape=mine.csv",
                                   "--seeds", 2, "--out", out, "--jobs", 2, "--backend", backend)  # fmt: skip
        assert code == 0, err
        assert "2 errors" in printed or "4 errors" in printed
        tables[backend] = out.read_bytes()
    assert tables["ray"] == tables["local"]


def test_a_sweep_begun_locally_goes_on_with_ray(echo2: CommandLine) -> None:
    """Rows that local processes made are kept; Ray runs the others only."""
    out = echo2.folder / "s.csv"
    echo2("sweep", echo2.config, "--out", out, "--jobs", 1)
    code, printed, err = echo2(
        "sweep", echo2.config, "--seeds", 3, "--out", out, "--backend", "ray", "--json"
    )
    assert code == 0, err
    assert (json.loads(printed)["kept"], json.loads(printed)["points"]) == (1, 3)


def test_a_node_with_other_code_ends_the_sweep(echo2: CommandLine) -> None:
    """A point whose key a worker cannot make again (another version, another trace) is not run there."""
    stale = replace(small_points(echo2, 1)[0], key="made by another version")
    with pytest.raises(UserError, match="another version of echo2 or of a trace"):
        list(sweep_ray.ray_results([stale], 1, None))


def test_more_points_than_places(echo2: CommandLine) -> None:
    """Every point is run once, one at a time where one is asked for."""
    wanted = small_points(echo2, 4)
    rows = list(sweep_ray.ray_results(wanted, 1, None))
    assert sorted(row["key"] for row in rows) == sorted(point.key for point in wanted)


def test_a_cluster_that_is_stuck_is_given_up(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no point is ever finished the sweep says so and ends."""
    monkeypatch.setattr(sweep_ray, "LOOK_S", 0.01)
    monkeypatch.setattr(sweep_ray, "STALL_S", 0.02)
    with pytest.raises(UserError, match="no point was finished"):
        list(sweep_ray.ray_results(small_points(echo2, 1), 1, None))


def command(echo2: CommandLine, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A sweep with Ray in a process of its own, which has no cluster yet."""
    words = ["sweep", str(echo2.config), "--backend", "ray", *map(str, arguments)]
    return subprocess.run(
        [sys.executable, "-m", "echo2.cli.main", *words], capture_output=True, text=True, timeout=120
    )


def test_without_an_address_a_cluster_is_started_here(echo2: CommandLine) -> None:
    """The command starts its own cluster, stops it at the end, and prints nothing but its table."""
    out = echo2.folder / "s.csv"
    done = command(echo2, "--jobs", 1, "--out", out)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert out.exists() and "wrote" in done.stdout


def test_a_cluster_that_is_not_there(echo2: CommandLine) -> None:
    """An address where no cluster answers is one line with the address."""
    done = command(echo2, "--ray-address", "127.0.0.1:1", "--out", echo2.folder / "s.csv")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "--ray-address 127.0.0.1:1" in done.stderr


def test_ctrl_c_keeps_what_is_done(echo2: CommandLine) -> None:
    """Ctrl-C in the middle: exit code 130, one line, rows kept, and the same command goes on there."""
    out = echo2.folder / "s.csv"
    grid = ["--grid", "run.steps=" + ",".join(str(600 + i) for i in range(40))]
    words = ["sweep", str(echo2.config), *grid, "--out", str(out), "--backend", "ray", "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "echo2.cli.main", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    kept = out.with_name("s.csv.rows.jsonl")
    deadline = time.monotonic() + 90
    while not (kept.exists() and kept.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    printed, complaint = process.communicate(timeout=90)
    assert process.returncode == 130, complaint
    assert complaint.startswith("interrupted: ") and complaint.count("\n") == 1, complaint
    assert printed == "" and not out.exists()
    done = kept.read_bytes().count(b"\n")
    assert 2 <= done < 40 and f"{done} of 40 points" in complaint
