"""What the command line shows of a trace: a table of facts and one picture a kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo2 import traces
from echo2.errors import UserError
from echo2.traces.show import draw, summary

ONE_OF_EACH_FILE = sorted({e.file: e.trace_id for e in reversed(traces.entries())}.values())


@pytest.mark.parametrize("trace_id", ONE_OF_EACH_FILE)
def test_summary_names_source_licence_and_basis(trace_id: str) -> None:
    """Every trace's table gives where it comes from and no empty value."""
    rows = summary(trace_id)
    names = [name for name, _ in rows]
    assert {"trace", "kind", "source", "licence", "basis", "rows", "notes"} <= set(names)
    assert all(value for _, value in rows)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", sorted(traces.KINDS))
def test_draw_makes_a_picture_of_each_kind(kind: str, tmp_path: Path) -> None:
    """One shipped trace of each kind is drawn as a PNG that is not blank."""
    trace_id = next(e.trace_id for e in traces.entries() if e.kind == kind)
    path = draw(trace_id, tmp_path / "picture.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 5000


def test_summary_of_a_file_of_ones_own(tmp_path: Path) -> None:
    """A path works too, and a file of several series lists them."""
    path = tmp_path / "lines.csv"
    path.write_text("trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\na,0,5,1,,1\na,60,5,1,,1\nb,0,5,1,,1\n")
    assert ("series", "a, b") in summary(path)
    assert ("duration", "60 s") in summary(f"{path}#a")


def test_draw_needs_the_folder(tmp_path: Path) -> None:
    """A picture into a folder that is not there is refused by name."""
    with pytest.raises(UserError, match="does not exist"):
        draw("bamboo-p3", tmp_path / "nowhere" / "picture.png")
