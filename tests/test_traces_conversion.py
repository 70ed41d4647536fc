"""The shipped files come from the raw extracts, byte for byte the same each time (only where those are)."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT.parent / "shared" / "data-raw"


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@pytest.mark.skipif(not (RAW / "skyplane").is_dir(), reason="the raw extracts are not here")
def test_conversion_reproduces_the_shipped_files(tmp_path: Path) -> None:
    """Converting the raw extracts again gives the contents of every shipped file, twice the same bytes."""
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        command = [sys.executable, str(ROOT / "traces" / "convert.py"), str(RAW), "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    made = sorted(p.relative_to(outs[0]) for p in outs[0].rglob("*.csv*"))
    assert len(made) > 15
    for name in made:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes(), name
        if name.name != "index.csv":
            assert _content(outs[0] / name) == _content(ROOT / "traces" / name), name


def test_conversion_refuses_a_folder_that_is_not_the_raw_extracts(tmp_path: Path) -> None:
    """A wrong folder ends with one line, not a traceback."""
    command = [sys.executable, str(ROOT / "traces" / "convert.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "not the folder of raw extracts" in done.stderr and "Traceback" not in done.stderr
