"""Bad input on the command line: one line, no traceback, nothing half-written, and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_run import SMALL, CommandLine

PLACES = [
    ("unknown key", ["run.stalness=3"], ["'stalness'", "did you mean 'staleness'"]),
    ("wrong unit", ["learner.uplink_mbps=10 Gbit/s"], ["'10 Gbit/s'", "Mbit/s (10^6 bit/s)"]),
    ("bit/s for Mbit/s", ["pool.a.uplink_mbps=9e8"], ["<= 1,000,000", "Mbit/s"]),
    ("negative rate", ["pool.a.uplink_mbps=-3"], ["-3", "> 0"]),
    ("zero rate", ["pool.a.downlink_mbps=0"], ["> 0", "Mbit/s"]),
    ("zero decode rate", ["pool.a.tokens_per_s=0", "pool.a.slots=2"], ["> 0"]),
    ("empty pool", ["pool=[]"], ["[[pool]]"]),
    ("no workers", ["pool.a.count=0"], [">= 1"]),
    ("S < 0", ["run.staleness=-1"], ["-1", ">= 0"]),
    ("kappa > S + 1", ["run.publish_period=4"], ["S + 1 = 3", "never published"]),
    ("group does not divide", ["batch.group_size=5"], ["divide", "16"]),
    ("unknown region", ["pool.a.region=aws:us-east-9"], ["aws:us-east-9", "aws:us-east-1"]),
    ("unknown GPU", ["pool.a.gpu=RTX 5099"], ["RTX 5099", "RTX 5090"]),
    ("price of nearly 0", ["pool.a.price_usd_per_h=0.01"], ["0.01", "0.02", "not a bargain"]),
    ("learner price of nearly 0", ["learner.price_usd_per_gpu_h=0.01"], ["0.01", ">= 0.02", "USD"]),
    ("GPU too small", ["rollout.tokens=90000", "rollout.max_tokens=90000"], ["KV cache", "max_tokens <="]),
]


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration."""
    return CommandLine(tmp_path, capsys)


@pytest.mark.parametrize(("sets", "words"), [place[1:] for place in PLACES], ids=[p[0] for p in PLACES])
def test_bad_value(echo2: CommandLine, sets: list[str], words: list[str]) -> None:
    """Each bad value ends plan and simulate with exit code 2 and one line naming value and fix."""
    options = [part for text in sets for part in ("--set", text)]
    message = echo2.mistake("plan", echo2.config, *options)
    assert "small.toml" in message
    for word in words:
        assert word in message, message
    out = echo2.folder / "run"
    assert echo2.mistake("simulate", echo2.config, *options, "--out", out) == message
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["small.toml"]


def test_bad_value_in_the_file(echo2: CommandLine) -> None:
    """A bad value in the file itself is named with the file."""
    echo2.config.write_text(SMALL.replace("count = 3", "count = 3\nregoin = 1"))
    message = echo2.mistake("plan", echo2.config)
    assert f"{echo2.config}: unknown key 'regoin' in section [pool.a]; did you mean 'region'?" in message


def test_missing_file(echo2: CommandLine) -> None:
    """A configuration that is not there is answered with how to make one."""
    assert "echo2 init" in echo2.mistake("plan", echo2.folder / "none.toml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "Missing argument"),
        (["plna"], "plna"),
        (["plan", "x.toml", "--sead", "3"], "--sead"),
        (["simulate", "x.toml", "--seed", "-3"], "-3"),
        (["simulate", "x.toml", "--seed", "three"], "three"),
        (["traces", "show", "bamboo-p4"], "bamboo-p3"),
        (["traces", "--kind", "links"], "link"),
        (["replay", "nowhere"], "nowhere"),
    ],
)
def test_bad_command_line(echo2: CommandLine, arguments: list[str], words: str) -> None:
    """A wrong command, option or argument is one line and exit code 2 as well."""
    assert words in echo2.mistake(*arguments)


def test_trace_shorter_than_the_run_is_reported(echo2: CommandLine) -> None:
    """A trace shorter than the run repeats, and plan and simulate say so."""
    options = ["--set", "pool.a.availability=bamboo-p3", "--set", "run.steps=2000"]
    code, out, _ = echo2("plan", echo2.config, *options)
    assert code == 0 and "shorter than the run" in " ".join(out.split())


def test_own_trace_with_a_bad_row(echo2: CommandLine) -> None:
    """A bad row of the user's own trace is refused with key, file, row and value."""
    (echo2.folder / "mine.csv").write_text("trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\nx,0,-5,5,10,1\n")
    message = echo2.mistake("plan", echo2.config, "--set", "pool.a.link_shape=mine.csv")
    assert "pool.a.link_shape" in message and "mine.csv row 1" in message and "-5" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full(echo2: CommandLine) -> None:
    """A full disk is one line with the path and what to do."""
    message = echo2.mistake("plan", echo2.config, "--out", "/dev/full", "--json")
    assert "/dev/full" in message and "No space left" in message and "free some space" in message


def test_disk_full_in_a_run_leaves_nothing(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills while a run is written leaves no folder and no part of one."""
    from echo2.sim.run import SimResult

    def full(self: SimResult, folder: Path) -> None:
        (folder / "log.jsonl").write_text("half")
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(SimResult, "write", full)
    message = echo2.mistake("simulate", echo2.config, "--out", echo2.folder / "run")
    assert "No space left" in message and str(echo2.folder / "run") in message
    assert sorted(p.name for p in echo2.folder.iterdir()) == ["small.toml"]


@pytest.mark.parametrize(
    ("command", "name"), [("plan", "p.json"), ("simulate", "run"), ("sweep", "s.csv"), ("topology", "t.json")]
)
def test_unwritable_output(echo2: CommandLine, command: str, name: str) -> None:
    """An output under something that is not a folder is one line, before any work is lost."""
    (echo2.folder / "file").write_text("")
    path = echo2.folder / "file" / name
    message = echo2.mistake(command, echo2.config, "--out", path)
    assert "file" in message and ("cannot be written" in message or "Not a directory" in message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(echo2: CommandLine) -> None:
    """A folder without permission is one line too."""
    echo2.folder.chmod(0o555)
    try:
        assert "Permission denied" in echo2.mistake("plan", echo2.config, "--out", echo2.folder / "p.json")
    finally:
        echo2.folder.chmod(0o755)


def test_a_real_process_ends_the_same_way(echo2: CommandLine) -> None:
    """From the shell: exit code 2, one line on stderr, nothing on stdout, no traceback."""
    command = [sys.executable, "-m", "echo2.cli.main", "plan", str(echo2.config), "--set", "run.steps=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "run.steps = 0" in done.stderr


def test_a_closed_pipe_is_no_error(echo2: CommandLine) -> None:
    """Output cut off by `head` ends quietly."""
    shell = f"{sys.executable} -m echo2.cli.main traces --json | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[\n" and done.stderr == ""


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["pool.a.market=on_demand"], ["pool.a.market = 'on_demand'", "'salad'", "set market = "]),
        (["pool.a.provider=nowhere"], ["pool.a.provider = 'nowhere'", "known at ", "salad", "price_usd_per_h"]),
        (["pool.a.gpu=RTX 3060", "pool.a.price_usd_per_h=1"], ["pool.a.gpu", "tokens_per_s and slots"]),
        (["model.name=mine", "model.snapshot_gb=1"], ["pool.a.gpu", "'mine'", "tokens_per_s and slots"]),
        (["policy.margin=inf"], ['policy.margin = inf: must be "auto" or a number >= 1']),
        (["run.staleness=4.0"], ["run.staleness = 4.0"]),
        (["pool.a.count=200000"], ["pool.a.count = 200000", "<= 4096"]),
        (["run.steps=99999999999999999999"], ["<= 1,000,000"]),
        (["seed=99999999999999999999"], ["seed = 99999999999999999999"]),
        (["batch.rollouts_per_step=8000000"], ["<= 65,536"]),
        (["a.b=3"], ["with --set a.b=3", "unknown key 'a'"]),
        (["run.system=datacentre-async", "learner.step_s=0.001"], ["run.system", "4,096", "learner.step_s"]),
    ],
)
def test_the_key_that_is_wrong_is_named(echo2: CommandLine, sets: list[str], words: list[str]) -> None:
    """The message blames the key that must be changed, and its fix is one that the file can express."""
    message = echo2.mistake("plan", echo2.config, *(part for text in sets for part in ("--set", text)))
    assert all(word in message for word in words), message


def test_too_many_workers_in_all(echo2: CommandLine) -> None:
    """Pools that are each small enough may be too many together."""
    second = SMALL[SMALL.index("[[pool]]") :].replace('"a"', '"b"')
    echo2.config.write_text(SMALL + second)
    message = echo2.mistake("plan", echo2.config, "--set", "pool.*.count=4000")
    assert "8,000 workers in all" in message and "4,096" in message


def test_output_in_a_folder_that_is_not_there(echo2: CommandLine) -> None:
    """It is the folder that is missing, not room on the disk."""
    message = echo2.mistake("plan", echo2.config, "--out", echo2.folder / "none" / "p.json")
    assert "does not exist" in message and "space" not in message


def test_tables_into_a_closed_pipe(echo2: CommandLine) -> None:
    """A table cut off by `head` is no error either."""
    shell = f"{sys.executable} -m echo2.cli.main plan {echo2.config} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_before_the_commands_are_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while the program still loads is one line and exit code 130."""
    from echo2.cli import main

    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "run", interrupted)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 130 and capsys.readouterr().err == "interrupted\n"


def test_no_command(echo2: CommandLine) -> None:
    """`echo2` alone prints its help and one line."""
    code, out, err = echo2()
    assert code == 2 and "sweep" in out and err == "error: no command given; see `echo2 --help`\n"


def test_a_picture_is_a_png(echo2: CommandLine) -> None:
    """A picture under another ending would be a PNG with a wrong name."""
    message = echo2.mistake("traces", "show", "bamboo-p3", "--out", echo2.folder / "p.pdf")
    assert "must end in .png" in message and not (echo2.folder / "p.pdf").exists()


def test_a_log_that_was_cut_or_is_none(echo2: CommandLine) -> None:
    """Replay notices a log cut between two events, and one that is not text."""
    run = echo2.folder / "run"
    assert echo2("simulate", echo2.config, "--out", run)[0] == 0
    lines = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    (run / "log.jsonl").write_bytes(b"".join(lines[:-1]))
    code, out, _ = echo2("replay", run)
    assert code == 1 and "cut off" in out
    (run / "log.jsonl").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in echo2.mistake("replay", run)


def test_a_report_is_whole_or_absent(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills while a report is written leaves neither files nor folders."""
    run, out = echo2.folder / "run", echo2.folder / "report"
    assert echo2("simulate", echo2.config, "--out", run)[0] == 0
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name.startswith("report.html"):
            raise OSError(28, "No space left on device", str(self))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    message = echo2.mistake("report", run, "--out", out)
    assert "No space left" in message and not out.exists()
